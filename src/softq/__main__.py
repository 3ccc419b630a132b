"""`python -m softq` is the command `softq`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line.

    A signal before it has begun, or an output that cannot be written, ends it with one line.
    """
    try:
        try:
            from softq.cli import app

            app(prog_name="softq")
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(_tell("stopped", 130))
    except OSError as error:
        if error.filename is not None:
            raise
        # what is still buffered would fail once more when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_tell(f"cannot write the output: {error.strerror}", 2))


def _tell(message: str, code: int) -> int:
    sys.stderr.write(f"softq: {message}\n")
    return code


if __name__ == "__main__":
    main()
