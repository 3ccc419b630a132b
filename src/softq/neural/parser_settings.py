"""Sizes of a neural parser, as recipes and files name them. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from softq.lab.recipe import RecipeSection, key


@dataclass(frozen=True)
class ParserSettings(RecipeSection):
    """The deep biaffine parser of Dozat and Manning (2017)."""

    word_size: int = key(128, "size of the vector of a word", least=1)
    tag_size: int = key(
        32, "size of the vectors of a part of speech (UPOS, XPOS) and of FEATS", least=1
    )
    character_size: int = key(64, "size of the vector of a character", least=1)
    filters: int = key(128, "filters of the convolution over the characters of a word", least=1)
    hidden: int = key(400, "width of the LSTM in each direction", least=1)
    layers: int = key(3, "bidirectional layers of the LSTM", least=1)
    arc_size: int = key(512, "size of a word as head or dependent", least=1)
    relation_size: int = key(128, "size of a word as head or dependent of a relation", least=1)
    dropout: float = key(
        0.33,
        "share dropped of the LSTM's inputs and outputs, the same at all words of a sentence",
        least=0,
        below=1,
    )
    input_dropout: float = key(
        0.2,
        "share dropped of words, spellings, parts of speech and FEATS as a whole",
        least=0,
        below=1,
    )
