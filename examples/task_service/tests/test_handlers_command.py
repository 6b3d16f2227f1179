"""`command`: what may be run, how its output arrives, and that nothing of it survives."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.waiting import eventually
from pydantic import ValidationError

from msk_auth import SystemClock
from msk_auth.errors import InputInvalid
from task_service.handlers import (
    HandlerEnvironment,
    HandlerResult,
    LeaseLost,
    RunContext,
    RunLease,
    Stream,
    supervisor,
)
from task_service.handlers.command import (
    COMMAND_PATH,
    DEFAULT_ALLOWED_COMMANDS,
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    Command,
    CommandParams,
    check_listed_command,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SH = "/bin/sh"


class Log:
    def __init__(self, room: int = 1_000_000) -> None:
        self.pieces: list[tuple[Stream, str]] = []
        self.room = room
        self.changed = asyncio.Event()

    @property
    def full(self) -> bool:
        return self.room <= 0

    def write(self, stream: Stream, text: str) -> None:
        self.room -= len(text)
        self.pieces.append((stream, text))
        self.changed.set()

    def text(self, stream: Stream = "stdout") -> str:
        return "".join(text for each, text in self.pieces if each == stream)

    async def until(self, wanted: str) -> None:
        async with asyncio.timeout(60):
            while wanted not in self.text():
                self.changed.clear()
                await self.changed.wait()


def command(*allowed: str) -> Command:
    async def allowed_commands() -> tuple[str, ...]:
        return allowed

    return Command(HandlerEnvironment(allowed_commands=allowed_commands))


async def run(
    *argv: str, log: Log | None = None, lease: RunLease | None = None
) -> tuple[HandlerResult, Log]:
    log = Log() if log is None else log
    lease = RunLease() if lease is None else lease
    context = RunContext("run_1", 1, SystemClock(), log, lease=lease)
    return await command().run(CommandParams(argv=list(argv)), context), log


def is_running(pid: int) -> bool:
    """True unless the process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def exists(path: str) -> bool:
    return Path(path).exists()


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def our_children() -> list[int]:
    return [int(pid) for pid in children()]


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


# What may be run


@pytest.mark.parametrize("argv", [["echo"], ["echo", "-n", "; id", "$(id)", "`id`", "| id", "&"]])
async def test_a_listed_command_may_have_any_arguments(argv: list[str]) -> None:
    await command("echo").check(CommandParams(argv=argv))


@pytest.mark.parametrize(
    "first",
    [
        "",
        "id",
        "ECHO",
        "echo ",
        " echo",
        "echo;id",
        "echo -n",
        "echo\n",
        "/bin/echo",
        "./echo",
        "../bin/echo",
        "--help",
        "-c",
        "eсho",  # a Cyrillic letter
    ],
)
async def test_another_command_is_refused(first: str) -> None:
    with pytest.raises(InputInvalid) as refusal:
        await command("echo").check(CommandParams(argv=[first, "echo"]))
    assert [error.field for error in refusal.value.errors] == ["params.argv"]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["echo", "a\x00b"],
        ["echo\x00"],
        ["echo", 1],
        ["echo", None],
        "echo hello",
        {"0": "echo"},
        ["echo"] * (MAX_ARGUMENTS + 1),
        ["echo", "ä" * (MAX_ARGUMENT_BYTES // 2 + 1)],
    ],
)
def test_bad_vectors_are_refused(argv: Any) -> None:
    with pytest.raises(ValidationError) as refusal:
        CommandParams.model_validate({"argv": argv})
    assert refusal.value.errors()[0]["loc"][0] == "argv"


def test_only_argv_is_accepted() -> None:
    for extra in ("shell", "env", "cwd", "stdin"):
        with pytest.raises(ValidationError):
            CommandParams.model_validate({"argv": ["echo"], extra: "1"})


@pytest.mark.parametrize("entry", ["echo", "/usr/bin/id", "/opt/a b/run", "x-y_z.sh"])
def test_an_administrator_lists_paths_and_names(entry: str) -> None:
    assert check_listed_command(entry) == entry


@pytest.mark.parametrize(
    "entry",
    ["", "/", ".", "..", "./x", "bin/x", "echo hello", "a\nb", "a\x00", "/a\x00", "x" * 256],
)
def test_an_administrator_cannot_list_anything_else(entry: str) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        check_listed_command(entry)


