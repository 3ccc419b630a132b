"""Texts that a model writes.

Samples to train on, its most probable text, and the choice of minimum Bayes risk; a trained model
as a function from texts to texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from softq.decode import mbr
from softq.errors import DependencyError, ModelError, RewardError
from softq.integrations.transformers.arguments import CorpusMetric
from softq.integrations.transformers.loading import Loaded
from softq.integrations.transformers.rewards import as_text_reward
from softq.integrations.transformers.row_encoder import RowEncoder
from softq.integrations.transformers.sampling import (
    Generate,
    GeneratedRow,
    Generator,
    Samples,
    as_samples,
    ask,
    prompts_of,
)
from softq.integrations.transformers.tokens import (
    SpecialTokens,
    TokenIds,
    decode_all,
    padded_inputs,
    special_tokens,
    strip_specials,
)
from softq.rewards import Reward
from softq.sentences import Sentences
from softq.spaces import Candidates


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

    method: Literal["beam", "greedy", "sample", "mbr"] = "beam"
    beams: int = 4
    samples: int = 32
    reward: str = "bleu"
    temperature: float = 1.0
    top_p: float = 1.0
    length_penalty: float | None = None
    max_new_tokens: int = 128
    batch_size: int = 64
    seed: int = 0


class Writer:
    """Lets a model write.

    Args:
        how: how long, how many beams, how samples are drawn.
        causal: whether the model continues its input.
        special: tokens that are no text.
        mode: how samples are generated (`RewardAugmentedArguments.generation`).
        generate: who generates samples in place of the model.
        start: special tokens that a text begins with.

    """

    def __init__(
        self,
        how: Writing,
        causal: bool,
        special: SpecialTokens,
        *,
        mode: str = "eager",
        generate: Generate | None = None,
        start: TokenIds | None = None,
    ) -> None:
        self.how, self.causal, self.special = how, causal, special
        self.generate, self.start = generate, start or []
        self._generator, self._eager = Generator(mode), Generator()

    def best(self, core: Any, inputs: Mapping[str, Any]) -> list[TokenIds]:
        """The most probable text for each input, as far as beam search finds it."""
        beams = 1 if self.how.method == "greedy" else self.how.beams
        options: dict[str, Any] = {"do_sample": False, "num_beams": beams}
        if beams > 1 and self.how.length_penalty is not None:
            options["length_penalty"] = self.how.length_penalty
        rows = self._write(self._eager, core, inputs, options)
        return [self._text(row) for row in rows]

    def samples(self, core: Any, inputs: Mapping[str, Any], size: int) -> Samples:
        """Texts ``[B, size]`` sampled from the model."""
        if self.generate is not None:
            seed = int(torch.randint(2**31, ()))
            rows = ask(self.generate, prompts_of(inputs), size, seed)
        else:
            options: dict[str, Any] = {"do_sample": True, "num_beams": 1, "top_k": 0}
            options["num_return_sequences"] = size
            options |= {"temperature": self.how.temperature, "top_p": self.how.top_p}
            found = self._write(self._generator, core, inputs, options)
            rows = [GeneratedRow(row) for row in found]
        return as_samples(rows, size, self.special, self.how.max_new_tokens, self.start)

    def least_risk(
        self, core: Any, inputs: Mapping[str, Any], best: Sequence[TokenIds], reward: Reward
    ) -> list[TokenIds]:
        """Of samples and the most probable text of each input, the one of the highest expected reward if any sample might be right."""
        if not reward.pairwise:
            raise RewardError(
                f"minimum Bayes risk needs a reward of two texts, and {reward!r} takes all"
                " references together: draw no samples"
            )
        drawn = self.samples(core, inputs, self.how.samples).texts
        # the most probable text stands in where nothing but empty texts was drawn
        choices = Candidates(*Sentences.pack([[text] for text in best])).beside(drawn)
        any_drawn = drawn.present.any(1, keepdim=True)
        lengths = torch.where(any_drawn, drawn.lengths, drawn.lengths.clamp(min=0))
        evidence = Candidates(drawn.tokens, lengths)
        return [list(text) for text in mbr(choices, reward, evidence=evidence).sentences.unpack()]

    def _write(
        self,
        generator: Generator,
        core: Any,
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> list[TokenIds]:
        """What the model generates."""
        most = self.how.max_new_tokens
        _check_positions(core, inputs, most)
        return generator(
            core, inputs, max_new_tokens=most, pad_token_id=self.special.pad, **options
        )

    def _text(self, tokens: TokenIds) -> TokenIds:
        """A text up to an end-of-text token, without special tokens at its ends."""
        stop = next((i for i, token in enumerate(tokens) if token in self.special.ends), None)
        return strip_specials(tokens[:stop], self.special.ids)[0]


def positions(core: Any) -> int | None:
    """How many tokens a model has positions for; None: any number, or as many as it likes."""
    config = (
        core.config.get_text_config() if hasattr(core.config, "get_text_config") else core.config
    )
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _check_positions(core: Any, inputs: Mapping[str, Any], most: int) -> None:
    """Whether there are positions for what is read and generated."""
    limit, mask = positions(core), inputs.get("attention_mask")
    if limit is None:
        return
    longest, row = (0, 0) if mask is None else map(int, mask.sum(1).max(0))
    room = limit - most
    if core.config.is_encoder_decoder:  # which reads with positions of their own
        room = limit if most < limit else 0
    if longest > room:
        raise ModelError(
            f"row {row} of the batch has {longest} tokens of prompt for {most} new ones, and"
            f" {type(core).__name__} has {limit} positions: shorten it (max_source of RowEncoder),"
            " or lower max_new_tokens"
        )


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
        self._special = special_tokens(self.tokenizer, self.core)

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
        return strip_specials(found["input_ids"], self._special.ids)[0]

    def write(
        self, sources: Sequence[str], how: Writing, tell: Callable[[int], None] | None = None
    ) -> list[str]:
        """A text for each source, in their order; an empty one for an empty one.

        ``tell`` is told how many are done, batch by batch.
        """
        writer = Writer(how, self.causal, self._special)
        given = [place for place, text in enumerate(sources) if text.strip()]
        read = self.source_ids([sources[place] for place in given])
        encoded = dict(zip(given, read, strict=True))
        order = sorted(encoded, key=lambda place: len(encoded[place]))
        texts = [""] * len(sources)
        with seeded(how.seed, self.core.device):
            for first in range(0, len(order), how.batch_size):
                places = order[first : first + how.batch_size]
                found = self._write(writer, [encoded[place] for place in places])
                for place, text in zip(places, decode_all(self.tokenizer, found), strict=True):
                    texts[place] = " ".join(text.split("\n")).strip()
                if tell is not None:
                    tell(len(places))
        return texts

    def source_ids(self, sources: Sequence[str]) -> list[TokenIds]:
        """What the model reads of sources, in token ids."""
        return self._encoder.sources([self.template.replace("{}", text) for text in sources])

    def samples(self, sources: Sequence[str], how: Writing) -> Candidates:
        """``how.samples`` draws ``[B, S]`` for each source of one batch, in token ids; an empty one is missing."""
        writer = Writer(how, self.causal, self._special)
        with seeded(how.seed, self.core.device):
            drawn = writer.samples(self.core, self._inputs(self.source_ids(sources)), how.samples)
        return drawn.texts

    def _inputs(self, sources: list[TokenIds]) -> dict[str, Tensor]:
        # a causal model continues its input, so that padding stands before it
        padded = padded_inputs(sources, self._special.pad, "left" if self.causal else "right")
        return {name: value.to(self.core.device) for name, value in padded.items()}

    def _write(self, writer: Writer, sources: list[TokenIds]) -> list[TokenIds]:
        inputs = self._inputs(sources)
        if writer.how.method == "sample":
            drawn = writer.samples(self.core, inputs, 1).texts
            return [row[0] if row else [] for row in drawn.sentences.unpack()]
        best = writer.best(self.core, inputs)
        if writer.how.method == "mbr":
            return writer.least_risk(self.core, inputs, best, self.reward(writer.how.reward))
        return best


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Transformers draw from torch's own generators.

    Within the block from this seed, afterwards from where they were.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class Written(NamedTuple):
    """What a model wrote for some rows in evaluation."""

    best: list[TokenIds]
    rewards: Tensor
    """Of the most probable texts, mean over references, float64 ``[B]``."""
    mbr_rewards: Tensor
    """Of the texts of minimum Bayes risk; those of the most probable texts without draws."""
    seconds: float
    """Of the search for the most probable texts."""
    mbr_seconds: float
    """Of that search, the draws and the choice among them; 0 without draws."""


def write_and_score(
    writer: Writer,
    core: Any,
    inputs: Mapping[str, Any],
    references: Sequence[Sequence[TokenIds]],
    reward: Reward,
) -> Written:
    """Most probable texts and, if they are asked for, texts of minimum Bayes risk, with their rewards; special tokens do not count."""
    # rows without references have one that is empty, for rewards that do not look at it
    contents = [
        [strip_specials(text, writer.special.ids)[0] for text in row or [[]]] for row in references
    ]
    start = time.perf_counter()
    best = writer.best(core, inputs)
    seconds = time.perf_counter() - start
    rewards = mean_rewards(best, contents, reward)
    if not writer.how.samples:
        return Written(best, rewards, rewards, seconds, 0.0)
    start = time.perf_counter()
    chosen = writer.least_risk(core, inputs, best, reward)
    # the most probable text is among its choices
    mbr_seconds = seconds + time.perf_counter() - start
    return Written(best, rewards, mean_rewards(chosen, contents, reward), seconds, mbr_seconds)


def mean_rewards(
    texts: Sequence[TokenIds], references: Sequence[Sequence[TokenIds]], reward: Reward
) -> Tensor:
    """Reward of each text, mean over its references, float64 ``[B]``.

    In the place of references that are missing there is an empty one, for a reward that needs none.
    """
    refs = Sentences.pack([list(row) or [[]] for row in references])
    # [B, R], or [B, 1] for all together
    values = reward(*Sentences.pack([[text] for text in texts]), *refs).squeeze(1)
    if not reward.pairwise:
        return values.squeeze(1)
    return (values * refs.present).sum(1) / refs.present.sum(1)


def corpus_score(
    metric: CorpusMetric, texts: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """BLEU or chrF of all texts together, by sacreBLEU, in 0..100; nothing if none is asked for."""
    if metric == "none":
        return {}
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise DependencyError(
            "corpus metrics are sacreBLEU's: pip install 'softq[transformers]', or set"
            " corpus_metric none"
        ) from error
    widest = max(map(len, references))
    # one list for each place; a row with fewer references says its last again, which changes no
    # count
    streams = [[row[min(place, len(row) - 1)] for row in references] for place in range(widest)]
    scorer = BLEU() if metric == "bleu" else CHRF()
    return {metric: float(scorer.corpus_score(list(texts), streams).score)}
