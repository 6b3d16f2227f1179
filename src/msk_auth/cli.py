"""The command `msk-auth`: makes and inspects keys, prints rules for scanners, and audits an application's routes.

One rule: only the output of `generate` contains secrets. Exit codes are part of the interface: 0 no problem was found,
1 a problem was found, 2 the command failed.

The rules for other scanners cannot compute the checksum, so they also find look-alikes, which `inspect` distinguishes from keys.
"""

from __future__ import annotations

import argparse
import getpass
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from msk_auth import KeyFormat, __version__
from msk_auth._route_audit import AuditedRoute, RouteReport, list_routes
from msk_auth.core.keys import CHECKSUM_LENGTH, ID_LENGTH, SECRET_LENGTH, checksum
from msk_auth.errors import ConfigurationError, CredentialRefused
from msk_auth.redaction import redact

Command: TypeAlias = Callable[[argparse.Namespace], int]
"""Runs a command with its arguments, and returns the exit code."""


class CommandFailed(Exception):
    """A command failed. Only the message is shown, without a traceback."""


def _write_line(text: str) -> None:
    """Write to standard output."""
    sys.stdout.write(f"{text}\n")


def _write_error(text: str) -> None:
    """Write a line to standard error. The text may name files and routes, or be another package's."""
    sys.stderr.write(f"msk-auth: {_shown(text)}\n")


def _shown(text: str) -> str:
    """Foreign text, such as a file's name, without secrets and control characters."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in redact(text)
    )


def _add_command(
    commands: Any, name: str, run: Command, *, summary: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command, which calls `run`. Its help ends with examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


_MAX_COUNT: Final = 100_000
_MAX_INPUT: Final = 4096


def _add_keys(commands: Any) -> None:
    """Add the two commands."""
    generate = _add_command(
        commands,
        "generate",
        _generate,
        summary="print random keys that no store knows, for tests and fixtures",
        examples="  msk-auth generate\n  msk-auth generate --prefix acme --count 3",
    )
    generate.add_argument("--prefix", default="msk", help="the keys' prefix (msk)")
    generate.add_argument("--count", type=_count, default=1, help="the number of keys (1)")

    inspect = _add_command(
        commands,
        "inspect",
        _inspect,
        summary="check the format of a key, and print its id; uses no network",
        examples=(
            "  msk-auth inspect                  prompts for the key, without showing it\n"
            "  pass show api-key | msk-auth inspect\n\n"
            "Exit code 1 means that the key is malformed. The secret is never printed."
        ),
    )
    inspect.add_argument("--prefix", default="msk", help="the key's prefix (msk)")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_COUNT:
        raise argparse.ArgumentTypeError(f"a number from 1 to {_MAX_COUNT}")
    return int(text)


def _generate(given: argparse.Namespace) -> int:
    key_format = KeyFormat(given.prefix)
    for _ in range(given.count):
        _write_line(key_format.generate().reveal())
    return 0


def _inspect(given: argparse.Namespace) -> int:
    text = _read()
    try:
        key = KeyFormat(given.prefix).parse(text)
    except CredentialRefused:
        _write_line("well-formed  no")
        return 1
    _write_line(f"well-formed  yes\nid           {key.id}\nshown as     {key.mask}")
    return 0


def _read() -> str:
    text = ""
    with suppress(EOFError):
        text = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.read(_MAX_INPUT)
    text = text.strip()
    if not text:
        raise CommandFailed("the standard input has no key.")
    return text


def _add_rules(commands: Any) -> None:
    """Add the command."""
    rules = _add_command(
        commands,
        "rules",
        _print_rules,
        summary="print rules with which scanners find keys",
        examples=(
            "  msk-auth rules gitleaks >> .gitleaks.toml\n"
            "  msk-auth rules trufflehog --prefix acme > trufflehog.yaml\n"
            "  msk-auth rules github             to paste into a custom pattern"
        ),
    )
    rules.add_argument("scanner", choices=sorted(_SCANNERS))
    rules.add_argument("--prefix", default="msk", help="the keys' prefix (msk)")


def _print_rules(given: argparse.Namespace) -> int:
    _write_line(_SCANNERS[given.scanner](KeyFormat(given.prefix).prefix))
    return 0


def _pattern(prefix: str) -> str:
    return (
        f"{prefix}_[0-9A-Za-z]{{{ID_LENGTH}}}_[0-9A-Za-z]{{{SECRET_LENGTH}}}"
        f"[0-4][0-9A-Za-z]{{{CHECKSUM_LENGTH - 1}}}"
    )


def _gitleaks(prefix: str) -> str:
    return f"""\
[[rules]]
id = "{prefix}-api-key"
description = "An API key ({prefix}_…): revoke it."
regex = '''\\b({_pattern(prefix)})\\b'''
secretGroup = 1
keywords = ["{prefix}_"]"""


def _trufflehog(prefix: str) -> str:
    return f"""\
