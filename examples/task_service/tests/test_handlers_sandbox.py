"""What commands are kept from: the service's files and processes, although they belong to the same user."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from msk_auth import SystemClock
from task_service.handlers import HandlerEnvironment, HandlerResult, RunContext, Stream
from task_service.handlers import sandbox as sandbox_module
from task_service.handlers.command import Command, CommandParams, refuse_unconfined
from task_service.handlers.sandbox import CommandSandbox, landlock_version
from task_service.settings import Settings
from task_service.worker import command_sandbox_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

needs_landlock = pytest.mark.skipif(
    landlock_version() == 0, reason="needs a Linux kernel with Landlock"
)
SECRET = "the pepper and the signing key"


class Log:
    full = False

    def __init__(self) -> None:
        self.text = ""

    def write(self, stream: Stream, text: str) -> None:
        self.text += text


async def no_commands() -> list[str]:
    return []


async def execute(sandbox: CommandSandbox, *argv: str) -> tuple[HandlerResult, str]:
    """How a command ends in this sandbox, and all that it prints."""
    log = Log()
    command = Command(HandlerEnvironment(no_commands, command_sandbox=sandbox))
    context = RunContext("run_1", 1, SystemClock(), log)
    return await command.run(CommandParams(argv=list(argv)), context), log.text


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "data"
    folder.mkdir(parents=True)
    (folder / "secrets.json").write_text(SECRET)
    (tmp_path / "state" / "beside").write_text("not hidden")
    return folder


@pytest.fixture
def sandbox(data: Path) -> CommandSandbox:
    return CommandSandbox.hiding([data])


@needs_landlock
async def test_a_command_cannot_read_the_secrets_file(data: Path, sandbox: CommandSandbox) -> None:
    result, printed = await execute(sandbox, "cat", str(data / "secrets.json"))
    assert (result.exit_code, "Permission denied" in printed) == (1, True)
    assert SECRET not in printed


@needs_landlock
async def test_a_command_cannot_read_the_password_of_the_database(
    tmp_path: Path,
) -> None:
    (tmp_path / "pgpass").write_text(SECRET)
    # As a composition mounts it: the name is a link.
    (tmp_path / "link").symlink_to(tmp_path / "pgpass")
    url = f"postgresql://ann@db/tasks?passfile={tmp_path}/link"
    sandbox = command_sandbox_of(Settings(data_dir=tmp_path / "data", database_url=url))
    for name in ("pgpass", "link"):
        result, printed = await execute(sandbox, "cat", str(tmp_path / name))
        assert (result.exit_code, "Permission denied" in printed) == (1, True)
        assert SECRET not in printed


@needs_landlock
@pytest.mark.parametrize(
    "script",
    [
        "cat /proc/self/root$D/secrets.json",
        "cat /proc/$PPID/root$D/secrets.json",
        "ln -s $D/secrets.json link; cat link",
        "ln $D/secrets.json link; cat link",
        "mv $D/secrets.json .; cat secrets.json",
        "mv $D ${D}2; cat ${D}2/secrets.json",
        "mv $D/.. $D/../../other; cat $D/../../other/data/secrets.json",
        "cp -r $D .; cat data/secrets.json",
        "cd $D && cat secrets.json",
        "ls -R $D/..",
        "unshare --map-root-user --mount cat $D/secrets.json",
        "echo overwritten > $D/secrets.json; rm -rf $D; touch $D/new",
    ],
)
async def test_no_other_way_leads_to_the_data_folder(
    data: Path, sandbox: CommandSandbox, script: str
) -> None:
    _, printed = await execute(sandbox, "sh", "-c", f"D={data}; {script}")
    assert SECRET not in printed
    assert "secrets.json\n" not in printed
    assert _files(data) == {"secrets.json": SECRET}


def _files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@needs_landlock
async def test_a_command_cannot_read_its_workers_environment(sandbox: CommandSandbox) -> None:
    script = (
        f"cat /proc/{os.getpid()}/environ || echo refused; cat /proc/{os.getpid()}/maps || echo refused;"
        " for each in /proc/[0-9]*/environ; do tr '\\0' '\\n' < $each; done"
    )
    mine = set(_environment().split("\0")) - {"", "LANG=C.UTF-8"}
    assert mine
    _, printed = await execute(sandbox, "sh", "-c", script)
    assert printed.count("refused") == 2
    assert "TMPDIR=" in printed  # its own
    assert not mine & set(printed.splitlines())


def _environment() -> str:
    return Path("/proc/self/environ").read_text()


@needs_landlock
async def test_a_command_cannot_signal_its_worker(sandbox: CommandSandbox) -> None:
    if landlock_version() < 6:
        pytest.skip("signals are confined since Linux 6.12")
    result, _ = await execute(sandbox, "sh", "-c", f"kill -0 {os.getpid()} && kill -0 $PPID")
    assert result.exit_code == 1


@needs_landlock
async def test_a_command_has_no_capability_and_can_gain_none(sandbox: CommandSandbox) -> None:
    _, printed = await execute(
        sandbox, "grep", "-E", "^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)", "/proc/self/status"
    )
    values = dict(line.split(":\t") for line in printed.splitlines())
    assert values.pop("NoNewPrivs") == "1"
    assert set(values.values()) == {"0" * 16}


@needs_landlock
async def test_commands_can_use_what_they_need(
    data: Path, sandbox: CommandSandbox, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    script = (
        f"echo a > file && mkdir folder && mv file folder/ && ln folder/file linked && cat linked; pwd >/dev/null;"
        f" cat {data.parent}/beside; echo; echo b > {tmp_path}/elsewhere/new && cat {tmp_path}/elsewhere/new;"
        " mktemp > /dev/null && echo temporary; sleep 60 & kill $! && echo signalled"
    )
    result, printed = await execute(sandbox, "sh", "-c", script)
    assert (result, printed) == (HandlerResult(0), "a\nnot hidden\nb\ntemporary\nsignalled\n")


@needs_landlock
async def test_off_allows_commands_what_the_services_user_may(data: Path) -> None:
    sandbox = CommandSandbox.hiding([data], required=False)
    _, printed = await execute(sandbox, "cat", str(data / "secrets.json"))
    assert printed == SECRET


async def test_without_landlock_only_echo_is_executed(data: Path) -> None:
    missing = CommandSandbox([data], version=0)
    result, printed = await execute(missing, "cat", str(data / "secrets.json"))
    assert (result.exit_code, printed) == (126, "")
    assert result.error is not None
    assert "TASK_SERVICE_COMMAND_SANDBOX=off" in result.error
    # Not confined, and there is nothing that it could read.
    assert await execute(missing, "echo", "hello") == (HandlerResult(0), "hello\n")


async def test_echo_is_executed_where_the_kernel_refuses_landlock(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as in a unit whose SystemCallFilter does not name its system calls."""
    monkeypatch.setattr(sandbox_module, "_syscall", lambda *_: -1)
    refusing = CommandSandbox([data], landlock_version.__wrapped__())
    assert await execute(refusing, "echo", "hello") == (HandlerResult(0), "hello\n")


