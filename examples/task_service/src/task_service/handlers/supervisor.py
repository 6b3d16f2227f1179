"""Runs one command for the service, and ends it when its worker may no longer run it.

The handler `command` starts this file as a program of its own::

    python -I -S supervisor.py FOLDER UNTIL RULES PROGRAM ARGV0 [ARGUMENT …]

UNTIL is when the worker's lease of the run is over, in seconds of CLOCK_BOOTTIME (:func:`time.monotonic` where there is
none), or `inf`. The worker holds the other end of standard input and writes a new UNTIL on a line of its own whenever
it has renewed the lease. The supervisor ends the command when

- standard input is closed: by the worker for a timeout or a cancellation, by the kernel if the worker dies, even by SIGKILL,
- UNTIL has passed: the worker is frozen (SIGSTOP), its event loop is blocked, or it lost the database, and another
  worker is about to execute the run.

RULES is the file descriptor of the Landlock rules that the command is confined by
(:mod:`task_service.handlers.sandbox`), or `None`. Guard and supervisor are not confined, so the command can neither read
their memory nor, since Linux 6.12, signal them.

It ends a command by SIGTERM to its process group, and by SIGKILL to what is left three seconds later. When the command has
ended, the supervisor kills its background processes, removes FOLDER and exits with the command's exit status: 128 + N for
signal N, 126 for a program that could not be started. If the command was ended because UNTIL had passed, this program ends
by the signal :data:`LEASE_OVER` instead.

Two processes, so that no descendant of the command outlives the loss of one of them: a *guard* starts the *supervisor*,
which starts the command.

- Both are subreapers (Linux): a descendant that left the process group, the session and its parent (double fork and
  `setsid`) becomes a child of the supervisor, or of the guard once the supervisor is gone, and is killed there.
- If the supervisor is killed, the kernel kills the command (parent-death signal) and the guard kills the rest. The guard kills
  a supervisor that is stopped (SIGSTOP), since it no longer ends the command in time.
- If the guard is killed, the supervisor reads the end of a pipe and kills everything at once.

On systems other than Linux, a descendant that leaves the process group survives. Without RULES nothing prevents a command
from killing or stopping both guard and supervisor in the same instant, or from becoming another user (`sudo`).

It starts for every command and so imports little: not even `typing`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

GRACE_SECONDS = 3.0
"""How long a command may take to end after SIGTERM."""
CANNOT_START = 126
LEASE_OVER = signal.SIGALRM
"""The signal by which this program ends if the lease was over. Any exit status could be the command's own."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_RESTRICT_SELF = 446  # on every architecture

# select() does not count the time in which the machine sleeps, so the clock is read this often.
_CLOCK_SECONDS = 1.0
# Orphans that end faster than they are reaped must not keep the supervisor from reading the clock.
_REAPED_AT_ONCE = 1000


def main(folder: str, until: float, rules: int | None, program: str, argv: list[str]) -> int:
    """Guard a supervisor of the command, and return the exit status to pass on."""
    _become_subreaper()
    guard_alive, guard = os.pipe()
    groups, group = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(guard)
        os.close(groups)
        return _supervise(folder, until, rules, program, argv, guard_alive=guard_alive, group=group)
    os.close(guard_alive)
    os.close(group)
    code = _wait_for(supervisor, kill_stopped=True)
    # The supervisor has done this already, unless it was killed.
    command = os.read(groups, 32)
    if command:
        _signal_group(int(command), signal.SIGKILL)
    _kill_children()
    _remove(folder)
    if code == -LEASE_OVER:
        signal.raise_signal(LEASE_OVER)
    return exit_status(code)


def _supervise(
    folder: str,
    until: float,
    rules: int | None,
    program: str,
    argv: list[str],
    *,
    guard_alive: int,
    group: int,
) -> int:
    _become_subreaper()
    parent = os.getpid()
    child_ended = _pipe_of_ended_children()
    child = os.fork()
    if child == 0:  # pragma: no cover - what the child does is lost when it becomes the command
        _become(program, argv, rules, lambda: _die_with(parent))
    os.write(group, str(child).encode())
    code, is_lease_over = _wait_or_end(child, until, guard_alive, child_ended)
    _signal_group(child, signal.SIGKILL)
    _kill_children()
    _remove(folder)
    if code != 0 and is_lease_over:
        signal.raise_signal(LEASE_OVER)
    return exit_status(code)


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _become_subreaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _become(  # pragma: no cover - as above
    program: str, argv: list[str], rules: int | None, bind: Callable[[], None]
) -> None:
    """In the child: detach from the service and become the command. Does not return."""
    try:
        os.setsid()
        bind()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        # Python ignores these, and ignoring is inherited.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        _keep_open_files()
        if rules is not None:
            _confine(rules)
        os.execv(program, argv)  # noqa: S606 - without a shell is the point
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(CANNOT_START)


