"""`msk-auth generate` and `msk-auth inspect`."""

from __future__ import annotations

import argparse
import getpass
import json
import re
import sys
from typing import Final

from msk_auth import KeyFormat
from msk_auth.core.keys import CHECKSUM_LENGTH, ID_LENGTH, SECRET_LENGTH
from msk_auth.errors import CredentialRefused

from ._terminal import CommandFailed, Commands, write_error, write_line

_MAX_COUNT: Final = 100_000
_MAX_INPUT: Final = 4096
_TAIL: Final = SECRET_LENGTH + CHECKSUM_LENGTH
_FOREIGN: Final = re.compile(r"[^0-9A-Za-z]")


def add_keys(commands: Commands) -> None:
    """Add the two commands."""
    generate = commands.add(
        "generate",
        summary="print fresh keys that no store knows, for tests and fixtures",
        examples="  msk-auth generate\n  msk-auth generate --prefix acme --count 3",
    )
    generate.add_argument("--prefix", default="msk", help="what the keys begin with (msk)")
    generate.add_argument("--count", type=_count, default=1, help="how many (1)")
    generate.set_defaults(run=_generate)

    inspect = commands.add(
        "inspect",
        summary="check whether a key is well-formed, and print its id; uses no network",
        examples=(
            "  msk-auth inspect                  prompts for the key, and does not show it\n"
            "  pass show api-key | msk-auth inspect --format json\n\n"
            "Exit code 1 means that the key is malformed. The secret is never printed."
        ),
    )
    inspect.add_argument(
        "key", nargs="?", help="better left out: arguments stay in the shell's history"
    )
    inspect.add_argument("--prefix", help="demand this prefix (default: any)")
    inspect.add_argument("--format", choices=["text", "json"], default="text")
    inspect.set_defaults(run=_inspect)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_COUNT:
        raise argparse.ArgumentTypeError(f"a number from 1 to {_MAX_COUNT}")
    return int(text)


def _generate(given: argparse.Namespace) -> int:
    key_format = KeyFormat(given.prefix)
    for _ in range(given.count):
        write_line(key_format.generate().reveal())
    return 0


def _inspect(given: argparse.Namespace) -> int:
    if given.key is None:
        text = _read()
    else:
        text = given.key
        write_error("the key is in your shell's history now. Pass it on standard input next time.")
    prefix, separator, _ = text.partition("_")
    key_format = KeyFormat(given.prefix or (prefix if _is_prefix(prefix) and separator else "msk"))
    try:
        key = key_format.parse(text)
    except CredentialRefused:
        problems = _problems(key_format.prefix, text)
        answer = {"well_formed": False, "prefix": key_format.prefix, "problems": problems}
        lines = ["well-formed  no", *(f"problem      {problem}" for problem in problems)]
    else:
        answer = {
            "well_formed": True,
            "prefix": key_format.prefix,
            "id": key.id,
            "mask": key.mask,
            "checksum": "CRC-32, right",
        }
        lines = [
            "well-formed  yes",
            f"prefix       {key_format.prefix}",
            f"id           {key.id}",
            f"shown as     {key.mask}",
            "checksum     CRC-32, right",
        ]
    write_line(json.dumps(answer) if given.format == "json" else "\n".join(lines))
    return 0 if answer["well_formed"] else 1


def _read() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("Key: ").strip()
    text = sys.stdin.read(_MAX_INPUT).strip()
    if not text:
        raise CommandFailed("there is no key on standard input.")
    return text


def _is_prefix(text: str) -> bool:
    return re.fullmatch(r"(?!eyj)[a-z][a-z0-9]{1,15}", text) is not None


def _problems(prefix: str, text: str) -> list[str]:
    """What is wrong with a key. It contains no character of the key, which may be a real one with a typing error."""
    if not text.startswith(f"{prefix}_"):
        return [f"it does not begin with {prefix}_"]
    parts = text.removeprefix(f"{prefix}_").split("_")
    if len(parts) != 2:
        return [f"it has {len(parts)} parts after its prefix instead of 2"]
    problems = [
        f"its {name} has {len(part)} characters instead of {length}"
        for name, part, length in zip(("id", "secret"), parts, (ID_LENGTH, _TAIL), strict=True)
        if len(part) != length
    ]
    foreign = _FOREIGN.search(text.replace("_", "0"))
    if foreign is not None:
        problems.append(f"character {foreign.start() + 1} is neither a letter nor a digit")
    return problems or ["its checksum is wrong: a character is mistyped"]
