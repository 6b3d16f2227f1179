"""What the commands share: output, errors and the parser."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from msk_auth.redaction import redact


class CommandFailed(Exception):
    """A command failed. Only the message is shown, without a traceback."""


def write_line(text: str) -> None:
    """Write to standard output."""
    sys.stdout.write(f"{text}\n")


def write_error(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"msk-auth: {text}\n")


def shown(text: str) -> str:
    """Foreign text, such as a file's name, without secrets and without control characters for a terminal."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in redact(text)
    )


class Commands:
    """The commands of the command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._subparsers: Any = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(self, name: str, *, summary: str, examples: str) -> argparse.ArgumentParser:
        """Add a command whose help ends with examples."""
        parser: argparse.ArgumentParser = self._subparsers.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        return parser
