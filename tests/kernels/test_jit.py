"""How kernels are compiled and run: the cache on disk, threads and forks."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

import softq
from softq.kernels import jit

SHARED = """
from softq_copy.kernels.jit import jit
from softq_copy.kernels.part import value

@jit
def total(n):
    return n * value()

if __name__ == "__main__":
    print(total(10), total.stats.cache_hits.total() if hasattr(total.stats.cache_hits, "total") else sum(total.stats.cache_hits.values()))
"""
PART = """
from softq_copy.kernels.jit import jit

@jit
def value():
    return {value}
"""


@pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="nothing is compiled")
def test_the_cache_notices_changes_of_other_files(tmp_path):
    kernels = tmp_path / "softq_copy" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "softq_copy" / "__init__.py").touch()
    (kernels / "__init__.py").touch()
    (kernels / "jit.py").write_text(Path(jit.__file__).read_text())
    (kernels / "total.py").write_text(SHARED)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }

    def run(value):
        (kernels / "part.py").write_text(PART.format(value=value))
        command = [sys.executable, "-m", "softq_copy.kernels.total"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert run(3) == ["30", "0"]
    assert run(3) == ["30", "1"]  # from the cache
    assert run(4) == ["40", "0"]  # a function in another file has changed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_after_use_computes_the_same():
    emissions, transitions = torch.randn(64, 50, 9), torch.randn(9, 9)

    def total():
        return float(softq.Chain(emissions, transitions).log_partition.sum())

    expected = total()  # its threads are running now
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr(total()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(read, 100)) == pytest.approx(expected)


FIRST_IN_A_CHILD = """
import os, torch
torch.set_num_threads(2)
torch.ones(1 << 22).exp().sum()  # OpenMP's threads are running now
child = os.fork()
if child == 0:
    import numpy as np
    from softq.kernels.jit import run_batch
    seen = np.zeros(100, np.int64)
    def visit(first, stride):
        seen[first::stride] += 1
    run_batch(visit, len(seen), 10**9)
    os._exit(0 if (seen == 1).all() else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_that_is_the_first_to_use_kernels():
    process = subprocess.Popen([sys.executable, "-c", FIRST_IN_A_CHILD], start_new_session=True)
    try:
        assert process.wait(timeout=60) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the child too, which may wait for ever


def test_a_kernel_is_not_called_for_nothing():
    """Of a batch of no examples it would read the first: the transitions of a chain, say."""
    jit.run_batch(lambda first, stride: pytest.fail("called"), 0, 10**9)
    emissions, transitions = torch.zeros(0, 2, 3), torch.zeros(0, 1, 3, 3)
    assert softq.Chain(emissions, transitions).log_partition.shape == (0,)


def test_operations_may_be_counted_by_numpy():
    seen = []
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        jit.run_batch(
            lambda first, stride: seen.extend(range(first, 10, stride)), 10, np.int64(200_000)
        )  # enough for two
    finally:
        torch.set_num_threads(threads)
    assert sorted(seen) == list(range(10))
