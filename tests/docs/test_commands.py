"""What the pages ask readers to type exists: commands, options, settings, files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from docs.tools import commands_page
from tests.cases import case

from msk_auth.cli import build_parser
from task_service.settings import PREFIX, Settings

from .tutorial import blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "task_service" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
SHELL = {"bash", "console", "sh", "shell"}


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(page: Path) -> Iterator[str]:
    """The lines of shell on a page, without prompts and with continued lines joined."""
    for block in blocks(page):
        if block.language in SHELL:
            text = re.sub(r"^\$ ", "", block.text, flags=re.MULTILINE)
            yield from re.sub(r"\\\n\s*", " ", text).splitlines()


def calls(page: Path, command: str) -> Iterator[list[str]]:
    """The arguments with which a page calls a command."""
    for line in lines(page):
        words = shlex.split(line, comments=True)
        for index, word in enumerate(words):
            is_first = index == 0 or words[index - 1] in {"|", "&&", "sudo"}
            if word.endswith(f"/bin/{command}") or (word == command and is_first):
                arguments = words[index + 1 :]
                ends = [i for i, each in enumerate(arguments) if each in {"|", ">", ">>", "&&"}]
                yield arguments[: min(ends, default=len(arguments))]


def every_call(command: str) -> list[tuple[str, list[str]]]:
    """Each page that calls a command, with the arguments."""
    every = [(named(page), call) for page in PAGES for call in calls(page, command)]
    assert every
    return every


def test_a_call_of_the_library_s_command_is_accepted() -> None:
    for page, arguments in every_call("msk-auth"):
        with case(page, arguments):
            assert build_parser().parse_args(arguments).run is not None


def found(arguments: list[str]) -> tuple[click.Command, list[str]]:
    for words, command in commands_page.commands():
        called = list(words[1:])
        if arguments[: len(called)] == called:
            return command, arguments[len(called) :]
    raise AssertionError(f"there is no command task-service {' '.join(arguments)}")


def test_a_call_of_the_service_s_command_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    # A page that calls `copy-data` without a target has the settings written before.
    monkeypatch.setenv(f"{PREFIX}DATABASE_URL", "postgresql://db.internal/task_service")
    for page, arguments in every_call("task-service"):
        with case(page, arguments):
            command, rest = found(arguments)
            assert command.make_context(command.name, rest, resilient_parsing=False) is not None


def test_what_is_to_be_made_can_be_made() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for page, arguments in every_call("make"):
        with case(page, arguments):
            (target, *_) = [word for word in arguments if "=" not in word] or ["help"]
            assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE)


def test_every_setting_that_a_page_names_exists() -> None:
    for page in PAGES:
        with case(page):
            known = {PREFIX + name.upper() for name in Settings.model_fields}
            written = re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", page.read_text("utf-8"))
            assert set(written) - known == set()


def test_the_shell_can_read_every_line() -> None:
    scripts = {page: "\n".join(lines(page)) for page in PAGES if any(lines(page))}
    assert scripts
    for page, script in scripts.items():
        with case(named(page)):
            result = subprocess.run(
                ["bash", "-n"],
                input=re.sub(r"\{\w+\}", "id", script),
                capture_output=True,
                text=True,
                check=False,
            )
            assert result.stderr == ""


# The tutorial that deploys the service.


def test_the_script_for_commands_hands_settings_over_in_the_environment_alone(
    tmp_path: Path,
) -> None:
    deploy = ROOT / "examples" / "task_service" / "deploy"
    settings = tmp_path / "task-service.env"
    url = "postgresql://u:pa$$w&rd@h/d?a=1 2"
    settings.write_text(
        f"# PostgreSQL\nTASK_SERVICE_DATABASE_URL='{url}'\nTASK_SERVICE_PORT=8001\n"
    )
    command, runuser = tmp_path / "command", tmp_path / "runuser"
    command.write_text(
        '#!/bin/sh\necho "$*"\necho "$TASK_SERVICE_DATABASE_URL $TASK_SERVICE_PORT"\ncat\n'
    )
    runuser.write_text('#!/bin/sh\necho "$*"\nshift 3\nexec "$@"\n')
    script = tmp_path / "task-service"
    text = (deploy / "task-service").read_text("utf-8")
    text = text.replace("/etc/task-service.env", str(settings))
    script.write_text(
        text.replace("/opt/task-service/current/.venv/bin/task-service", str(command))
    )
    for each in (command, runuser, script):
        each.chmod(0o755)
    result = subprocess.run(
        [str(script), "users", "create", "a b"],
        input="the password",
        env={"PATH": f"{tmp_path}:{os.defpath}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == [
        f"-u task-service -- {command} users create a b",
        "users create a b",
        f"{url} 8001",
        "the password",
    ]
