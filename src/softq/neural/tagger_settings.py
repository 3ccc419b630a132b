"""Sizes of a neural tagger, as recipes and files name them. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from softq.lab.recipe import RecipeSection, key


@dataclass(frozen=True)
class TaggerSettings(RecipeSection):
    """The BiLSTM-CNN-CRF of Ma and Hovy (2016), whose sizes are the defaults."""

    word_size: int = key(100, "size of the vector of a word", least=1)
    character_size: int = key(30, "size of the vector of a character", least=1)
    filters: int = key(30, "filters of the convolution over the characters of a word", least=1)
    hidden: int = key(200, "width of the LSTM in each direction", least=1)
    layers: int = key(1, "bidirectional layers of the LSTM", least=1)
    dropout: float = key(
        0.5,
        "share dropped of characters, of the LSTM's inputs and of its outputs",
        least=0,
        below=1,
    )
    crf: bool = key(True, "scores of neighbouring labels; else every label is on its own")
