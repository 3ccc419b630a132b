"""What recipes of taggers and parsers say of encoders of Transformers. Nothing here imports these."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from softq.lab.recipe import Conflicts, RecipeSection, key, shorten
from softq.options import LabelHead, Pooling

ModelKind = Literal["linear", "neural", "transformers"]
PRETRAINED = "transformers:"
"""How the name of a model begins that is an encoder of Transformers."""


class ModelSection(RecipeSection):
    """The section ``[model]`` of a tagger or parser."""

    name: str

    @property
    def kind(self) -> ModelKind:
        """What reads the words."""
        return (
            "transformers" if self.pretrained else "neural" if self.name == "neural" else "linear"
        )

    @property
    def pretrained(self) -> str:
        """A folder, or a name that Transformers know; "" where no model of theirs is asked for."""
        return self.name.removeprefix(PRETRAINED) if self.name.startswith(PRETRAINED) else ""

    def by_kind(self, linear: str, neural: str, transformers: str = "the encoder {}") -> str:
        """One of three texts, in the last of which {} is the encoder's name."""
        texts = {"linear": linear, "neural": neural, "transformers": transformers}
        return texts[self.kind].format(self.pretrained.rstrip("/").rpartition("/")[2])

    def conflicts(self) -> Conflicts:
        """A model is of one of the kinds."""
        known = ("linear", "neural")
        close = difflib.get_close_matches(self.name, known, 1, 0.4)
        return (
            (
                self.name not in known and not self.pretrained,
                f"model must be linear, neural or {PRETRAINED}PATH, got {shorten(self.name)}"
                + (f"; did you mean {close[0]!r}?" if close else ""),
            ),
        )


@dataclass(frozen=True)
class EncoderSettings(RecipeSection):
    """How an encoder of Transformers reads words, and how it is trained further."""

    pooling: Pooling = key("first", "which subword stands for a word: first, last or their mean")
    max_length: int | None = key(
        None, "most subwords of a window; none: as many as the encoder reads", least=3
    )
    stride: int | None = key(
        None, "subwords that windows of a longer sentence share; none: a quarter", least=0
    )
    head_dropout: float = key(
        0.1, "share dropped of the vectors of words; the encoder has its own", least=0, below=1
    )
    head_learning_rate: float = key(
        1e-3, "highest learning rate of what stands on the encoder and starts at random",
        positive=True,
    )  # fmt: skip
    warmup: float = key(
        0.1,
        "part of training in which learning rates rise, before they fall to 0",
        least=0,
        below=1,
    )
    weight_decay: float = key(
        0.01, "by which weights shrink in each step, times the rate", least=0, finite=True
    )
    lora: int = key(
        0,
        "rank of low-rank adapters (PEFT) that are trained in place of the encoder's weights; 0:"
        " none",
        least=0,
    )
    gradient_checkpointing: bool = key(
        False, "compute activations twice instead of keeping them: less memory, more time"
    )
    bf16: bool = key(False, "compute in bfloat16 in training where it is safe; for GPUs")


@dataclass(frozen=True)
class TaggerEncoder(EncoderSettings):
    """The same, and what stands on it in a tagger."""

    head: LabelHead = key(
        "chain", "chain: scores of neighbouring labels; independent: every label is on its own"
    )


def not_of_this_kind(kind: ModelKind, models: str, network: bool, encoder: bool) -> Conflicts:
    """The keys of the sections ``network`` and ``encoder`` are of one kind of model each.

    Args:
        kind: of the model.
        models: what errors call such models.
        network: whether keys of that section have values of their own.
        encoder: likewise.

    """
    return (
        (
            network and kind != "neural",
            f"vectors, hidden, dropout and the other keys of network are of neural {models}: add"
            " model = neural (--model neural), or leave them out",
        ),
        (
            encoder and kind != "transformers",
            "pooling, head_learning_rate, lora and the other keys of encoder are of encoders of"
            f" Transformers: name one (--model {PRETRAINED}PATH), or leave them out",
        ),
    )
