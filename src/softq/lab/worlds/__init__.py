"""Built-in worlds: data from a seed, with distributions and Bayes rules that are known exactly."""

from softq.lab.worlds.entities import EntityWorld
from softq.lab.worlds.languages import LanguageWorld
from softq.lab.worlds.scenes import Scene, SceneWorld, Thing
from softq.lab.worlds.trees import TreeWorld

__all__ = ["EntityWorld", "LanguageWorld", "Scene", "SceneWorld", "Thing", "TreeWorld"]