def test_why_commands_are_refused() -> None:
    missing = CommandSandbox(version=0)
    assert refuse_unconfined(["echo"], missing) is None
    assert "'cat'" in str(refuse_unconfined(["echo", "cat"], missing))
    assert refuse_unconfined(["cat"], CommandSandbox(version=0, required=False)) is None
    assert refuse_unconfined(["cat"], CommandSandbox(version=1)) is None


@needs_landlock
@pytest.mark.parametrize("version", [1, 2, 3, 6])
async def test_an_older_kernels_landlock_is_enough(data: Path, version: int) -> None:
    sandbox = CommandSandbox([data], version=version)
    script = f"cat {data}/secrets.json; echo a > file && cat file"
    result, printed = await execute(sandbox, "sh", "-c", script)
    assert result.exit_code == 0
    # What a command writes to its two streams arrives in any order.
    assert "a" in printed.splitlines()
    assert SECRET not in printed


@needs_landlock
@pytest.mark.parametrize("refused", [1, 2])
async def test_a_command_that_cannot_be_confined_does_not_run(
    data: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    real, calls = sandbox_module._syscall, itertools.count(1)

    def refuse(number: int, *arguments: int | bytes | None) -> int:
        return -1 if next(calls) == refused else real(number, *arguments)

    monkeypatch.setattr(sandbox_module, "_syscall", refuse)
    with pytest.raises(OSError, match="Landlock"):
        await execute(CommandSandbox([data], version=1), "echo", "hello")


def test_only_linux_has_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert landlock_version.__wrapped__() == 0


@needs_landlock
def test_a_folder_that_cannot_be_listed_is_not_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "there" / "data"
    hidden.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path)
    assert list(sandbox_module._beside(tmp_path, [hidden])) == []
    (tmp_path / "beside").touch()
    assert list(sandbox_module._beside(tmp_path, [hidden])) == [tmp_path / "beside"]
    assert list(sandbox_module._beside(tmp_path / "gone", [tmp_path / "gone" / "data"])) == []
    rules = CommandSandbox([hidden], version=1).rules(tmp_path / "vanished")
    assert rules is not None
    os.close(rules)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs prctl")
def test_the_service_hides_its_memory() -> None:
    script = (
        "import ctypes; from task_service.memory import hide_memory; hide_memory();"
        " print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
