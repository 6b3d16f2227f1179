"""Running the command in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from msk_auth.cli import main

KEY = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"
SECRET = "000000000000000000000000000000002uGo9O"


@dataclass
class Ran:
    """What became of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with these arguments and this input."""

    def run(*arguments: object, stdin: str | bytes = b"") -> Ran:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        try:
            code = main([str(each) for each in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True

    def __init__(self, *_: Any) -> None:
        super().__init__()
