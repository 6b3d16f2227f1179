"""Programs in processes of their own that need not load what they import: that takes longer than what most of them do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

_MAIN = """
import atexit, gc, json, os, sys, traceback

exec(sys.argv[1])
# What is loaded stays in the memory that all forks share.
gc.freeze()
for line in sys.stdin:
    folder, output, program, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        sys.path.insert(0, folder)
        sys.argv = arguments
        status = 1
        try:
            exec(program, {"__name__": "__main__"})
            status = 0
        except SystemExit as stop:
            if stop.code is None or isinstance(stop.code, int):
                status = stop.code or 0
            else:
                print(stop.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        # Temporary folders are removed.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        # Without taking apart everything that was loaded, which takes as long as a command.
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Prefork:
    """A process that has loaded something, and runs each program in a fork of itself.

    Args:
        load: The statements that load it.
        environment: The environment of the programs.
    """

    def __init__(self, load: str, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, load],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, output: Path, program: str, *arguments: str) -> None:
        """Run a program in a folder, from which it can import; its status must be 0.

        Args:
            folder: Where it runs.
            output: The file for what it prints.
            program: Python's statements.
            arguments: For `sys.argv`, beginning with the program's name.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps([str(folder), str(output), program, arguments])
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline()
        assert status == "0\n", output.read_text("utf-8")

    def __enter__(self) -> Prefork:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # It ends when nothing more can come.
        self._process.__exit__(kind, error, traceback)
