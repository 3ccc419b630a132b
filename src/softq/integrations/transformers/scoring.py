"""Log-probabilities of candidates under a Transformers model, with what they share computed once.

An encoder-decoder reads each source once: a hook on its decoder repeats what the encoder said for
every candidate, as a tensor that linear layers see through, so that the decoder's keys and values
of a source are computed once as well. A causal model reads prompt and candidates as one row in
which candidates do not see each other. Both are one call of the model as it was handed over, so
that autocast, compilation, gradient checkpointing, adapters and distributed wrappers work as they
do for any other loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softq.integrations.transformers.tokens import IGNORED

# before, torch.compile does not follow a tensor of another class
_TRACED = torch.__version__ >= "2.8"
# what a decoder is given of its source
_STATES, _MASK = (
    "encoder_hidden_states",
    "encoder_attention_mask",
)


class ScoredCandidates(NamedTuple):
    """Candidates to be scored, ``[B, K, T]``.

    Token ids as the model reads and writes them, special ones included.
    """

    tokens: Tensor
    lengths: Tensor
    """``[B, K]``; -1: missing."""
    known_places: Tensor | None = None
    """What `places` are, found out before the candidates went to a GPU, so that nobody waits for it."""

    def places(self) -> Tensor:
        """Where among the ``B·K`` candidates those stand that are not missing, ``[N]``."""
        return (
            (self.lengths.flatten() >= 0).nonzero()[:, 0]
            if self.known_places is None
            else self.known_places
        )

    def spread(self, values: Tensor) -> Tensor:
        """A value for each of those that are not missing ``[N]`` in its place, ``[B, K]``, and 0 in the others."""
        return (
            values.new_zeros(self.lengths.numel())
            .index_copy(0, self.places(), values)
            .view(self.lengths.shape)
        )

    def to(self, device: torch.device | str) -> ScoredCandidates:
        """The same on another device."""
        parts = (self.tokens, self.lengths, self.places())
        return ScoredCandidates(*(part.to(device, non_blocking=True) for part in parts))

    @property
    def real(self) -> Tensor:
        """Which tokens are there, bool ``[B, K, T]``."""
        return torch.arange(
            self.tokens.shape[2], device=self.tokens.device
        ) < self.lengths.unsqueeze(2)


def encoder_decoder_log_probs(
    model: nn.Module,
    core: Any,
    inputs: Mapping[str, Any],
    scored: ScoredCandidates,
    *,
    shared: bool,
) -> Tensor:
    """Log-probabilities log P(y_s | x) of all candidates, float32 ``[B, K]``, 0 of those that are missing.

    Args:
        model: what is called, with whatever wraps it.
        core: the Transformers model inside.
        inputs: of the model, without labels.
        scored: the candidates.
        shared: whether the source is read once; else it is repeated for every candidate.

    """
    places = scored.places()
    owners = places // scored.lengths.shape[1]  # [N]: of which source each candidate is
    labels = scored.tokens.masked_fill(~scored.real, IGNORED).flatten(0, 1)[places]  # [N, T]
    decoder_input_ids = core.prepare_decoder_input_ids_from_labels(labels=labels)
    if shared:
        complete = len(places) == scored.lengths.numel()
        hook = _repeat_sources if complete else partial(_choose_sources, owners)
        with core.get_decoder().register_forward_pre_hook(hook, with_kwargs=True):
            logits = model(**inputs, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    else:
        repeated = {
            name: value.index_select(0, owners) if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }
        logits = model(**repeated, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    return scored.spread(_token_log_probs(logits, labels).sum(1))


def _repeat_sources(
    _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Each of B sources K times in a row, for B·K candidates.

    It knows shapes alone, so that what was compiled with it stays right.
    """
    texts = len(_by_name("input_ids", kwargs))
    return args, {
        **kwargs,
        **_for_candidates(
            kwargs, lambda sources: sources.repeat_interleave(texts // len(sources), 0)
        ),
    }


def _choose_sources(
    owners: Tensor, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Source ``owners[n]`` for candidate n."""
    return args, {
        **kwargs,
        **_for_candidates(kwargs, lambda sources: sources.index_select(0, owners)),
    }


def _for_candidates(
    given: Mapping[str, Any], to_candidates: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """What a decoder is given of its sources, a row for every candidate."""
    sources = _by_name(_STATES, given)
    repeated = to_candidates(sources)
    if _TRACED or not torch.compiler.is_compiling():
        repeated = repeated.as_subclass(_Repeated)
        repeated.sources, repeated.to_candidates = sources, to_candidates
    mask = given.get(_MASK)
    return {_STATES: repeated} if mask is None else {_STATES: repeated, _MASK: to_candidates(mask)}


def _by_name(name: str, given: Mapping[str, Any]) -> Tensor:
    found: Tensor | None = given.get(name)
    if found is None:
        raise ValueError(f"its decoder is not given {name} by name")
    return found


class _Repeated(Tensor):
    """A row of its source for every candidate.

    What a linear layer would make of it, such as the keys and values of a decoder's attention, it
    makes of the sources, and that is repeated. To all else this is a tensor like others.
    """

    sources: Tensor
    to_candidates: Callable[[Tensor], Tensor]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Called by torch in place of a function of it."""
        if function is nn.functional.linear and args and isinstance(args[0], cls):
            return args[0].to_candidates(function(args[0].sources, *args[1:], **(kwargs or {})))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def causal_log_probs(
    model: nn.Module,
    core: Any,
    prompts: Mapping[str, Tensor],
    scored: ScoredCandidates,
    *,
    shared: bool,
) -> Tensor:
    """Log-probabilities log P(y_s | prompt) of all candidates, float32 ``[B, K]``, 0 of those that are missing; see above."""
    _, size, width = scored.tokens.shape
    if shared and fits_one_row(core, prompts, scored):
        return _in_one_row(model, core, prompts, scored)
    places = scored.places()
    owners = places // size
    tokens, real = scored.tokens.flatten(0, 1)[places], scored.real.flatten(0, 1)[places]  # [N, T]
    mask = torch.cat([prompts["attention_mask"].index_select(0, owners), real.long()], 1)
    logits = model(
        input_ids=torch.cat([prompts["input_ids"].index_select(0, owners), tokens], 1),
        attention_mask=mask,
        use_cache=False,
        **_accepted(core, position_ids=(mask.cumsum(1) - 1).clamp(min=0), logits_to_keep=width + 1),
    ).logits[:, -width - 1 : -1]
    return scored.spread(_token_log_probs(logits, tokens.masked_fill(~real, IGNORED)).sum(1))


def fits_one_row(core: Any, prompts: Mapping[str, Tensor], scored: ScoredCandidates) -> bool:
    """Whether a model that looks back a certain number of places, or not beyond a chunk of them, sees the whole row.

    Else it would count the candidates in between, or forget its limit where it is told what to see.
    """
    config = (
        core.config.get_text_config() if hasattr(core.config, "get_text_config") else core.config
    )
    limits = [
        getattr(config, name, None)
        for name in ("sliding_window", "attention_chunk_size", "window_size")
    ]
    (_, size, width), prompt = scored.tokens.shape, prompts["input_ids"].shape[1]
    return all(prompt + size * width <= limit for limit in limits if isinstance(limit, int))


def one_row_is_less(prompts: Mapping[str, Tensor], scored: ScoredCandidates) -> bool:
    """Whether there are fewer tokens to read if the prompt stands once for all its candidates, of which missing ones leave gaps."""
    (batch, size, width), prompt = scored.tokens.shape, prompts["input_ids"].shape[1]
    return batch * (prompt + size * width) <= len(scored.places()) * (prompt + width)


def _in_one_row(
    model: nn.Module, core: Any, prompts: Mapping[str, Tensor], scored: ScoredCandidates
) -> Tensor:
    batch, size, width = scored.tokens.shape
    known = prompts["attention_mask"].bool()  # [B, P]
    lengths = known.sum(1, keepdim=True)
    # [K·T]: place within its candidate
    step = torch.arange(width, device=lengths.device).repeat(size)
    # padding stands at 0, since a model may have no positions beyond those of its texts
    own = (lengths + step) * scored.real.reshape(batch, size * width)
    positions = torch.cat([(known.cumsum(1) - 1).clamp(min=0), own], 1)
    logits = model(
        input_ids=torch.cat([prompts["input_ids"], scored.tokens.reshape(batch, size * width)], 1),
        attention_mask=_row_mask(known, scored, core.dtype),
        position_ids=positions,
        use_cache=False,
        **_accepted(core, logits_to_keep=size * width + 1),
    ).logits[:, -size * width - 1 :]
    # The prompt's last word says the first of every candidate; the rest are said by the word before
    # them.
    # [B, K]
    first = torch.log_softmax(logits[:, 0].float(), 1).gather(
        1, scored.tokens[:, :, 0].clamp(min=0)
    )
    following = scored.tokens.masked_fill(~scored.real, IGNORED)[:, :, 1:]
    labels = nn.functional.pad(following, (0, 1), value=IGNORED).reshape(batch, size * width)
    rest = _token_log_probs(logits[:, 1:], labels).reshape(batch, size, width).sum(2)
    # an empty one is certain, as there is no end to be said
    return (first + rest).masked_fill(scored.lengths < 1, 0.0)


def _row_mask(known: Tensor, scored: ScoredCandidates, dtype: torch.dtype) -> Tensor:
    """What each place of a row may look at, to be added to attention scores ``[B, 1, P + K·T, P + K·T]``."""
    batch, size, width = scored.tokens.shape
    prompt = known.shape[1]
    place = torch.arange(prompt + size * width, device=known.device)
    candidate = torch.where(place < prompt, -1, (place - prompt) // width)  # -1: the prompt
    # [L, L]: own candidate, or the prompt
    same = (candidate.unsqueeze(1) == candidate) | (candidate == -1)
    real = torch.cat([known, scored.real.reshape(batch, size * width)], 1)  # [B, L]
    seen = same & (place.unsqueeze(1) >= place) & real.unsqueeze(1)  # [B, L, L]
    # padding looks at itself: a softmax needs something
    seen |= torch.eye(len(place), dtype=torch.bool, device=known.device)
    return (
        torch.zeros(seen.shape, dtype=dtype, device=known.device)
        .masked_fill(~seen, torch.finfo(dtype).min)
        .unsqueeze(1)
    )


def _token_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each label, float32 ``[N, T]``, 0 where it is `IGNORED`.

    Logits ``[N, T, V]``.
    """
    loss = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return -loss.view(labels.shape)


def _accepted(core: Any, **arguments: Any) -> dict[str, Any]:
    """Those arguments that the model's forward has by name."""
    names = inspect.signature(core.forward).parameters
    return {name: value for name, value in arguments.items() if name in names}
