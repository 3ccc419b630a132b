"""Any Python function of two sentences as a reward."""

from __future__ import annotations

import copy
import math
import multiprocessing
from collections.abc import Callable as Function
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from softq.errors import OutputError, RewardError
from softq.rewards.base import Reward, both_present
from softq.sentences import Sentences

_PAIRS_PER_CALL = 1024  # of a worker process


class Callable(Reward):
    """A Python function of a candidate and a reference: a metric from another package, a learned one, a rule of your own.

    Args:
        function: takes two token lists and returns a number; with ``decode`` two strings; with ``batched`` two lists of
            those, pair by pair, and returns as many numbers. NaN and infinities are errors.
        decode: turns a token list into a string (such as a tokenizer's ``decode``), or the text of each token number, to be joined
            by spaces.
        batched: whether the function takes many pairs at once.
        workers: processes that share the work; 0 calls the function here. They are started by spawning, so the function must be one
            that can be imported by name. Close them with `close` or a ``with`` block; else they end with the reward.
        name: goes into the signature; the function's own name if not given.
        bound: largest difference between two rewards, if you know it.

    >>> def same_first_word(candidate, reference):
    ...     return float(candidate[:1] == reference[:1])
    >>> reward = Callable(same_first_word, bound=1.0)
    >>> reward(*Sentences.pack([[[1, 2], [3]]]), *Sentences.pack([[[1, 9]]])).squeeze()
    tensor([1., 0.], dtype=torch.float64)

    """

    def __init__(
        self,
        function: Function[..., Any],
        *,
        decode: Function[[list[int]], str] | Sequence[str] | None = None,
        batched: bool = False,
        workers: int = 0,
        name: str | None = None,
        bound: float = math.inf,
    ) -> None:
        if not callable(function):
            raise RewardError(f"a reward must be a function of a candidate and a reference, got {type(function).__name__}")
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise RewardError(f"workers must be a whole number from 0, got {workers!r}")
        if not bound > 0:
            raise RewardError(f"bound must be positive, got {bound}")
        self.function = function
        self.batched = batched
        self.workers = workers
        self.name = name or getattr(function, "__qualname__", type(function).__name__)
        self.decode = decode if decode is None or callable(decode) else _Joiner(decode)
        self._bound = float(bound)
        self._pools: list[ProcessPoolExecutor] = []  # one or none, the same for all that `with_values` makes
        self._more: list[Any] | None = None
        if workers:
            try:
                ForkingPickler.dumps((function, self.decode))
            except Exception as error:  # whatever stands in the way, it cannot be sent to a process
                raise RewardError(
                    f"with workers the function {self.name!r} goes to other processes, and {error}; "
                    "define it at the top of a module, or use workers=0"
                ) from error

    @property
    def signature(self) -> str:
        return f"callable:{self.name}"

    @property
    def bound(self) -> float:
        return self._bound

    def with_values(self, values: Sequence[Any]) -> Callable:
        """The same reward for examples that have something more, one value each, which the function takes as its third argument.

        >>> def ends_as_asked(candidate, reference, last):
        ...     return float(candidate[-1] == last)
        >>> reward = Callable(ends_as_asked).with_values([2, 4])
        >>> reward(*Sentences.pack([[[1, 2]], [[3, 2]]]), *Sentences.pack([[[1]], [[3]]])).squeeze()
        tensor([1., 0.], dtype=torch.float64)

        """
        found = copy.copy(self)
        found._more = list(values)
        return found

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        there = both_present(candidates, references)
        if self._more is not None and len(self._more) != len(there):
            raise RewardError(f"with_values needs a value for each of {len(there)} examples, got {len(self._more)}")
        pairs = there.nonzero().tolist()
        cands, refs = candidates.tokens.tolist(), references.tokens.tolist()
        lengths, ref_lengths = candidates.lengths.tolist(), references.lengths.tolist()
        left = [cands[b][s][: lengths[b][s]] for b, s, _ in pairs]
        right = [refs[b][r][: ref_lengths[b][r]] for b, _, r in pairs]
        more = None if self._more is None else [self._more[b] for b, _, _ in pairs]
        values = np.array(self._values(left, right, more), dtype=np.float64)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            b, s, r = pairs[bad[0]]
            raise RewardError(
                f"the reward {self.name!r} must return finite numbers, got {values[bad[0]]} for example {b}, candidate {s}, reference {r}"
            )
        out = torch.zeros(there.shape, dtype=torch.float64)
        out[there.cpu()] = torch.from_numpy(values)
        return out.to(there.device)

    def _values(self, left: list[list[int]], right: list[list[int]], more: list[Any] | None) -> list[float]:
        if not left:
            return []
        task = self.function, self.decode, self.batched, self.name
        columns = (left, right) if more is None else (left, right, more)
        if not self.workers:
            return _call((*task, *columns))
        size = max(1, min(_PAIRS_PER_CALL, -(-len(left) // self.workers)))
        jobs = [(*task, *(column[i : i + size] for column in columns)) for i in range(0, len(left), size)]
        return [value for part in self._start().map(_call, jobs) for value in part]

    def _start(self) -> ProcessPoolExecutor:
        if not self._pools:
            self._pools.append(ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("spawn")))
        return self._pools[0]

    def close(self) -> None:
        """End the worker processes; a later call starts new ones."""
        while self._pools:
            self._pools.pop().shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Joiner:
    """Token numbers to words with spaces between them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)

    def __call__(self, tokens: list[int]) -> str:
        bad = [token for token in tokens if not 0 <= token < len(self.words)]
        if bad:
            raise OutputError(f"token numbers must lie in 0..{len(self.words) - 1} to have a word, got {bad[0]}")
        return " ".join(self.words[token] for token in tokens)


def _call(job: tuple[Any, ...]) -> list[float]:
    """Values of the pairs of one job; at the top of the module, so that worker processes can import it."""
    function, decode, batched, name, left, right, *more = job
    if decode is not None:
        seen: dict[tuple[int, ...], str] = {}  # the same reference comes with every candidate

        def text(tokens: list[int]) -> str:
            key = tuple(tokens)
            if key not in seen:
                seen[key] = decode(tokens)
            return seen[key]

        left, right = [text(tokens) for tokens in left], [text(tokens) for tokens in right]
    if batched:
        found = function(left, right, *more)
        try:
            values = list(found)
        except TypeError as error:
            raise RewardError(f"the batched reward {name!r} must return one number per pair, got {type(found).__name__}") from error
    else:
        values = [function(*given) for given in zip(left, right, *more, strict=True)]
    if len(values) != len(left):
        raise RewardError(f"the batched reward {name!r} must return one number per pair, got {len(values)} for {len(left)} pairs")
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise RewardError(f"the reward {name!r} must return numbers: {error}") from error
