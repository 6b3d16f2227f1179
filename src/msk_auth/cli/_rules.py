"""`msk-auth rules`: prints the key format as rules for other scanners.

They cannot compute the checksum, so they also find look-alikes, which `msk-auth inspect` distinguishes from keys.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Final

from msk_auth import KeyFormat
from msk_auth.core.keys import CHECKSUM_LENGTH, ID_LENGTH, SECRET_LENGTH, checksum

from ._terminal import Commands, write_line


def add_rules(commands: Commands) -> None:
    """Add the command."""
    rules = commands.add(
        "rules",
        summary="print rules that make other scanners find keys",
        examples=(
            "  msk-auth rules gitleaks >> .gitleaks.toml\n"
            "  msk-auth rules trufflehog --prefix acme > trufflehog.yaml\n"
            "  msk-auth rules github             to be pasted into a custom pattern"
        ),
    )
    rules.add_argument("scanner", choices=sorted(_SCANNERS))
    rules.add_argument("--prefix", default="msk", help="what the keys begin with (msk)")
    rules.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    write_line(_SCANNERS[given.scanner](KeyFormat(given.prefix).prefix))
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
