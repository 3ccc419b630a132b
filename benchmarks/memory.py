"""Peak memory of a call, as the operating system sees it."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def peak_bytes(call: Callable[[], object]) -> int:
    """Most resident memory during ``call`` beyond what was resident before it, sampled by a second thread."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(
        0
    )  # give back what earlier calls freed, or this one would take it unseen
    before = resident_bytes()
    peak = before
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident_bytes())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        done.set()
        watcher.join()
    return max(peak, resident_bytes()) - before
