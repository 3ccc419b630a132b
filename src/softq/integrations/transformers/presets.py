"""Methods of the literature as values of a few arguments of `RewardAugmentedArguments`.

Each is the target prior(y)^a · base(y) · exp(r(y)/τ) on the model's own samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from softq.errors import RecipeError
from softq.options import PresetName, check_choice

# so cold that all weight is on the best completion, or is shared by several that are equally good
COLD = 1e-8
# candidates whose probability is known, as importance weights need it
DRAWN = ("hamming", "edit", "model")


class Preset(NamedTuple):
    """What a method is, and what it is usually used with."""

    fixed: Mapping[str, Any]
    """Without these it is another method."""
    usual: Mapping[str, Any]
    """An argument that is given takes their place."""


_OWN_SAMPLES = {"candidates": "model", "add_references": False}
_BEST = Preset({"prior": "none", "tau": COLD}, _OWN_SAMPLES)
PRESETS: dict[str, Preset] = {
    "raft": _BEST,
    "best-of-n": _BEST,
    "dpg": Preset({"prior": "base"}, _OWN_SAMPLES | {"estimator": "importance"}),
    "rwr": Preset({"prior": "current", "estimator": "importance"}, _OWN_SAMPLES),
    "tpo": Preset(
        {"prior": "current", "normalize_model": True},
        _OWN_SAMPLES | {"tau": 1.0, "standardize_rewards": True},
    ),
}
_DEFAULTS: dict[str, Any] = {
    "prior": "none",
    "candidates": "ngram",
    "estimator": "set",
    "add_references": True,
    "normalize_model": False,
    "standardize_rewards": False,
}


def resolve(preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of those arguments that are None, by a preset and by what they are without one.

    >>> found = resolve("tpo", {"tau": 0.5, "prior": None})
    >>> found["prior"], found["candidates"], found["normalize_model"], "tau" in found
    ('current', 'model', True, False)
    >>> resolve("dpg", {"prior": "current"})
    Traceback (most recent call last):
    softq.errors.RecipeError: preset 'dpg' is prior='base', got prior='current': leave out one of the two
    """
    fixed: Mapping[str, Any] = {}
    usual: Mapping[str, Any] = {}
    if preset is not None:
        check_choice("preset", preset, get_args(PresetName), RecipeError)
        fixed, usual = PRESETS[preset]
    for name, value in fixed.items():
        if given.get(name) not in (None, value):
            raise RecipeError(
                f"preset {preset!r} is {name}={value!r}, got {name}={given[name]!r}: leave out one"
                " of the two"
            )
    found = {**_DEFAULTS, **usual, **fixed}
    candidates = given.get("candidates") or found["candidates"]
    if "estimator" not in fixed and candidates not in DRAWN:
        found["estimator"] = "set"
    return {name: value for name, value in found.items() if given.get(name) is None}
