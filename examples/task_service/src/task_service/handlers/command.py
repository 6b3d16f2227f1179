"""The handler `command`: executes a program that the administrator has listed, without a shell.

The administrator's list (`allowed_commands`) has absolute paths and bare names. A bare name is looked up in
:data:`COMMAND_PATH`, never in the service's own `PATH`. A task may give a listed command *any* arguments, so list only
programs that are harmless with every option: not `date`, since `date --file` prints any file that the command can read.

Lines of the form `::progress 40 Copying` on its standard output report its progress; see :class:`ProgressLines`.

The program gets an empty standard input, an environment of five variables without the service's secrets, and a new folder
that is removed afterwards. It has all rights of the process that executes it: only that process's sandbox, such as the unit
or container of a worker, limits the program. It runs in its own session under :mod:`task_service.handlers.supervisor`, which
bounds its memory and ends it with its worker.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar, Final

from pydantic import Field, field_validator

from msk_auth import SystemClock
from msk_auth.errors import InputInvalid

from . import supervisor
from .base import Handler, HandlerParams, HandlerResult, LeaseLost, RunContext, Stream

DEFAULT_ALLOWED_COMMANDS: tuple[str, ...] = ("echo",)
"""The commands that are allowed by default: enough for the example task, and harmless with any argument."""
COMMAND_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The folders in which bare names are looked up, and the `PATH` of the commands."""
MAX_ARGUMENTS = 256
MAX_ARGUMENT_BYTES = 64 * 1024
"""The kernel accepts 128 KiB in one argument (MAX_ARG_STRLEN)."""

# The supervisor's clock; the run may have another clock.
_MACHINE = SystemClock()
_READ_BYTES = 64 * 1024
# A pause while output comes faster than it is saved. The output is still read, so that the command can finish.
_FLOOD_PAUSE = 0.01
_PROGRESS_MARK: Final = "::progress "
_PROGRESS_LINE: Final = re.compile(
    r"::progress (?P<percent>[0-9]{1,3}(?:\.[0-9]{1,6})?)%?(?: (?P<text>[^\n]*))?\n?"
)
_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")
# A longer line is output, even if it begins like a report: the worker must not hold it back for ever.
_MAX_PROGRESS_LINE: Final = 1000
LISTED_COMMAND: Final = r"/[^\x00-\x1f\x7f]{1,1023}|(?!\.\.?$)[^/\s\x00-\x1f\x7f]{1,255}"
"""The form of an entry of `allowed_commands`, as a regular expression."""


def check_listed_command(entry: str) -> str:
    """Validate one entry of `allowed_commands` and return it.

    Raises:
        ValueError: The entry is neither an absolute path nor a bare name.
    """
    if re.fullmatch(LISTED_COMMAND, entry) is None:
        raise ValueError(
            "Not a command. Write an absolute path, or a bare name without spaces and arguments."
        )
    return entry


def harmless_of(commands: Sequence[str]) -> tuple[str, ...]:
    """The commands that a process with secrets may execute: no argument makes them read a secret."""
    return tuple(command for command in commands if command in DEFAULT_ALLOWED_COMMANDS)


