"""Runs a command for the service within bounds, and ends all processes that the command has started.

The handler `command` starts this file as a program::

    python -I -S supervisor.py FOLDER UNTIL PROGRAM [ARGUMENT …]

PROGRAM is a path, or a name to look up in `PATH`. UNTIL is the end of the worker's lease of the run, in seconds of
CLOCK_BOOTTIME (elsewhere :func:`time.monotonic`), or `inf`. The worker writes a new UNTIL, eight bytes, to standard input
whenever it has renewed the lease. The supervisor ends the command when

- standard input is closed: by the worker for a timeout or a cancellation, by the kernel if the worker dies, even by SIGKILL,
- UNTIL has passed: the worker is frozen (SIGSTOP), its event loop is blocked, or it lost the database, and another
  worker is about to execute the run.

It sends SIGTERM to the command's process group, and three seconds later SIGKILL. After the command has ended, this program
kills remaining processes, removes FOLDER and exits with the command's exit status: 128 + N for signal N, 126 for a program
that could not be started. If UNTIL had passed, it ends by the signal :data:`LEASE_OVER` instead.

Linux gives an orphan (double fork, `setsid`) to its nearest ancestor that is a *subreaper*. Two processes are subreapers: the
supervisor, and a *guard* that started it. If a command kills or stops one of them, the other kills all descendants. A command
that stops or kills both at the same moment escapes, and so does a process that leaves the process group on another system
than Linux.

This program starts for every command and so imports little: not even `typing`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_SECONDS = 3.0
"""The time that a command may take to end after SIGTERM."""
MAX_MEMORY_BYTES = 1 << 30
"""The maximum memory for data of each process of a command. The unit or the container bounds all of them together."""
CANNOT_START = 126
LEASE_OVER = signal.SIGALRM
"""The signal by which this program ends if the lease was over, since any exit status could be the command's own."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# The time between checks of the clock, since select() does not count the time in which the machine sleeps, and of the guard.
_CLOCK_SECONDS = 1.0


def main(folder: str, until: float, argv: list[str]) -> int:
    """Guard a supervisor of the command, and return the exit status to pass on."""
    _limit()
    # The command must not be able to say that the lease was over: it may send signals to both processes.
    signal.signal(LEASE_OVER, lambda _number, _frame: None)
    guard = os.getpid()
    supervisor = os.fork()
    _prctl(_PR_SET_CHILD_SUBREAPER)
    code = _wait_for(supervisor) if supervisor else _supervise(guard, until, argv)
    while children := _children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    shutil.rmtree(folder, ignore_errors=True)
    if code == -LEASE_OVER:
        signal.signal(LEASE_OVER, signal.SIG_DFL)
        signal.raise_signal(LEASE_OVER)
    return exit_status(code)


def _limit() -> None:
    """Bound this process and its descendants permanently."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or most > MAX_MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # Neither `sudo` nor another set-user-id program: the supervisor could not end it.
    _prctl(_PR_SET_NO_NEW_PRIVS)
    with suppress(OSError):
        # If memory runs out, the kernel ends the command, not the service.
        Path("/proc/self/oom_score_adj").write_text("1000")


def _prctl(option: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, 1, 0, 0, 0)


def _supervise(guard: int, until: float, argv: list[str]) -> int:
    """Run the command, end it when it must, and return its exit status, or -LEASE_OVER."""
    child_ended = _pipe_of_ended_children()
    try:
        # Kept until the end: a Popen without references reaps its process.
        command = subprocess.Popen(  # noqa: S603 - without a shell is the point
            argv, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        return CANNOT_START
    # Without a thread: an interpreter with another thread can crash at its exit, and lose the command's exit status.
    inputs, is_closed, is_lease_over, kill_at = [0, child_ended], False, False, None
    # One child at a time, so that many ending orphans do not delay reading the clock.
    while (ended := os.waitpid(-1, os.WNOHANG))[0] != command.pid:
        now = _now()
        if kill_at is None and (now >= until or is_closed or os.getppid() != guard):
            is_lease_over = now >= until
            _signal_group(command.pid, signal.SIGTERM)
            inputs, kill_at = [child_ended], now + GRACE_SECONDS
        elif kill_at is not None and now >= kill_at:
            _signal_group(command.pid, signal.SIGKILL)
            kill_at = float("inf")
        if ended[0] == 0:
            left = max(0.0, (until if kill_at is None else kill_at) - now)
            readable, _, _ = select.select(inputs, [], [], min(_CLOCK_SECONDS, left))
            if child_ended in readable:
                os.read(child_ended, 4096)
            if 0 in readable:
                renewals = os.read(0, 65536)
                is_closed = not renewals
                if renewals:
                    (until,) = struct.unpack("d", renewals[-8:])
    _signal_group(command.pid, signal.SIGKILL)
    return -LEASE_OVER if is_lease_over else exit_status(os.waitstatus_to_exitcode(ended[1]))


def _pipe_of_ended_children() -> int:
    """A file descriptor that becomes readable when a child ends."""
    ended, end = os.pipe()
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    # The number is written only for signals with a handler.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return ended


def _wait_for(child: int) -> int:
    """The exit code of a child, -N for signal N. A stopped child is killed, since it ends nothing in time."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid != child:
            continue
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.kill(child, signal.SIGKILL)


def exit_status(code: int) -> int:
    """The exit status for an exit code that is -N for signal N, as a shell gives it."""
    return 128 - code if code < 0 else code


def _now() -> float:  # pragma: no cover - each system executes one of the two
    # Like the service's own clock.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()  # noqa: TID251 - a program has no injected clock


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _children() -> list[int]:
    """The children of this process; none if the kernel does not list them."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


if __name__ == "__main__":
    _, _folder, _until, *_argv = sys.argv
    sys.exit(main(_folder, float(_until), _argv))
