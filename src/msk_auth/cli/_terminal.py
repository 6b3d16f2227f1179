"""What the commands share: how they speak, and how they give up."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from msk_auth import redact


class CommandFailed(Exception):
    """Something could not be done; its message is all that is said about it."""


def say(text: str) -> None:
    """One line, or several, for whoever asked."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """A line beside the output."""
    sys.stderr.write(f"msk-auth: {text}\n")


def shown(text: str) -> str:
    """Text from elsewhere, such as a file's name: no secret in it, and nothing that a terminal obeys."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in redact(text)
    )


class Commands:
    """The commands of the command line.

    Attributes:
        added: From a command's name to what it is for, and its own parser.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._subparsers: Any = parser.add_subparsers(metavar="COMMAND", required=True)
        self.added: dict[str, tuple[str, argparse.ArgumentParser]] = {}

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
        self.added[name] = summary, parser
        return parser
