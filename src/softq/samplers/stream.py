"""Candidates for the next batches, made while the model works on this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from threading import Thread
from typing import Generic, TypeVar

import numpy as np
import torch

from softq.checks import check_count
from softq.errors import SamplerError

Batch = TypeVar("Batch")
Made = TypeVar("Made")


class CandidateStream(
    Iterator[Made], AbstractContextManager["CandidateStream[Batch, Made]"], Generic[Batch, Made]
):
    """Iterates over batches with ``prepare(batch, generator)`` done ahead, in order, in threads.

    The kernels of samplers and rewards run without Python's lock, so that they work beside a
    training loop. Each thread works alone: neither torch's operations nor kernels are split among
    further ones. At most ``ahead`` batches are prepared or in preparation beside the one that was
    handed out. Batch i always gets the generator seeded by (seed, i): the candidates do not
    depend on the number of workers. An error in ``prepare`` or in the batches comes up where that
    batch would have come. On an error, and on leaving the ``with`` block for any reason, Ctrl-C
    among them, preparations not yet begun are dropped and the threads end. One pass only.

    Args:
        batches: anything that can be iterated; it is read in the calling thread, a little ahead.
        prepare: makes what the training loop needs; it must not depend on anything it changes
            itself.
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
    >>> def count_threads(batch, generator):
    ...     return torch.get_num_threads()
    >>> with CandidateStream([1, 2], count_threads, seed=1, workers=2) as stream:
    ...     list(stream)
    [1, 1]

    """

    def __init__(
        self,
        batches: Iterable[Batch],
        prepare: Callable[[Batch, torch.Generator], Made],
        *,
        seed: int,
        workers: int = 1,
        ahead: int = 4,
    ) -> None:
        self._pool = ThreadPoolExecutor(
            check_count("workers", workers, SamplerError),
            thread_name_prefix="softq-candidates",
            initializer=_work_alone,
            initargs=(torch.get_num_threads(),),
        )
        begun = _begin(self._pool, iter(batches), prepare, seed)
        self._made = _finish(self._pool, begun, check_count("ahead", ahead, SamplerError))

    def __next__(self) -> Made:
        return next(self._made)

    def close(self) -> None:
        """Drop what has not begun, wait for what has, and end the threads."""
        self._made.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __exit__(self, *raised: object) -> None:
        self.close()


def _begin(
    pool: ThreadPoolExecutor,
    batches: Iterable[Batch],
    prepare: Callable[[Batch, torch.Generator], Made],
    seed: int,
) -> Iterator[Future[Made]]:
    """One preparation after the other, handed to the pool when it is asked for."""
    try:
        for index, batch in enumerate(batches):
            generator = torch.Generator().manual_seed(batch_seed(seed, index))
            yield pool.submit(prepare, batch, generator)
    except Exception as error:  # of the batches: it comes up where the next one would have come
        failed: Future[Made] = Future()
        failed.set_exception(error)
        yield failed


def _finish(
    pool: ThreadPoolExecutor, begun: Iterator[Future[Made]], ahead: int
) -> Generator[Made, None, None]:
    """What was prepared, in order, with at most ``ahead`` preparations under way."""
    try:
        waiting = deque(islice(begun, ahead))
        while waiting:
            try:
                made = waiting.popleft().result()
            except StopIteration as error:  # it would pass for the end of the stream
                raise RuntimeError("prepare raised StopIteration") from error
            # So that the threads have work while the caller is at this batch.
            waiting.extend(islice(begun, ahead - len(waiting)))
            yield made
    finally:  # Ctrl-C among them; one that comes between two batches is for the ``with`` block
        pool.shutdown(wait=True, cancel_futures=True)


def _work_alone(others: int) -> None:
    """Let torch and kernels use no further threads for what this thread does.

    Threads to come have ``others`` as before.

    Every thread has helpers of its own: workers · cores of them would wait for a core, and those of
    a kernel for Python's lock.
    """
    # The first call in a thread sets what new threads have, and must not come after the next one.
    torch.get_num_threads()
    torch.set_num_threads(1)  # of this thread, and of threads to come
    restore = Thread(target=torch.set_num_threads, args=(others,))
    restore.start()
    restore.join()


def batch_seed(seed: int, index: int) -> int:
    """A seed for batch ``index``, so that neighbours and neighbouring seeds share nothing.

    >>> batch_seed(1, 0) == batch_seed(0, 1)
    False
    """
    entropy = [seed % 2**64, index]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