def test_the_default_list_is_harmless() -> None:
    # Not `date`: its option --file prints any file the service can read.
    assert DEFAULT_ALLOWED_COMMANDS == ("echo",)
    for entry in DEFAULT_ALLOWED_COMMANDS:
        check_listed_command(entry)


# Running


async def test_output_is_logged_and_the_exit_code_returned() -> None:
    result, log = await run("echo", "-e is text; $HOME `id` > x", "–")
    assert result == HandlerResult(exit_code=0)
    assert log.text() == "-e is text; $HOME `id` > x –\n"
    _, log = await run(SH, "-c", "echo out; echo err >&2")
    assert (log.text(), log.text("stderr")) == ("out\n", "err\n")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill -SEGV $$", 139)]
)
async def test_an_exit_status_other_than_0_is_a_failure(script: str, code: int) -> None:
    result, _ = await run(SH, "-c", script)
    assert result == HandlerResult(code, f"The command ended with exit status {code}.")


async def test_a_command_that_is_not_installed_fails(tmp_path: Path) -> None:
    result, log = await run("no-such-command")
    assert result == HandlerResult(126, "The command ended with exit status 126.")
    assert log.text("stderr") == "no-such-command: No such file or directory\n"
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    result, log = await run(str(script))
    assert result.exit_code == 126
    assert "No such file" in log.text("stderr")


async def test_the_command_sees_no_environment_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TASK_SERVICE_SECRET", "hidden")
    _, log = await run("env")
    names = {line.partition("=")[0] for line in log.text().splitlines()}
    assert names == {"PATH", "LANG", "HOME", "TMPDIR", "PYTHONUNBUFFERED"}
    assert f"PATH={COMMAND_PATH}" in log.text()


SURROUNDINGS = """
pwd; mkdir -p a/b; echo x > a/b/c; echo $HOME; stat -c %a .
cat; readlink /proc/self/fd/0
cat /proc/self/oom_score_adj
grep NoNewPrivs /proc/self/status
ls /proc/self/fd
"""


async def test_the_command_gets_a_folder_an_empty_input_no_files_and_no_privileges() -> None:
    held = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        _, log = await run(SH, "-c", SURROUNDINGS)
    finally:
        os.close(held)
    folder, home, mode, stdin, oom_score, _, no_new_privileges, *files = log.text().split()
    assert (folder, mode) == (home, "700")
    assert not exists(folder)
    assert stdin == "/dev/null"
    # The kernel ends it before its worker if memory runs out.
    assert (oom_score, no_new_privileges) == ("1000", "1")
    # 3 is the folder that ls reads.
    assert files == ["0", "1", "2", "3"]


async def test_a_broken_pipe_ends_a_command() -> None:
    """Python ignores SIGPIPE; had the command inherited that, `yes` would complain instead of ending."""
    result, log = await run(SH, "-c", "yes | head -n 1")
    assert (result.exit_code, log.text(), log.text("stderr")) == (0, "y\n", "")


async def test_output_arrives_while_the_command_runs() -> None:
    log = Log()
    task = asyncio.create_task(run(SH, "-c", "echo first; exec sleep 600", log=log))
    await log.until("first")
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_split_characters_and_invalid_bytes_are_decoded() -> None:
    script = r"printf '\303'; sleep 0.2; printf '\274\377\n\303'"
    _, log = await run(SH, "-c", script)
    assert log.text() == "ü\ufffd\n\ufffd"


async def test_a_flood_is_read_to_its_end() -> None:
    log = Log(room=100_000)
    result, _ = await run(SH, "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo end", log=log)
    assert result.exit_code == 0
    assert log.full
    assert log.text() == "x" * 3_000_000 + "end\n"


# Ending


async def cancelled(script: str, ready: str = "ready") -> Log:
    """Start a script, cancel it when it prints that it is ready, and return when it has ended."""
    log = Log()
    task = asyncio.create_task(run(SH, "-c", script, log=log))
    await log.until(ready)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return log


def pids(log: Log) -> list[int]:
    return [int(word) for word in log.text().split() if word.isdigit()]


async def test_cancelling_terminates_the_whole_group() -> None:
    log = await cancelled("trap 'echo bye; exit' TERM; sleep 600 & echo $! $$ ready; wait")
    assert log.text().endswith("bye\n")
    assert len(pids(log)) == 2
    assert not any(is_running(pid) for pid in pids(log))