class CommandParams(HandlerParams):
    """The argument vector: the program as the administrator listed it, then its arguments, passed on unchanged."""

    argv: Annotated[
        list[Annotated[str, Field(title="Argument")]],
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
        for argument in value:
            if "\x00" in argument:
                raise ValueError("An argument contains a NUL character. Remove it.")
            if len(argument.encode()) > MAX_ARGUMENT_BYTES:
                raise ValueError(
                    f"An argument is too long. Send at most {MAX_ARGUMENT_BYTES} bytes."
                )
        return value


class Command(Handler[CommandParams]):
    """Executes a listed program. The exit code is the program's own, 128 + N if signal N ended it."""

    name: ClassVar[str] = "command"
    title: ClassVar[str] = "Command"
    description: ClassVar[str] = (
        "Runs a program that an administrator has allowed, on the server and without a shell, and logs its output."
    )
    Params = CommandParams

    async def check(self, params: CommandParams) -> None:
        """Refuse a program that is not on the administrator's present list."""
        if params.argv[0] not in await self.environment.allowed_commands():
            raise InputInvalid.of(
                "params.argv",
                "This command is not allowed. The first entry must be on the administrator's list, and the service's operator"
                " must permit listed commands.",
            )

    async def run(self, params: CommandParams, context: RunContext) -> HandlerResult:
        """See :meth:`Handler.run`. When cancelled, returns after the whole process group has ended."""
        code = await _run(params.argv, context)
        if code == 0:
            return HandlerResult(exit_code=0)
        if code == -supervisor.LEASE_OVER:
            raise LeaseLost
        code = supervisor.exit_status(code)
        return HandlerResult(exit_code=code, error=f"The command ended with exit status {code}.")


async def _run(argv: list[str], context: RunContext) -> int:
    context.check_lease()
    # The supervisor removes the folder too: this process may be killed.
    with tempfile.TemporaryDirectory(prefix="task-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            # -I and -S: neither the environment nor installed packages run code before the supervisor.
            *(sys.executable, "-I", "-S", supervisor.__file__),
            *(folder, str(_machine_time(context))),
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={
                "PATH": COMMAND_PATH,
                "LANG": "C.UTF-8",
                "HOME": folder,
                "TMPDIR": folder,
                # Its output is a pipe, which Python would fill with 8 KiB before it writes a line.
                "PYTHONUNBUFFERED": "1",
            },
            start_new_session=True,
        )
        # All three are pipes.
        assert process.stdin and process.stdout and process.stderr  # noqa: S101, PT018
        renewing = asyncio.create_task(_renew(process.stdin, context))
        ended = asyncio.gather(
            _copy(process.stdout, "stdout", context),
            _copy(process.stderr, "stderr", context),
            process.wait(),
        )
        try:
            await asyncio.shield(ended)
        finally:
            renewing.cancel()
            process.stdin.close()
            if process.returncode is None:
                # A supervisor that was stopped (SIGSTOP) would never read it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)
            # The output of a command that cleans up still belongs in the log.
            _, _, code = await ended
        return code


async def _renew(supervisor_input: asyncio.StreamWriter, context: RunContext) -> None:
    """Pass each renewal of the lease to the supervisor."""
    while True:
        supervisor_input.write(struct.pack("d", _machine_time(context)))
        await context.lease.extended()


def _machine_time(context: RunContext) -> float:
    """The end of the lease by the machine's clock."""
    # In this order: if this process is frozen in between, the result is too early, not too late.
    now = _MACHINE.monotonic()
    return now + (context.lease.until - context.clock.monotonic())


async def _copy(source: asyncio.StreamReader, stream: Stream, context: RunContext) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    lines = ProgressLines(context.report_progress) if stream == "stdout" else None
    is_over = False
    while not is_over:
        chunk = await source.read(_READ_BYTES)
        is_over = not chunk
        text = decoder.decode(chunk, final=is_over)
        context.log(stream, text if lines is None else lines.feed(text, is_over=is_over))
        if context.log_full:
            await asyncio.sleep(_FLOOD_PAUSE)


class ProgressLines:
    """Extracts progress reports from output that arrives in pieces.

    A line of standard output such as `::progress 40` or `::progress 40 Copying the files` is a report: a percentage, with or
    without decimals, and a few words. It is shown as a bar and left out of the log. A line that only looks similar is output.

    Args:
        report: Called with a fraction from 0 to 1 and the text, which may be empty.
    """

    def __init__(self, report: Callable[[float, str | None], None]) -> None:
        self._report = report
        self._held = ""
        self._at_line_start = True

    def feed(self, text: str, *, is_over: bool = False) -> str:
        """Take a piece of output and return the text for the log.

        The beginning of a possible report is held back until the rest of its line arrives.

        Args:
            text: The piece.
            is_over: True for the last piece.
        """
        if not self._held and ":" not in text:
            # A flood of short lines would keep the event loop from renewing the lease.
            self._at_line_start = text.endswith("\n") if text else self._at_line_start
            return text
        text, self._held, kept = self._held + text, "", ""
        for line in _LINES.findall(text):
            is_whole = is_over or line.endswith("\n")
            is_report = self._reports if is_whole else _may_be_a_report
            if self._at_line_start and is_report(line):
                self._held = "" if is_whole else line
            else:
                kept += line
                self._at_line_start = is_whole
        return kept

    def _reports(self, line: str) -> bool:
        found = _PROGRESS_LINE.fullmatch(line)
        if found is None or (fraction := float(found["percent"]) / 100) > 1:
            return False
        self._report(fraction, found["text"])
        return True


def _may_be_a_report(begun: str) -> bool:
    return len(begun) <= _MAX_PROGRESS_LINE and _PROGRESS_MARK.startswith(
        begun[: len(_PROGRESS_MARK)]
    )
