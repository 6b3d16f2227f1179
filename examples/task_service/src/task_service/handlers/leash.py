"""Runs one command for the service, and ends with it.

A program of its own, started by the handler `command`::

    python -I -S leash.py FOLDER PROGRAM ARGV0 [ARGUMENT …]

The service holds the other end of this program's standard input, the leash, and says nothing on it. When the end is
closed (on purpose for a timeout or a cancellation, by the kernel if the service dies, even by SIGKILL) the command's
process group is sent SIGTERM and three seconds later SIGKILL. When the command has ended, whatever it left running
in the background is killed, FOLDER is removed and the command's exit status passed on: 128 + N for signal N, 126 for
a program that could not be started.

Three layers, since each has a gap: the process group reaches children that stay in it; being the subreaper (Linux)
brings back orphans that left it; the parent-death signal (Linux) ends the command if this program itself is killed.

It imports little, because it is started for every command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 3.0
"""How long a command may take to end after SIGTERM."""
CANNOT_START = 126

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(folder: str, program: str, argv: list[str]) -> int:
    """Run the command and return the exit status to pass on."""
    prctl = _prctl()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    parent = os.getpid()
    child = os.fork()
    if child == 0:  # pragma: no cover - what the child does is lost when it becomes the command
        _become(program, argv, lambda: _die_with(parent, prctl))
    start_new_thread(_end_when_let_go, (child,))
    _, status = os.waitpid(child, 0)
    _signal_group(child, signal.SIGKILL)
    _kill_orphans()
    _remove(folder)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _prctl() -> Callable[[int, int], object]:
    if not sys.platform.startswith("linux"):  # pragma: no cover
        return lambda _option, _value: None
    function = ctypes.CDLL(None, use_errno=True).prctl
    return lambda option, value: function(option, value, 0, 0, 0)


def _become(  # pragma: no cover - as above
    program: str, argv: list[str], bind: Callable[[], None]
) -> None:
    """In the child: leave everything of the service behind and become the command. Does not return."""
    try:
        os.setsid()
        bind()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        # Python ignores these, and ignoring is inherited.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        _keep_open_files()
        os.execv(program, argv)  # noqa: S606 - without a shell is the point
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_START)


def _keep_open_files() -> None:  # pragma: no cover - as above
    """Hand on nothing but the three standard streams: not what the service's supervisor has opened, either."""
    files = Path("/dev/fd")
    for file in files.iterdir() if files.exists() else ():
        if int(file.name) > 2:
            try:
                os.set_inheritable(int(file.name), False)
            except OSError:
                continue  # the folder itself, which is closed again


def _die_with(  # pragma: no cover - as above
    parent: int, prctl: Callable[[int, int], object]
) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(CANNOT_START)


def _end_when_let_go(child: int) -> None:  # pragma: no cover - a thread that is not traced
    os.read(0, 1)  # returns when the other end is closed
    _signal_group(child, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    _signal_group(child, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    # Nobody may be left, or only who changed its user.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill_orphans() -> None:
    # Who changed its user cannot be killed, and waiting for it would be for ever.
    with suppress(PermissionError):
        while orphans := _children():
            for pid in orphans:
                os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Processes whose parent is this one; none where the kernel does not tell."""
    # Orphans come to the first thread, as the kernel chooses whom they come to.
    told = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in told.read_text().split()] if told.exists() else []


def _remove(folder: str) -> None:
    try:
        Path(folder).rmdir()
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