async def test_background_processes_end_with_the_command() -> None:
    result, log = await run(
        SH, "-c", "sleep 600 & echo $!; (setsid sleep 600 >/dev/null 2>&1 & echo $!)"
    )
    assert result.exit_code == 0
    assert len(pids(log)) == 2
    assert not any(is_running(pid) for pid in pids(log))


async def test_neither_files_nor_processes_are_left() -> None:
    await run("echo")
    before, others = open_files(), children()
    for _ in range(5):
        await run("echo")
    await cancelled("echo ready; exec sleep 600")
    await eventually(lambda: open_files() <= before)
    await eventually(lambda: children() == others)


async def test_a_command_that_cannot_be_started_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    before = open_files()
    with pytest.raises(FileNotFoundError):
        await run("echo")
    assert entries(tmp_path) == []
    assert open_files() == before


SERVICE = """
import asyncio, signal, sys
from msk_auth import SystemClock
from task_service.handlers import HandlerEnvironment, RunContext
from task_service.handlers.command import Command, CommandParams

class Log:
    full = False
    def write(self, stream, text):
        print(text, end="", flush=True)

async def main():
    handler = Command(HandlerEnvironment(allowed_commands=None))
    context = RunContext(run_id="r", attempt=1, clock=SystemClock(), sink=Log())
    await handler.run(CommandParams(argv=sys.argv[1:]), context)

# A shell starts what it runs in the background, such as these tests, with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


HOSTILE = """
trap '' TERM INT HUP
number=0
while [ $number -lt 100 ]; do setsid sleep $1 & sleep $1 & number=$((number + 1)); done
(setsid sh -c "sleep $1 & sleep $1 & wait" &)
echo $PWD ready
wait
"""


def sleeping(seconds: str) -> int:
    """How many processes execute `sleep` with this argument."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += file.read_bytes() == f"sleep\0{seconds}\0".encode()
    return found


@pytest.mark.parametrize("by", ["cancellation", "SIGKILL of the worker"])
async def test_nothing_is_left_of_a_hostile_command(by: str) -> None:
    """200 processes that ignore signals, half of them in sessions of their own, and two orphans in another one."""
    seconds = f"6{os.getpid()}.{len(by)}"
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVICE, SH, "-c", HOSTILE, "sh", seconds),
        stdout=asyncio.subprocess.PIPE,
    )
    assert service.stdout is not None
    folder = Path((await asyncio.wait_for(service.stdout.readline(), 60)).decode().split()[0])
    await eventually(lambda: sleeping(seconds) == 202)
    service.send_signal(signal.SIGINT if by == "cancellation" else signal.SIGKILL)
    await service.wait()
    await eventually(lambda: sleeping(seconds) == 0)
    await eventually(lambda: not folder.exists())


async def test_a_command_that_takes_too_much_memory_fails_alone() -> None:
    result, log = await run("python3", "-c", "bytearray(2 << 30)")
    assert result.exit_code == 1
    assert "MemoryError" in log.text("stderr")


# It leaves its parent, its group and its session: only its ancestry identifies it.
ESCAPE = "(setsid sh -c 'sleep 600 & sleep 600 & echo $! $$; wait' 2>/dev/null &)"


@pytest.mark.parametrize(
    ("generations", "number"),
    [(1, signal.SIGKILL), (1, signal.SIGSTOP), (2, signal.SIGKILL)],
    ids=["supervisor", "stopped supervisor", "guard"],
)
async def test_no_grandchild_survives_a_killed_supervisor_or_guard(
    generations: int, number: signal.Signals
) -> None:
    log = Log()
    script = f"{ESCAPE}; sleep 600 & echo $! $$ ready; wait"
    task = asyncio.create_task(run(SH, "-c", script, log=log))
    await log.until("ready")
    async with asyncio.timeout(60):
        while len(pids(log)) < 4:
            await log.changed.wait()
            log.changed.clear()
    command = next(pid for pid in pids(log) if parent_of(parent_of(pid)) in our_children())
    victim = command
    for _ in range(generations):
        victim = parent_of(victim)
    os.kill(victim, number)
    result, _ = await asyncio.wait_for(task, 60)
    assert result.error is not None
    await eventually(lambda: not any(is_running(pid) for pid in pids(log)))


async def test_a_stopped_guard_and_supervisor_end_their_command_when_cancelled() -> None:
    log = Log()
    script = f"{ESCAPE}; echo $$ $PPID ready; exec sleep 600"
    task = asyncio.create_task(run(SH, "-c", script, log=log))
    await log.until("ready")
    supervisor = int(log.text().split("ready")[0].split()[-1])
    os.kill(parent_of(supervisor), signal.SIGSTOP)
    os.kill(supervisor, signal.SIGSTOP)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    await eventually(lambda: not any(is_running(pid) for pid in pids(log)))


