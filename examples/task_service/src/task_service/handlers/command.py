"""The handler `command`: a program that the administrator has listed, with arguments and without a shell.

The administrator's list (`allowed_commands`) holds absolute paths and bare names. A bare name is looked up in
:data:`COMMAND_PATH`, never in the service's own `PATH`. A task may give a listed command *any* arguments, so only
programs that are harmless with every option belong on the list: `date` does not, since `date --file` prints the
contents of any file that the command can read.

Lines of the form `::progress 40 Copying` on its standard output are reports of its progress and not output; see
:mod:`task_service.handlers.progress_lines`.

The program gets an empty standard input, an environment of four variables without any of the service's secrets, and
a fresh folder that is removed afterwards. :mod:`task_service.handlers.sandbox` keeps it from the service's files and
processes; where there is no sandbox, only :data:`DEFAULT_ALLOWED_COMMANDS` are executed. It runs in a session of its own
under :mod:`task_service.handlers.supervisor`, which ends it when the worker's lease of the run is over.
"""

from __future__ import annotations

import asyncio
import codecs
import math
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from msk_auth import InputInvalid, SystemClock

from . import supervisor
from .base import Handler, HandlerParams, HandlerResult, LeaseLost, RunContext, Stream
from .progress_lines import ProgressLines
from .sandbox import CommandSandbox

DEFAULT_ALLOWED_COMMANDS: tuple[str, ...] = ("echo",)
"""What may be run before an administrator has listed anything: enough for the example task, harmless with any argument."""
COMMAND_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where bare names are looked up, and the `PATH` that commands see."""
MAX_ARGUMENTS = 256
MAX_ARGUMENT_BYTES = 64 * 1024
"""The kernel takes 128 KiB in one argument (MAX_ARG_STRLEN)."""

# What the supervisor reads; the run's own clock may be another one.
_MACHINE = SystemClock()
_READ_BYTES = 64 * 1024
# Output beyond the log's bound is read on, so that the command can finish, but at this pace.
_DISCARD_PAUSE = 0.01
_LISTED = re.compile(r"/[^\x00-\x1f\x7f]{1,1023}|[^/\s\x00-\x1f\x7f]{1,255}")


def check_listed_command(entry: str) -> str:
    """Validate one entry of `allowed_commands` and return it.

    Raises:
        ValueError: It is neither an absolute path nor a bare name.
    """
    if _LISTED.fullmatch(entry) is None or entry in {".", ".."}:
        raise ValueError(
            "A command is an absolute path, or a bare name without spaces; arguments are not listed."
        )
    return entry


def refuse_unconfined(commands: Iterable[str], sandbox: CommandSandbox) -> str | None:
    """Why these commands may not be executed on this machine, and what to do; None if they may.

    Args:
        commands: As they are listed.
        sandbox: What they would run in.
    """
    exposed = [command for command in commands if command not in DEFAULT_ALLOWED_COMMANDS]
    if not exposed or not sandbox.is_missing:
        return None
    return (
        f"The command {exposed[0]!r} could read the service's secrets, because the kernel of this machine has no Landlock"
        " to keep it from them. Execute commands on Linux 5.13 or later with Landlock, take it off the list, or accept"
        " that with TASK_SERVICE_COMMAND_SANDBOX=off."
    )


class CommandParams(HandlerParams):
    """The argument vector: the program as the administrator listed it, then its arguments, passed on untouched."""

    argv: Annotated[
        list[str],
        Field(
            min_length=1,
            max_length=MAX_ARGUMENTS,
            title="Command and arguments",
            description="The program as the administrator listed it, followed by its arguments.",
        ),
    ]

    @field_validator("argv")
    @classmethod
    def _argv(cls, value: list[str]) -> list[str]:
        if not value[0]:
            raise ValueError("The first entry is the program and cannot be empty.")
        for argument in value:
            if "\x00" in argument:
                raise ValueError("An argument cannot contain a NUL character.")
            if len(argument.encode()) > MAX_ARGUMENT_BYTES:
                raise ValueError(f"An argument may be {MAX_ARGUMENT_BYTES} bytes at most.")
        return value


class Command(Handler[CommandParams]):
    """Runs a listed program. The exit code is the program's own, 128 + N if signal N ended it."""

    name: ClassVar[str] = "command"
    title: ClassVar[str] = "Command"
    description: ClassVar[str] = (
        "Runs a program on the server that an administrator has allowed, without a shell, and logs its output."
    )
    Params = CommandParams

    async def check(self, params: CommandParams) -> None:
        """Refuse a program that is not on the administrator's list now."""
        if params.argv[0] not in await self.environment.allowed_commands():
            raise InputInvalid.of(
                "params.argv",
                "The administrator has not allowed this command. The first entry must be on the list.",
            )

    async def run(self, params: CommandParams, context: RunContext) -> HandlerResult:
        """See :meth:`Handler.run`. When cancelled, returns after the whole process group is gone."""
        refusal = refuse_unconfined(params.argv[:1], self.environment.command_sandbox)
        if refusal is not None:
            return HandlerResult(exit_code=supervisor.CANNOT_START, error=refusal)
        program = shutil.which(params.argv[0], path=COMMAND_PATH)
        if program is None:
            return HandlerResult(
                exit_code=supervisor.CANNOT_START,
                error="The command is not installed on the server.",
            )
        code = await _run(program, params.argv, context, self.environment.command_sandbox)
        if code == 0:
            return HandlerResult(exit_code=0)
        if code == -supervisor.LEASE_OVER:
            raise LeaseLost
        code = supervisor.exit_status(code)
        return HandlerResult(exit_code=code, error=f"The command ended with exit status {code}.")


