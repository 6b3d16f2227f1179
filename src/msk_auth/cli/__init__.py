"""The command `msk-auth`: makes keys, looks at them, prints rules that find them, and audits an application's routes.

One rule: no output contains a secret, except that of `generate`. Exit codes are part of the interface: 0 nothing was found,
1 something was found, 2 the command failed.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from msk_auth import __version__
from msk_auth.errors import ConfigurationError
from msk_auth.redaction import redact

from ._keys import add_keys
from ._routes import add_routes
from ._rules import add_rules
from ._terminal import CommandFailed, Commands, write_error

_EPILOG = """\
exit codes:
  0  nothing was found
  1  something was found: a malformed key, a route without a policy
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
    commands = Commands(parser)
    add_keys(commands)
    add_rules(commands)
    add_routes(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Returns:
        The exit code.

    Raises:
        SystemExit: The arguments ask for help, or are wrong.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its number instead of an error.
            stream.reconfigure(errors="backslashreplace")
    given = build_parser().parse_args(arguments)
    try:
        code: int = given.run(given)
        sys.stdout.flush()
    except (CommandFailed, ConfigurationError) as error:
        write_error(redact(str(error)))
        return 2
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Discard the rest of the buffer, or Python reports an error at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        return 130
    return code
