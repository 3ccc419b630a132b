"""A trained model as a function from texts to texts.

By beam search, by draws, or by minimum Bayes risk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from softq.integrations.transformers.candidates import TokenIds, strip_specials
from softq.integrations.transformers.generation import GenerationSettings, Writer, least_risk
from softq.integrations.transformers.loading import Loaded
from softq.integrations.transformers.rewards import as_text_reward, decode_all
from softq.integrations.transformers.rows import (
    RowEncoder,
    end_ids,
    left_padded,
    right_padded,
    special_ids,
)
from softq.integrations.transformers.trainer import pad_id
from softq.rewards import Reward

Method = Literal["beam", "greedy", "sample", "mbr"]


@dataclass(frozen=True)
class Writing:
    """How texts are found.

    Attributes:
        method: ``beam``: the most probable text that a search finds; ``greedy``: the same with one
            beam; ``sample``: a draw; ``mbr``: of draws and the most probable text, the one of the
            highest expected reward if any draw might be right.
        beams: of the search.
        samples: draws for ``mbr``.
        reward: what ``mbr`` expects, as `RewardAugmentedArguments.reward`.
        temperature: of draws.
        top_p: share of the probability that draws are from.
        length_penalty: a beam ranks by log-probability over length to this power; the model's own
            if None.
        max_new_tokens: longest text.
        batch_size: inputs at a time; those of similar length go together.
        seed: of draws; draws for an input also depend on the other inputs of a call.

    """

    method: Method = "beam"
    beams: int = 4
    samples: int = 32
    reward: str = "bleu"
    temperature: float = 1.0
    top_p: float = 1.0
    length_penalty: float | None = None
    max_new_tokens: int = 128
    batch_size: int = 64
    seed: int = 0


class TextModel:
    """Writes a text for a text.

    Args:
        loaded: model and tokenizer.
        template: what the model reads, with ``{}`` once for the source.
        max_source: longest source, in tokens.

    """

    def __init__(self, loaded: Loaded, *, template: str = "{}", max_source: int = 512) -> None:
        self.core, self.tokenizer, self.template = loaded.model.eval(), loaded.tokenizer, template
        self.causal = loaded.causal
        self._encoder = RowEncoder(self.tokenizer, causal=self.causal, max_source=max_source)
        self._pad = pad_id(self.tokenizer, self.core)
        self._specials = special_ids(self.tokenizer, self.core)

    def reward(self, name: str) -> Reward:
        """A reward by its name, on this model's tokens or on words."""
        return as_text_reward(name, self.tokenizer)

    def token_ids(self, text: str) -> TokenIds:
        """The tokens of a text that the model may write, without special ones at its ends."""
        found = (
            self.tokenizer(text, add_special_tokens=False)
            if self.causal
            else self.tokenizer(text_target=text)
        )
        return strip_specials(found["input_ids"], self._specials)[0]

    def write(
        self, sources: Sequence[str], how: Writing, tell: Callable[[int], None] | None = None
    ) -> list[str]:
        """A text for each source, in their order; an empty one for an empty one.

        ``tell`` is told how many are done, batch by batch.
        """
        beams = 1 if how.method == "greedy" else how.beams
        settings = GenerationSettings(how.max_new_tokens, beams, how.temperature, how.top_p)
        ends = end_ids(self.tokenizer, self.core)
        writer = Writer(settings, self.causal, self._specials, ends, self._pad)
        said = [place for place, text in enumerate(sources) if text.strip()]
        encoded = dict(
            zip(
                said,
                self._encoder.sources(
                    [self.template.replace("{}", sources[place]) for place in said]
                ),
                strict=True,
            )
        )
        order = sorted(encoded, key=lambda place: len(encoded[place]))
        texts = [""] * len(sources)
        with _drawing(how.seed, self.core.device), self._length_penalty(how.length_penalty):
            for first in range(0, len(order), how.batch_size):
                places = order[first : first + how.batch_size]
                found = self._write(writer, [encoded[place] for place in places], how)
                for place, text in zip(places, decode_all(self.tokenizer, found), strict=True):
                    texts[place] = " ".join(text.split("\n")).strip()
                if tell is not None:
                    tell(len(places))
        return texts

    def _write(self, writer: Writer, sources: list[TokenIds], how: Writing) -> list[TokenIds]:
        if self.causal:  # it continues its input, so that padding stands before it
            tokens, mask = left_padded(sources, self._pad)
        else:
            tokens = right_padded(sources, self._pad)
            mask = right_padded([[1] * len(source) for source in sources], 0)
        inputs = {
            "input_ids": tokens.to(self.core.device),
            "attention_mask": mask.to(self.core.device),
        }
        if how.method == "sample":
            drawn = writer.samples(self.core, inputs, 1)
            return [row[0] if row else [] for row in drawn.sentences.unpack()]
        best = writer.best(self.core, inputs)
        return (
            least_risk(writer, self.core, inputs, best, how.samples, self.reward(how.reward))
            if how.method == "mbr"
            else best
        )

    @contextmanager
    def _length_penalty(self, penalty: float | None) -> Iterator[None]:
        settings = self.core.generation_config
        own = settings.length_penalty
        settings.length_penalty = own if penalty is None else penalty
        try:
            yield
        finally:
            settings.length_penalty = own


@contextmanager
def _drawing(seed: int, device: torch.device) -> Iterator[None]:
    """Transformers draw from torch's own generator.

    Within the block from this seed, afterwards from where it was.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
