"""Log-probabilities of candidates under a Transformers model, with what they share computed once.

An encoder-decoder reads each source once: a hook on its decoder repeats what the encoder said for every candidate. A causal model reads
prompt and candidates as one row in which candidates do not see each other. Both are one call of the model as it was handed over, so that
autocast, compilation, gradient checkpointing, adapters and distributed wrappers work as they do for any other loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

IGNORED = -100  # label of a position that has none

_REPEATED = ("encoder_hidden_states", "encoder_attention_mask")  # what a decoder is given of its source


class Scored(NamedTuple):
    """Candidates to be scored, ``[B, K, T]``: token numbers as the model reads and writes them, special ones included."""

    tokens: Tensor
    lengths: Tensor
    """``[B, K]``; -1: missing."""

    @property
    def real(self) -> Tensor:
        """Which tokens are there, bool ``[B, K, T]``."""
        return torch.arange(self.tokens.shape[2], device=self.tokens.device) < self.lengths.unsqueeze(2)


class Prompts(NamedTuple):
    """What a causal model is given, padded on the left: ``[B, P]`` and its mask."""

    input_ids: Tensor
    attention_mask: Tensor


def encoder_decoder_log_probs(model: nn.Module, core: Any, inputs: Mapping[str, Any], scored: Scored, *, shared: bool) -> Tensor:
    """Log-probabilities log P(y_s | x) of all candidates, float32 ``[B, K]``, 0 of those that are missing.

    Args:
        model: what is called, with whatever wraps it.
        core: the Transformers model inside.
        inputs: of the model, without labels.
        scored: the candidates.
        shared: whether the source is read once; else it is repeated for every candidate.

    """
    batch, size, width = scored.tokens.shape
    labels = scored.tokens.masked_fill(~scored.real, IGNORED).flatten(0, 1)  # [B·K, T]
    decoder_input_ids = core.prepare_decoder_input_ids_from_labels(labels=labels)
    if shared:
        with _decoder_repeats_sources(core.get_decoder()):
            logits = model(**inputs, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    else:
        repeated = {name: value.repeat_interleave(size, 0) if isinstance(value, Tensor) else value for name, value in inputs.items()}
        logits = model(**repeated, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    return token_log_probs(logits, labels).view(batch, size, width).sum(2)


@contextmanager
def _decoder_repeats_sources(decoder: nn.Module) -> Iterator[None]:
    """While it lasts, a decoder that is given B sources and B·K texts takes each source for K texts in a row."""
    handle = decoder.register_forward_pre_hook(_repeat_sources, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _repeat_sources(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # It knows nothing but shapes, so that what was compiled with it, or without it, stays right.
    texts = len(kwargs["input_ids"])
    given = {name: kwargs[name] for name in _REPEATED if kwargs.get(name) is not None}
    return args, kwargs | {name: value.repeat_interleave(texts // len(value), 0) for name, value in given.items() if len(value) != texts}


def causal_log_probs(model: nn.Module, core: Any, prompts: Prompts, scored: Scored, *, shared: bool) -> Tensor:
    """Log-probabilities log P(y_s | prompt) of all candidates, float32 ``[B, K]``, 0 of those that are missing; see above."""
    if shared:
        return _in_one_row(model, core, prompts, scored)
    batch, size, width = scored.tokens.shape
    tokens, real = scored.tokens.flatten(0, 1), scored.real.flatten(0, 1)  # [B·K, T]
    mask = torch.cat([prompts.attention_mask.repeat_interleave(size, 0), real.long()], 1)
    logits = model(
        input_ids=torch.cat([prompts.input_ids.repeat_interleave(size, 0), tokens], 1),
        attention_mask=mask,
        use_cache=False,
        **_accepted(core, position_ids=(mask.cumsum(1) - 1).clamp(min=0), logits_to_keep=width + 1),
    ).logits[:, -width - 1 : -1]
    return token_log_probs(logits, tokens.masked_fill(~real, IGNORED)).view(batch, size, width).sum(2)


def _in_one_row(model: nn.Module, core: Any, prompts: Prompts, scored: Scored) -> Tensor:
    batch, size, width = scored.tokens.shape
    known = prompts.attention_mask.bool()  # [B, P]
    lengths = known.sum(1, keepdim=True)
    step = torch.arange(width, device=lengths.device).repeat(size)  # [K·T]: place within its candidate
    positions = torch.cat([(known.cumsum(1) - 1).clamp(min=0), lengths + step], 1)
    logits = model(
        input_ids=torch.cat([prompts.input_ids, scored.tokens.reshape(batch, size * width)], 1),
        attention_mask=_row_mask(known, scored, core.dtype),
        position_ids=positions,
        use_cache=False,
        **_accepted(core, logits_to_keep=size * width + 1),
    ).logits[:, -size * width - 1 :]
    # The prompt's last word says the first of every candidate; the rest are said by the word before them.
    first = torch.log_softmax(logits[:, 0].float(), 1).gather(1, scored.tokens[:, :, 0].clamp(min=0))  # [B, K]
    following = scored.tokens.masked_fill(~scored.real, IGNORED)[:, :, 1:]
    labels = nn.functional.pad(following, (0, 1), value=IGNORED).reshape(batch, size * width)
    rest = token_log_probs(logits[:, 1:], labels).reshape(batch, size, width).sum(2)
    return (first + rest).masked_fill(scored.lengths < 1, 0.0)  # an empty one is certain, as there is no end to be said


def _row_mask(known: Tensor, scored: Scored, dtype: torch.dtype) -> Tensor:
    """What each place of a row may look at, to be added to attention scores ``[B, 1, P + K·T, P + K·T]``."""
    batch, size, width = scored.tokens.shape
    prompt = known.shape[1]
    place = torch.arange(prompt + size * width, device=known.device)
    candidate = torch.where(place < prompt, -1, (place - prompt) // width)  # -1: the prompt
    same = (candidate.unsqueeze(1) == candidate) | (candidate == -1)  # [L, L]: own candidate, or the prompt
    real = torch.cat([known, scored.real.reshape(batch, size * width)], 1)  # [B, L]
    seen = same & (place.unsqueeze(1) >= place) & real.unsqueeze(1)  # [B, L, L]
    seen |= torch.eye(len(place), dtype=torch.bool, device=known.device)  # padding looks at itself: a softmax needs something
    return torch.zeros(seen.shape, dtype=dtype, device=known.device).masked_fill(~seen, torch.finfo(dtype).min).unsqueeze(1)


def token_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each label, float32 ``[N, T]``, 0 where it is `IGNORED`; logits ``[N, T, V]``."""
    loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return -loss.view(labels.shape)


def _accepted(core: Any, **arguments: Any) -> dict[str, Any]:
    """Those arguments that the model's forward has by name."""
    names = inspect.signature(core.forward).parameters
    return {name: value for name, value in arguments.items() if name in names}
