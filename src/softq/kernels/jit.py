"""How kernels are compiled and run: numba without the GIL, split over threads by the batch.

The threads are torch's own where its OpenMP library can be reached (the Linux builds): after each
parallel operation they spin for a while in wait of the next, so that other threads would find their
cores taken. Elsewhere they are Python's. Numba's ``prange`` is not used, because its default
threads abort the process when two Python threads enter at once, and a training loop that prepares
batches beside itself does that.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

# Waking a thread costs some tens of microseconds: a share smaller than this is not worth one.
_OPERATIONS_PER_THREAD = 100_000

_SHARES_PER_THREAD = 2  # taken as threads come free, so that a busy core holds nobody up


# Of all kernels, because numba itself notices changes of a kernel's own file alone.
_SOURCES = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
_DIGEST = hashlib.sha256(_SOURCES).hexdigest()


def _compiler(fastmath: set[str]) -> Callable[[F], F]:
    def compile_function(function: F) -> F:
        compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath)(
            function
        )
        if compiled is not function:  # else NUMBA_DISABLE_JIT is set
            # in the place of numba's version, which is compared before anything is unpickled: what
            # other sources wrote may name classes that are gone
            compiled._cache._cache_file._version += f" {_DIGEST}"
        return cast(F, compiled)

    return compile_function


jit = _compiler({"reassoc", "contract", "nsz"})
"""Compile, cached on disk and free of the GIL. Sums may be reordered and fused (this is what lets
them vectorise), but inf and NaN keep their meaning."""

ordered_jit = _compiler({"contract"})
"""The same for sums whose order matters: a reordered sum beside stores may be compiled twice, with
the version chosen by where the arrays lie in memory, so that its last digit changes by chance."""


def run_batch(kernel: Callable[..., None], size: int, operations: int, *args: Any) -> None:
    """Call ``kernel(first, stride, *args)`` so that together the calls visit 0..size-1 once.

    ``operations`` is a rough count for the whole batch; small work stays in the calling thread.
    """
    if size == 0:  # a kernel may look at the first example before it goes through them
        return
    # numpy's integers, as sizes of arrays may be, are none to ctypes
    threads = int(min(size, torch.get_num_threads(), operations // _OPERATIONS_PER_THREAD))
    if threads <= 1:
        kernel(0, 1, *args)
        return
    shares = min(size, threads * _SHARES_PER_THREAD)
    waiting = iter(range(shares))  # taking the next share is atomic
    errors: list[BaseException] = []

    def work(_data: Any = None) -> None:
        try:
            for share in waiting:
                kernel(share, shares, *args)
        except BaseException as error:  # in a thread that cannot raise: the caller does, below
            errors.append(error)

    if _OPENMP is not None and os.getpid() == _PROCESS:
        _OPENMP.GOMP_parallel(_OPENMP_FUNCTION(work), None, threads, 0)
    else:
        pool = _executor(os.getpid(), torch.get_num_threads())
        others = [pool.submit(work) for _ in range(1, threads)]
        work()
        wait(others)
    if errors:
        raise errors[0]


_OPENMP_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PROCESS = os.getpid()  # OpenMP's threads do not survive a fork


def _torch_openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP library that torch has loaded, or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD)
            library.GOMP_parallel.restype = None
        except (OSError, AttributeError):  # a copy that is not in use, or not GNU's
            continue
        return library
    return None


def _is_forked() -> bool:
    """Whether this process began as a copy of its parent, and runs the same program still.

    The parent may have used OpenMP's threads, which the copy lacks and would wait for.
    """
    try:
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # no Linux
        return False
    return bool(int(fields[6]) & _FORKED_WITHOUT_EXEC)


_FORKED_WITHOUT_EXEC = 0x40  # of the kernel's flags of a process, see proc(5)
_OPENMP = None if _is_forked() else _torch_openmp()


@lru_cache(maxsize=1)
def _executor(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads of this process: a fork has none of its parent's."""
    return ThreadPoolExecutor(threads, thread_name_prefix="softq")


def as_array(x: Tensor) -> np.ndarray[Any, Any]:
    """A detached, contiguous CPU view (a copy only if it must) for a kernel."""
    return cast("np.ndarray[Any, Any]", x.contiguous().numpy(force=True))