# The worker's lease


async def test_a_command_ends_when_the_lease_is_not_extended() -> None:
    clock = SystemClock()
    lease = RunLease(clock.monotonic() + 1)
    log = Log()
    with pytest.raises(LeaseLost):
        await run(SH, "-c", f"{ESCAPE}; sleep 600 & wait", log=log, lease=lease)
    assert not any(is_running(pid) for pid in pids(log))


async def test_a_command_cannot_pretend_that_the_lease_is_over() -> None:
    """Another worker would execute the run again."""
    script = "read _ _ _ guard _ < /proc/$PPID/stat; kill -ALRM $guard $PPID; echo ended; exit 3"
    result, log = await run(SH, "-c", script)
    assert log.text() == "ended\n"
    assert result.exit_code == 3


async def test_a_command_goes_on_while_the_lease_is_extended() -> None:
    clock, log = SystemClock(), Log()
    lease = RunLease(clock.monotonic() + 1000)
    task = asyncio.create_task(run(SH, "-c", "echo ready; exec sleep 600", log=log, lease=lease))
    await log.until("ready")
    lease.extend(clock.monotonic() + 2000)
    lease.extend(clock.monotonic())
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(task, 60)


async def test_a_command_is_not_started_after_the_lease() -> None:
    with pytest.raises(LeaseLost):
        await run(SH, "-c", "echo started", lease=RunLease(SystemClock().monotonic()))


# The supervisor as a program of its own, started as a module so that the lines it executes are measured.


async def supervised(
    folder: Path, *argv: str, until: str = "inf"
) -> tuple[asyncio.subprocess.Process, int]:
    held, hold = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        supervisor.__name__,
        str(folder),
        until,
        *argv,
        stdin=held,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(held)
    return process, hold


@pytest.mark.parametrize(
    ("script", "code"),
    [("touch left; exit 7", 7), ("(setsid sleep 600 >/dev/null 2>&1 &) ; kill -15 $$", 143)],
)
async def test_the_supervisor_passes_on_the_exit_status(
    tmp_path: Path, script: str, code: int
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    process, hold = await supervised(folder, SH, "-c", f"cd {folder}; {script}")
    assert await process.wait() == code
    os.close(hold)
    assert not folder.exists()


async def test_the_supervisor_ends_its_command_when_its_input_is_closed(tmp_path: Path) -> None:
    process, hold = await supervised(tmp_path / "x", SH, "-c", "trap '' TERM; echo r; sleep 600")
    assert process.stdout is not None
    await process.stdout.readline()
    os.close(hold)
    assert await asyncio.wait_for(process.wait(), 60) == 137


async def test_guard_and_supervisor_have_no_second_thread(tmp_path: Path) -> None:
    """Their exit status is the command's, and an interpreter that exits beside a thread of its own can crash."""
    process, hold = await supervised(tmp_path / "x", SH, "-c", "echo $PPID; exec sleep 600")
    assert process.stdout is not None
    guards = [int(await process.stdout.readline()), process.pid]
    assert [len(entries(Path(f"/proc/{pid}/task"))) for pid in guards] == [1, 1]
    os.close(hold)
    assert await asyncio.wait_for(process.wait(), 60) == 143


@pytest.mark.parametrize(
    ("written", "code"),
    [([0.0], -supervisor.LEASE_OVER), ([0.0, 1e12], 0), ([1e12, 0.0], -supervisor.LEASE_OVER)],
)
async def test_the_supervisor_uses_the_last_renewal(
    tmp_path: Path, written: list[float], code: int
) -> None:
    os.mkfifo(tmp_path / "go")
    script = f"cd {tmp_path}; echo r; read line < go; exit 0"
    process, hold = await supervised(tmp_path / "x", SH, "-c", script, until="1e12")
    assert process.stdout is not None
    await process.stdout.readline()
    os.write(hold, struct.pack(f"{len(written)}d", *written))
    if code == 0:
        # It was read once the pipe is empty again.
        await eventually(lambda: unread(hold) == 0)
        await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    assert await asyncio.wait_for(process.wait(), 60) == code
    os.close(hold)


def unread(pipe: int) -> int:
    size = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, size)
    return size[0]
