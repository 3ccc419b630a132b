"""A process that has softq loaded and starts `softq` commands as copies of itself.

Children to kill that need no seconds to start.

Run as a script it reads a line of JSON, starts the children that it describes and answers with
their process ids; at the next line it waits for all of them and answers with their exit codes
(negative: the signal that ended them). It never trains itself, so that no threads are lost in the
copies.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import traceback
from pathlib import Path


class ForkServer:
    """The side of the tests."""

    def __enter__(self):
        command = [sys.executable, __file__]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "NUMBA_NUM_THREADS": "1",
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def start(self, *commands, folder, variables=None, largest_file=None):
        """Start commands side by side in a folder, with environment variables and a largest file for each; returns process ids."""
        children = []
        for number, command in enumerate(commands):
            output = str(folder / f"child{number}")
            own = variables[number] if variables else {}
            limit = largest_file[number] if isinstance(largest_file, list) else largest_file
            children.append(
                {
                    "arguments": list(map(str, command)),
                    "variables": own,
                    "largest_file": limit,
                    "output": output,
                }
            )
        self._outputs = [child["output"] for child in children]
        self._process.stdin.write(json.dumps({"children": children, "folder": str(folder)}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def wait(self):
        """Exit code, stdout and stderr of each command."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        codes = json.loads(self._process.stdout.readline())
        texts = [
            [Path(f"{output}.{kind}").read_text() for kind in ("stdout", "stderr")]
            for output in self._outputs
        ]
        return [(code, *text) for code, text in zip(codes, texts, strict=True)]

    def run(self, *arguments, **options):
        """Start one command, wait for it."""
        self.start(arguments, **options)
        return self.wait()[0]


def _become(child, folder):
    """Turn this copy of the server into a command; does not return."""
    code = 70
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(
                os.open(f"{child['output']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number
            )
        os.chdir(folder)
        os.environ.update(child["variables"])
        if child["largest_file"] is not None:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (child["largest_file"], child["largest_file"])
            )
        sys.argv = ["softq", *child["arguments"]]
        try:
            app(prog_name="softq")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _serve():
    while line := sys.stdin.readline():
        request = json.loads(line)
        pids = []
        for child in request["children"]:
            pid = os.fork()
            if pid == 0:
                _become(child, request["folder"])
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        sys.stdin.readline()  # until then no process id is given up, so that it is safe to kill
        print(
            json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]),
            flush=True,
        )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import accelerate  # noqa: F401  loaded once, for all children, as what follows
    import numba

    from softq.cli import app

    with contextlib.suppress(ImportError):
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    numba.njit(lambda: 0)()  # loads what any kernel needs, and starts no threads
    _serve()
