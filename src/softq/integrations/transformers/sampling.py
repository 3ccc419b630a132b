"""Samples of a model to train on: by Transformers in several ways, or by a server of the user's own."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softq.errors import DependencyError, ModelError
from softq.integrations.text_rows import is_number, plain
from softq.integrations.transformers.tokens import SpecialTokens, TokenIds, strip_specials
from softq.neural.generation import evaluating
from softq.sentences import MISSING, Sentences
from softq.spaces import Candidates

logger = logging.getLogger(__name__)

Generate = Callable[[list[TokenIds], int, int], Sequence[Sequence[Any]]]
"""Called as ``generate(prompts, samples, seed)``: lists of token ids, samples for each, a seed.

It returns a list for each prompt, with a pair for each sample: token ids, including the end-of-text
token if the model ended the text, and their log-probabilities, one for each or their sum, under the
distribution that was sampled from.
"""


class Samples(NamedTuple):
    """Texts that a model sampled."""

    texts: Candidates
    """``[B, S]``, without special tokens at their ends; an empty one is missing. ``log_model`` are
    log-probabilities where whoever generated them gave any."""
    exact: Tensor
    """Bool ``[B, S]``: those that the model ended, and that nothing but that end was removed from."""

    def finished(self) -> Candidates:
        """The texts without those that are not exact."""
        lengths = self.texts.lengths.masked_fill(~self.exact, MISSING)
        return Candidates(self.texts.tokens, lengths, log_model=self.texts.log_model)


class GeneratedRow(NamedTuple):
    """What a model generated for one row: token ids, their log-probability if it is known."""

    tokens: TokenIds
    log_prob: float | None = None


def as_samples(
    rows: Sequence[GeneratedRow],
    size: int,
    special: SpecialTokens,
    most: int,
    start: TokenIds = (),  # type: ignore[assignment]  # none
) -> Samples:
    """Texts ``[B, size]`` from what was generated.

    Args:
        rows: ``B · size`` of them, those of a prompt together.
        size: samples for each prompt.
        special: tokens that are no text.
        most: tokens that there was room for; the last place says nothing, as some models are made
            to end there.
        start: special tokens that a text begins with.

    """
    texts, exact = [], []
    for tokens, _ in rows:
        stop = next((i for i, token in enumerate(tokens) if token in special.ends), len(tokens))
        text, around = strip_specials(tokens[:stop], special.ids)
        texts.append(text)
        exact.append(
            bool(text)
            and stop < min(len(tokens), most - 1)
            and around.before == list(start)
            and not around.after
        )
    packed = Sentences.pack([texts[i : i + size] for i in range(0, len(texts), size)])
    lengths = packed.lengths.masked_fill(packed.lengths == 0, MISSING)
    known = [row.log_prob for row in rows]
    log_model = None
    if rows and all(value is not None for value in known):
        log_model = torch.tensor(known, dtype=torch.float64).view(-1, size)
    return Samples(
        Candidates(packed.tokens, lengths, log_model=log_model), torch.tensor(exact).view(-1, size)
    )


def ask(generate: Generate, prompts: list[TokenIds], size: int, seed: int) -> list[GeneratedRow]:
    """What a user's own function generates, checked."""
    found = generate(prompts, size, seed)
    if not _is_list(found) or len(found) != len(prompts):
        got = f"{len(found)}" if _is_list(found) else type(found).__name__
        raise ModelError(
            f"generate must return a list for each of {len(prompts)} prompts, got {got}"
        )
    rows = []
    for place, samples in enumerate(found):
        if not _is_list(samples) or len(samples) != size:
            got = f"{len(samples)}" if _is_list(samples) else type(samples).__name__
            raise ModelError(
                f"generate must return {size} samples for each prompt, got {got} for prompt {place}"
            )
        rows += [_checked(sample, place) for sample in samples]
    return rows


def _checked(sample: Any, place: int) -> GeneratedRow:
    """A pair of token ids and log-probabilities."""
    tokens, log_probs = (
        map(plain, sample) if _is_list(sample) and len(sample) == 2 else (None, None)
    )
    listed: list[Any] = log_probs if isinstance(log_probs, list) else [log_probs]
    if (
        not isinstance(tokens, list)
        or not all(isinstance(token, int) and token >= 0 for token in tokens)
        or not all(is_number(value) and value <= 1e-3 for value in listed)
        or (isinstance(log_probs, list) and len(log_probs) != len(tokens))
    ):
        raise ModelError(
            "a sample of generate must be a pair: a list of token ids, and a finite log-probability"
            f" for each or their sum, got {sample!r} for prompt {place}"
        )
    return GeneratedRow(tokens, math.fsum(listed))


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


class Generator:
    """Samples by Transformers' own ``generate``.

    Args:
        mode: ``eager``, ``static``, ``compiled`` or ``continuous``; where it fails, ``eager`` takes
            its place, with a warning.

    """

    def __init__(self, mode: str = "eager") -> None:
        self.mode = mode

    def __call__(self, core: Any, inputs: Mapping[str, Any], **options: Any) -> list[TokenIds]:
        """What the model generates for each row of ``inputs``, padded with anything."""
        if self.mode != "eager":
            try:
                return self._fast(core, inputs, options)
            except torch.OutOfMemoryError:  # which says nothing of the mode
                raise
            except (
                *(AttributeError, ImportError, KeyError, NotImplementedError),
                *(RuntimeError, TypeError, ValueError, DependencyError),
            ) as error:
                logger.warning(
                    "%s cannot generate in mode %r, and does as usual: %s: %s",
                    *(type(core).__name__, self.mode, type(error).__name__, error),
                )
                self.mode = "eager"
        return _generate(core, inputs, options)

    def _fast(
        self, core: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[TokenIds]:
        if self.mode == "continuous":
            return _continuous(core, inputs, options)
        if self.mode == "compiled" and core.device.type == "cpu":
            raise DependencyError("Transformers compiles decoding on a GPU alone")
        static = {"cache_implementation": "static", "disable_compile": self.mode == "static"}
        return _generate(core, inputs, {**options, **static})


def _generate(core: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> list[TokenIds]:
    with evaluating(core):
        sequences = core.generate(**inputs, **options)
    # an encoder-decoder's text begins with its start token
    first = 1 if core.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    return sequences[:, first:].tolist()  # type: ignore[no-any-return]


def _continuous(core: Any, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> list[TokenIds]:
    if core.config.is_encoder_decoder:
        raise DependencyError("continuous batching is for causal models")
    from transformers import GenerationConfig

    prompts = prompts_of(inputs)
    settings = GenerationConfig(**options, eos_token_id=core.generation_config.eos_token_id)
    with evaluating(core):
        found = core.generate_batch(prompts, generation_config=settings, progress_bar=False)
    rows = [output.generated_tokens for output in found.values() if output.error is None]
    if len(rows) != len(prompts) * options["num_return_sequences"]:
        raise RuntimeError(f"it returned {len(rows)} texts for {len(prompts)} prompts")
    return rows


def prompts_of(inputs: Mapping[str, Any]) -> list[TokenIds]:
    """Token ids without padding."""
    mask = inputs["attention_mask"].bool()
    return [row[seen].tolist() for row, seen in zip(inputs["input_ids"], mask, strict=True)]
