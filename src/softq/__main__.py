"""The command `softq`, which is `python -m softq` too."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_STOPPED = 130  # exit code after a signal, as shells have it


def main() -> None:
    """Run the command line.

    SIGTERM is a Ctrl-C. A signal before a command has begun, and an output that cannot be written,
    are one line and an exit code.
    """
    for number, default in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is default:
            signal.signal(number, _interrupt)
    try:
        try:
            from softq.cli import app

            app(prog_name="softq")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _end("softq: stopped\n", _STOPPED)
    except SystemExit as end:
        if end.code != _STOPPED:
            raise
        _end("", _STOPPED)
    except OSError as error:
        if error.filename is not None:
            raise
        _end(f"softq: cannot write the output: {error.strerror}\n", 2)


def _interrupt(_number: int, frame: FrameType | None) -> NoReturn:
    """Raise `KeyboardInterrupt`, or end at once where an import would lose or change it."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            _end("softq: stopped\n", _STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _end(message: str, code: int) -> NoReturn:
    """End at once: buffered output would fail again, and Python would repeat the signal."""
    atexit._run_exitfuncs()
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