def _confine(rules: int) -> None:  # pragma: no cover - as above
    """Drop for good the right to gain privileges, what the rules do not grant, and root's capabilities."""
    libc = ctypes.CDLL(None, use_errno=True)
    # struct __user_cap_header_struct of version 3 for this process, and no capability.
    header, capabilities = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    confined = (
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        and libc.syscall(_LANDLOCK_RESTRICT_SELF, rules, 0) == 0
        and libc.capset(header, capabilities) == 0
    )
    if not confined:
        raise OSError(ctypes.get_errno(), "cannot be confined")


def _keep_open_files() -> None:  # pragma: no cover - as above
    """Let the command inherit only the three standard streams, and no file of the supervisor's."""
    files = Path("/dev/fd")
    for file in files.iterdir() if files.exists() else ():
        if int(file.name) > 2:
            try:
                os.set_inheritable(int(file.name), False)
            except OSError:
                continue  # the descriptor of the folder itself, which is closed already


def _die_with(parent: int) -> None:  # pragma: no cover - as above
    # After any change of user, which clears the signal.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the prctl
        os._exit(CANNOT_START)


def _pipe_of_ended_children() -> int:
    """A file descriptor that becomes readable when a child ends."""
    ended, end = os.pipe()
    os.set_blocking(end, False)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    # The number is written only for a signal with a handler.
    signal.signal(signal.SIGCHLD, _ignore)
    return ended


def _ignore(_number: int, _frame: object) -> None:
    pass


def _wait_or_end(child: int, until: float, guard_alive: int, child_ended: int) -> tuple[int, bool]:
    """Wait until the command has ended, and end it when it must. Its exit status, and whether the lease was over.

    Without a thread: an interpreter that exits while it has another thread can crash, and its exit status is the command's.
    """
    unread = b""
    while (code := _reap(child)) is None:
        timeout = max(0.0, min(_CLOCK_SECONDS, until - _now()))
        readable, _, _ = select.select([0, guard_alive, child_ended], [], [], timeout)
        if guard_alive in readable:  # pragma: no cover - no test that measures kills the guard
            _signal_group(child, signal.SIGKILL)
            return _wait_for(child), False
        if child_ended in readable:
            os.read(child_ended, 4096)
        if 0 in readable:
            chunk = os.read(0, 65536)
            if not chunk:
                return _terminate(child, child_ended), False
            *lines, unread = (unread + chunk).split(b"\n")
            until = float(lines[-1]) if lines else until
        if _now() >= until:
            return _terminate(child, child_ended), True
    return code, False


def _terminate(child: int, child_ended: int) -> int:
    """End the command, by SIGKILL if SIGTERM does not within the grace. Its exit status."""
    _signal_group(child, signal.SIGTERM)
    kill_at = _now() + GRACE_SECONDS
    while (code := _reap(child)) is None:
        left = kill_at - _now()
        if left <= 0:
            _signal_group(child, signal.SIGKILL)
            return _wait_for(child)
        if select.select([child_ended], [], [], left)[0]:
            os.read(child_ended, 4096)
    return code


def _reap(child: int) -> int | None:
    """As :func:`_wait_for`, but None if the child has not ended."""
    ended = iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0))
    for pid, status in islice(ended, _REAPED_AT_ONCE):
        if pid == child:
            return os.waitstatus_to_exitcode(status)
    return None


def _now() -> float:  # pragma: no cover - each system executes one of the two
    # As the service's own clock does.
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()  # noqa: TID251 - a program has no injected clock


def _wait_for(child: int, *, kill_stopped: bool = False) -> int:
    """Its exit status, -N for signal N; reaps the orphans that end before it."""
    while True:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if pid != child:
            continue
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        if kill_stopped:
            os.kill(child, signal.SIGKILL)


def exit_status(code: int) -> int:
    """The exit status for an exit code that is -N for signal N, as a shell gives it."""
    return 128 - code if code < 0 else code


def _signal_group(group: int, number: signal.Signals) -> None:
    # No process may be left, or only one that changed its user.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill_children() -> None:
    while killed := [pid for pid in _children() if _kill(pid)]:
        for pid in killed:
            os.waitpid(pid, 0)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (
        PermissionError
    ):  # pragma: no cover - it became another user: waiting for it could take for ever
        return False
    return True


def _children() -> list[int]:
    """The children of this process; none if the kernel does not list them."""
    # The kernel gives orphans to the first thread.
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def _remove(folder: str) -> None:
    try:
        Path(folder).rmdir()
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _, _folder, _until, _rules, _program, *_argv = sys.argv
    _descriptor = None if _rules == "None" else int(_rules)
    sys.exit(main(_folder, float(_until), _descriptor, _program, _argv))
