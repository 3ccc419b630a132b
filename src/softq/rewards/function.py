"""Any Python function of two sentences as a reward."""

from __future__ import annotations

import copy
import math
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.checks import check_count
from softq.errors import OutputError, RewardError
from softq.rewards.base import Reward, both_present
from softq.sentences import Sentences

_PAIRS_PER_CALL = 1024  # of a worker process


class FromFunction(Reward, AbstractContextManager["FromFunction"]):
    """A Python function of a candidate and a reference.

    A metric from another package, a learned one, a rule of your own.

    Args:
        function: takes two token lists and returns a number; with ``decode`` two strings; with
            ``batched`` two lists of those, pair by pair, and returns as many numbers. NaN and
            infinities are errors.
        decode: turns a token list into a string (such as a tokenizer's ``decode``), or the text of
            each token number, to be joined by spaces.
        batched: whether the function takes many pairs at once.
        workers: processes that share the work; 0 calls the function here. They are started by
            spawning, so the function must be one that can be imported by name. Close them with
            `close` or a ``with`` block; else they end with the reward.
        name: goes into the signature; the function's own name if not given.
        bound: largest difference between two rewards, if you know it.

    >>> def same_first_word(candidate, reference):
    ...     return float(candidate[:1] == reference[:1])
    >>> reward = FromFunction(same_first_word, bound=1.0)
    >>> reward(*Sentences.pack([[[1, 2], [3]]]), *Sentences.pack([[[1, 9]]])).squeeze()
    tensor([1., 0.], dtype=torch.float64)

    """

    bound = math.inf

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        decode: Callable[[list[int]], str] | Sequence[str] | None = None,
        batched: bool = False,
        workers: int = 0,
        name: str | None = None,
        bound: float = math.inf,
    ) -> None:
        if not callable(function):
            raise RewardError(
                "a reward must be a function of a candidate and a reference, "
                f"got {type(function).__name__}"
            )
        if not bound > 0:
            raise RewardError(f"bound must be positive, got {bound}")
        self.function, self.batched = function, batched
        self.workers = check_count("workers", workers, RewardError, least=0)
        self.name = name or getattr(function, "__qualname__", type(function).__name__)
        self.decode = decode if decode is None or callable(decode) else partial(_join, list(decode))
        self.bound = float(bound)
        # One or none, the same for all that `with_values` makes.
        self._pools: list[ProcessPoolExecutor] = []
        self._more: list[Any] | None = None
        if workers:
            try:
                ForkingPickler.dumps((function, self.decode))
            except Exception as error:  # whatever stands in the way, it cannot be sent to a process
                raise RewardError(
                    f"with workers the function {self.name!r} goes to other processes, "
                    f"and {error}; define it at the top of a module, or use workers=0"
                ) from error

    @property
    def signature(self) -> str:
        return f"callable:{self.name}"

    def with_values(self, values: Sequence[Any]) -> FromFunction:
        """The same reward for examples that have something more, one value each.

        The function takes it as its third argument.

        >>> def ends_as_asked(candidate, reference, last):
        ...     return float(candidate[-1] == last)
        >>> reward = FromFunction(ends_as_asked).with_values([2, 4])
        >>> reward(*Sentences.pack([[[1, 2]], [[3, 2]]]), *Sentences.pack([[[1]], [[3]]])).squeeze()
        tensor([1., 0.], dtype=torch.float64)

        """
        found = copy.copy(self)
        found._more = list(values)
        return found

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        there = both_present(candidates, references)
        if self._more is not None and len(self._more) != len(there):
            raise RewardError(
                f"with_values needs a value for each of {len(there)} examples, "
                f"got {len(self._more)}"
            )
        pairs = there.nonzero().tolist()
        cands, refs = candidates.tokens.tolist(), references.tokens.tolist()
        lengths, ref_lengths = candidates.lengths.tolist(), references.lengths.tolist()
        left = [cands[b][s][: lengths[b][s]] for b, s, _ in pairs]
        right = [refs[b][r][: ref_lengths[b][r]] for b, _, r in pairs]
        more = [] if self._more is None else [[self._more[b] for b, _, _ in pairs]]
        out = torch.zeros(there.shape, dtype=torch.float64)
        out[there.cpu()] = torch.from_numpy(np.array(self._values(left, right, *more), float))
        return out.to(there.device)

    def _values(self, *columns: list[Any]) -> list[float]:
        """Values of the pairs whose left sides, right sides and further values these are."""
        count = len(columns[0])
        if not count:
            return []
        task = self.function, self.decode, self.batched, self.name
        if not self.workers:
            return _call((*task, *columns))
        size = min(_PAIRS_PER_CALL, -(-count // self.workers))
        jobs = [
            (*task, *(column[i : i + size] for column in columns)) for i in range(0, count, size)
        ]
        if not self._pools:
            self._pools.append(
                ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("spawn"))
            )
        return [value for part in self._pools[0].map(_call, jobs) for value in part]

    def close(self) -> None:
        """End the worker processes; a later call starts new ones."""
        while self._pools:
            self._pools.pop().shutdown(cancel_futures=True)

    def __exit__(self, *raised: object) -> None:
        self.close()


def _join(words: Sequence[str], tokens: list[int]) -> str:
    """Token ids as words with spaces between them."""
    bad = [token for token in tokens if not 0 <= token < len(words)]
    if bad:
        raise OutputError(f"token ids must lie in 0..{len(words) - 1} to have a word, got {bad[0]}")
    return " ".join(words[token] for token in tokens)


def _call(job: tuple[Any, ...]) -> list[float]:
    """Values of the pairs of one job; here, so that worker processes can import it."""
    function, decode, batched, name, left, right, *more = job
    if decode is not None:
        text = cache(lambda key: decode([*key]))  # the same reference comes with every candidate
        left, right = ([text(tuple(tokens)) for tokens in side] for side in (left, right))
    values = (
        function(left, right, *more)
        if batched
        else [function(*given) for given in zip(left, right, *more, strict=True)]
    )
    kind = "batched reward" if batched else "reward"
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise RewardError(f"the {kind} {name!r} must return numbers: {error}") from error
    if len(numbers) != len(left):
        raise RewardError(
            f"the {kind} {name!r} must return one number per pair, "
            f"got {len(numbers)} for {len(left)} pairs"
        )
    return numbers
