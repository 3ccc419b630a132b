"""Candidates for the next batches, made while the model works on this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from types import TracebackType
from typing import Generic, Self, TypeVar

import torch

from softq.errors import SamplerError

Batch = TypeVar("Batch")
Made = TypeVar("Made")


class CandidateStream(Generic[Batch, Made]):
    """Iterates over batches with ``prepare(batch, generator)`` done ahead, in order, in threads.

    The kernels of samplers and rewards run without Python's lock, so that they work beside a training loop. Each thread works alone:
    neither torch's operations nor kernels are split among further ones. At most ``ahead`` batches are prepared or in preparation beside
    the one that was handed out. Batch i always gets the generator seeded by (seed, i): what comes out does not depend on the number of
    workers. An error in ``prepare`` or in the batches comes up where that batch would have come. On an error, and on leaving the ``with``
    block for any reason, Ctrl-C among them, preparations not yet begun are dropped and the threads end. One pass only.

    Args:
        batches: anything that can be iterated; it is read in the calling thread, a little ahead.
        prepare: makes what the training loop needs; it must not depend on anything it changes itself.
        seed: of all randomness.
        workers: threads.
        ahead: bound on batches prepared or in preparation.

    >>> import softq
    >>> sampler, bleu = softq.samplers.NgramReplacement(1000, size=8), softq.rewards.SentenceBLEU()
    >>> def prepare(refs, generator):
    ...     return softq.raml(sampler(refs, generator=generator), refs, tau=0.5, reward=bleu)
    >>> with CandidateStream([[[1, 2, 3]], [[4, 5]]], prepare, seed=1) as stream:
    ...     [target.outputs.tokens.shape for target in stream]
    [torch.Size([1, 8, 3]), torch.Size([1, 8, 2])]
    >>> with CandidateStream([1, 2], lambda batch, generator: torch.get_num_threads(), seed=1, workers=2) as stream:
    ...     list(stream)
    [1, 1]

    """

    def __init__(
        self, batches: Iterable[Batch], prepare: Callable[[Batch, torch.Generator], Made], *, seed: int, workers: int = 1, ahead: int = 4
    ) -> None:
        for name, value in (("workers", workers), ("ahead", ahead)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SamplerError(f"{name} must be a whole number from 1, got {value!r}")
        self._batches = iter(batches)
        self._prepare = prepare
        self._seed = seed
        self._ahead = ahead
        self._pool = ThreadPoolExecutor(
            workers, thread_name_prefix="softq-candidates", initializer=_work_alone, initargs=(torch.get_num_threads(),)
        )
        self._waiting: deque[Future[Made]] = deque()
        self._next = 0
        self._closed = False
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[Made]:
        return self

    def __next__(self) -> Made:
        if self._closed:
            raise StopIteration
        try:
            self._fill()
            if self._waiting:
                made = self._result(self._waiting.popleft())
                self._fill()  # so that the threads have work while the caller is at this batch
                return made
            if self._failure is not None:
                raise self._failure
        except BaseException:  # Ctrl-C among them; one that comes between two batches is for the ``with`` block
            self.close()
            raise
        self.close()
        raise StopIteration

    def _result(self, future: Future[Made]) -> Made:
        try:
            return future.result()
        except StopIteration as error:  # it would pass for the end of the stream
            raise RuntimeError("prepare raised StopIteration") from error

    def close(self) -> None:
        """Drop what has not begun, wait for what has, and end the threads."""
        self._closed = True
        self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _fill(self) -> None:
        while len(self._waiting) < self._ahead and self._failure is None:
            try:
                batch = next(self._batches)
            except StopIteration:
                return
            except Exception as error:
                self._failure = error
                return
            generator = torch.Generator().manual_seed(batch_seed(self._seed, self._next))
            self._next += 1
            self._waiting.append(self._pool.submit(self._prepare, batch, generator))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _work_alone(others: int) -> None:
    """Let torch and kernels use no further threads for what this thread does; threads to come have ``others`` as before.

    Every thread has helpers of its own: workers · cores of them would wait for a core, and those of a kernel for Python's lock.
    """
    torch.get_num_threads()  # the first call in a thread sets what new threads have, and must not come after the next one
    torch.set_num_threads(1)  # of this thread, and of threads to come
    restore = Thread(target=torch.set_num_threads, args=(others,))
    restore.start()
    restore.join()


def batch_seed(seed: int, index: int) -> int:
    """A seed for batch ``index``, so that neighbours and neighbouring seeds share nothing (splitmix64).

    >>> batch_seed(1, 0) == batch_seed(0, 1)
    False
    """
    word = (1 << 64) - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        return z ^ (z >> 31)

    return mix((mix(seed & word) + (index + 1) * 0x9E3779B97F4A7C15) & word)