async def _run(program: str, argv: list[str], context: RunContext, sandbox: CommandSandbox) -> int:
    context.check_lease()
    folder = tempfile.mkdtemp(prefix="task-")
    held, hold = os.pipe()
    os.set_blocking(hold, False)
    rules: int | None = None
    try:
        try:
            rules = sandbox.rules(Path(folder))
            process = await asyncio.create_subprocess_exec(
                # -I and -S: nothing of the environment or of installed packages runs before the supervisor does.
                *(sys.executable, "-I", "-S", supervisor.__file__),
                *(folder, str(_machine_time(context)), str(rules), program),
                *argv,
                stdin=held,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=folder,
                env={"PATH": COMMAND_PATH, "LANG": "C.UTF-8", "HOME": folder, "TMPDIR": folder},
                start_new_session=True,
                pass_fds=() if rules is None else (rules,),
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(held)
            if rules is not None:
                os.close(rules)
        ended = asyncio.ensure_future(_until_ended(process, context))
        extending = asyncio.create_task(_extend(hold, context))
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            extending.cancel()
            os.close(hold)
            hold = -1
            if process.returncode is None:
                # A supervisor that was stopped (SIGSTOP) would never read it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)
            # What it says while it cleans up still belongs in the log.
            await ended
            raise
        finally:
            extending.cancel()
    finally:
        if hold != -1:
            os.close(hold)


async def _extend(hold: int, context: RunContext) -> None:
    """Pass each renewal of the lease on to the supervisor."""
    while math.isfinite(context.lease.until):
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(hold, f"{_machine_time(context)}\n".encode())
        await context.lease.extended()


def _machine_time(context: RunContext) -> float:
    """When the lease is over, by the machine's clock."""
    # Read in this order: if this process is frozen in between, the result is early and not late.
    now = _MACHINE.monotonic()
    return now + (context.lease.until - context.clock.monotonic())


async def _until_ended(process: asyncio.subprocess.Process, context: RunContext) -> int:
    assert process.stdout is not None  # noqa: S101 - both were asked for
    assert process.stderr is not None  # noqa: S101
    await asyncio.gather(
        _copy(process.stdout, "stdout", context), _copy(process.stderr, "stderr", context)
    )
    return await process.wait()


async def _copy(source: asyncio.StreamReader, stream: Stream, context: RunContext) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    lines = ProgressLines(context.report_progress) if stream == "stdout" else None
    while chunk := await source.read(_READ_BYTES):
        text = decoder.decode(chunk)
        if lines is not None:
            text = lines.feed(text)
        if context.log_full:
            await asyncio.sleep(_DISCARD_PAUSE)
        else:
            context.log(stream, text)
    rest = decoder.decode(b"", final=True)
    context.log(stream, rest if lines is None else lines.feed(rest) + lines.rest())
