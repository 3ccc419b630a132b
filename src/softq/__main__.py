"""The command `softq`, which is `python -m softq` too."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line.

    SIGTERM is a Ctrl-C. A signal before a command has begun, and an output that cannot be written,
    are one line and an exit code.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        try:
            from softq.cli import app

            app(prog_name="softq")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _end("stopped", 130)
    except OSError as error:
        if error.filename is not None:
            raise
        _end(f"cannot write the output: {error.strerror}", 2)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _end(message: str, code: int) -> NoReturn:
    """End at once: buffered output would fail once more, and Python would repeat the signal."""
    sys.stderr.write(f"softq: {message}\n")
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