detectors:
  - name: {prefix}-api-key
    keywords:
      - {prefix}_
    regex:
      key: '\\b({_pattern(prefix)})\\b'"""


def _github(prefix: str) -> str:
    body = f"{prefix}_{'0' * ID_LENGTH}_{'0' * SECRET_LENGTH}"
    return json.dumps(
        {
            "name": f"{prefix} API key",
            "secret_format": _pattern(prefix),
            "before_secret": r"\A|[^0-9A-Za-z_]",
            "after_secret": r"\z|[^0-9A-Za-z_]",
            "test_string": body + checksum(body),
        },
        indent=2,
    )


_SCANNERS: Final[Mapping[str, Callable[[str], str]]] = {
    "gitleaks": _gitleaks,
    "github": _github,
    "trufflehog": _trufflehog,
}


def _add_routes(commands: Any) -> None:
    """Add the command."""
    routes = _add_command(
        commands,
        "routes",
        _audit,
        summary="list every route of an application with its policy, and fail on open ones",
        examples=(
            "  msk-auth routes main:app --public /healthz --public 'POST /login'\n"
            "  msk-auth routes --factory shop.web:create_app --format json\n\n"
            "The command imports the module: use it only on code that you trust.\n"
            "Exit code 1 means that a route declares no policy, or accepts API keys although it looks like\n"
            "administration of credentials or users."
        ),
    )
    routes.add_argument("app", metavar="MODULE:APP", help="the application, as for uvicorn")
    routes.add_argument(
        "--factory", action="store_true", help="APP is a function that makes the application"
    )
    routes.add_argument("--app-dir", default=".", help="the module's folder (.)")
    for name, summary in (
        ("public", "a public route, exactly as listed"),
        ("own-guard", "a route that the application guards itself"),
        ("accept", "a route that looks like administration and needs no interactive login"),
    ):
        routes.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="[METHOD ]PATH",
            help=f"{summary}; may be repeated",
        )
    routes.add_argument("--format", choices=["table", "json"], default="table")


def _audit(given: argparse.Namespace) -> int:
    app = _load(given.app, given.app_dir, factory=given.factory)
    report = list_routes(app, public=given.public, own_guard=given.own_guard, accepted=given.accept)
    if given.format == "json":
        _write_line(_as_json(report))
    else:
        _write_line(_as_table(report))
        for problem in report.problems:
            _write_error(problem)
    return 0 if report.ok else 1


def _load(target: str, folder: str, *, factory: bool) -> object:
    module_name, _, names = target.partition(":")
    if not module_name or not names:
        raise CommandFailed(f"{target!r} is not of the form MODULE:APP, such as main:app.")
    folder = str(Path(folder).resolve())
    sys.path.insert(0, folder)
    try:
        # The output of the application during its import is not part of the report.
        with redirect_stdout(sys.stderr):
            app: Any = importlib.import_module(module_name)
            for name in names.split("."):
                app = getattr(app, name)
            return app() if factory else app
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the application may raise anything
        reason = " ".join(str(error).split())
        raise CommandFailed(
            f"{target} cannot be loaded: {type(error).__name__}: {reason}"
        ) from None
    finally:
        sys.path.remove(folder)


def _as_table(report: RouteReport) -> str:
    rows = [("METHODS", "PATH", "POLICY", "ENDPOINT")]
    rows += [
        (
            ",".join(route.methods) or "WEBSOCKET",
            _shown(route.path),
            route.policy,
            _shown(_endpoint(route)),
        )
        for route in _folded(report.routes)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    bad = len(report.undeclared)
    lines.append(f"\n{len(report.routes)} routes, {bad} undeclared, {len(report.flagged)} flagged")
    return "\n".join(lines)


def _folded(routes: Sequence[AuditedRoute]) -> Iterator[AuditedRoute]:
    """The routes of the table, without OPTIONS, HEAD beside GET, and the single pages of the documentation."""
    others = {route.path for route in routes if {*route.methods} - {"OPTIONS"}}
    pages: dict[str, list[AuditedRoute]] = {}
    for route in routes:
        if route.methods == ("OPTIONS",) and route.path in others and not route.problems:
            continue
        known = {"OPTIONS", "HEAD"} if "GET" in route.methods else {"OPTIONS"}
        methods = tuple(each for each in route.methods if each not in known) or route.methods
        if route.is_documentation:
            pages.setdefault(route.policy, []).append(replace(route, methods=methods))
        else:
            yield replace(route, methods=methods)
    for first, *more in pages.values():
        path = f"{first.path} and {len(more)} more" if more else first.path
        yield replace(first, path=path, name="documentation")


def _endpoint(route: AuditedRoute) -> str:
    if route.shadowed_by is None:
        return route.name
    return f"{route.name} (never reached: {route.shadowed_by} is before it)"


def _as_json(report: RouteReport) -> str:
    return json.dumps(
        {
            "ok": report.ok,
            "routes": [
                {
                    "path": route.path,
                    "methods": list(route.methods),
                    "kind": route.kind,
                    "endpoint": route.name,
                    "access": route.access,
                    "permissions": list(route.permissions),
                    "max_age_seconds": route.max_age_seconds,
                    "shadowed_by": route.shadowed_by,
                    "problems": list(route.problems),
                }
                for route in report.routes
            ],
            "unused": list(report.unused),
        },
        indent=2,
    )


_EPILOG = """\
exit codes:
  0  no problem was found
  1  a problem was found: a malformed key, a route without a policy
  2  the command failed: wrong usage, an application that does not import

Each command has examples: msk-auth routes --help
"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="msk-auth",
        description="Work with msk_ API keys and the routes that they may reach.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"msk-auth {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_keys(commands)
    _add_rules(commands)
    _add_routes(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The arguments without the program's name; None means those of the process.

    Returns:
        The exit code.

    Raises:
        SystemExit: The arguments ask for help, or are wrong.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # If a terminal cannot show a character, print its number instead of an error. Bytes that are no text are no key.
            stream.reconfigure(errors="backslashreplace")
    given = build_parser().parse_args(arguments)
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except (CommandFailed, ConfigurationError) as error:
        _write_error(str(error))
        return 2
    except OSError as error:
        # A reader of the output that has closed the pipe has seen enough.
        if not isinstance(error, BrokenPipeError):
            _write_error(str(error))
        # Discard the rest of the buffer, or Python reports an error at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130
    return code
