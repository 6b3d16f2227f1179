"""Renders the findings of a scan as text, JSON, or SARIF 2.1.0 for code-scanning services, without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from msk_auth import __version__

from ._terminal import shown

_RULE: Final = "leaked-api-key"
_HELP: Final = "https://msk-auth.readthedocs.io/en/stable/how-to/scan-for-keys/"


@dataclass(frozen=True, slots=True)
class Finding:
    """A key that a scan found.

    Attributes:
        path: The file; in git's history its path at that time.
        line: From 1.
        column: From 1, in code points.
        key_id: The public part.
        mask: The part of the key that may be shown.
        commit: The first commit with it, in git's history.
        object: Git's object id, in git's history.
    """

    path: str
    line: int
    column: int
    key_id: str
    mask: str
    commit: str | None = None
    object: str | None = None


@dataclass(slots=True)
class ScanResult:
    """The result of a scan.

    Attributes:
        findings: In the order in which they were found.
        errors: Path and reason of each file that could not be read.
        files: How many files or objects were read.
        bytes: How many bytes that were.
    """

    findings: list[Finding] = field(default_factory=list[Finding])
    errors: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    files: int = 0
    bytes: int = 0


def as_text(result: ScanResult) -> str:
    """One line for each, in the form that editors can jump to."""
    lines = [
        f"{shown(each.path)}:{each.line}:{each.column}: {each.mask}"
        + (f" (commit {each.commit[:12]})" if each.commit else "")
        for each in result.findings
    ]
    return "\n".join(lines)


def as_json(result: ScanResult) -> str:
    """One document."""
    return json.dumps(
        {
            "findings": [asdict(each) | {"path": shown(each.path)} for each in result.findings],
            "errors": [{"path": shown(path), "reason": why} for path, why in result.errors],
            "scanned": {"files": result.files, "bytes": result.bytes},
        },
        indent=2,
    )


def as_sarif(result: ScanResult) -> str:
    """A SARIF 2.1.0 log (OASIS)."""
    driver: dict[str, Any] = {
        "name": "msk-auth",
        "semanticVersion": __version__,
        "informationUri": _HELP,
        "rules": [
            {
                "id": _RULE,
                "name": "LeakedApiKey",
                "shortDescription": {"text": "An API key is stored where it can be read"},
                "help": {
                    "text": "Revoke the key, then take it out. Its id names it in the list of keys."
                },
                "helpUri": _HELP,
                "defaultConfiguration": {"level": "error"},
                "properties": {"security-severity": "9.0", "tags": ["security"]},
            }
        ],
    }
    notifications = [
        {"level": "error", "message": {"text": f"{shown(path)}: {why}"}}
        for path, why in result.errors
    ]
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not result.errors,
                "toolExecutionNotifications": notifications,
            }
        ],
        "results": [_sarif_result(each) for each in result.findings],
    }
    return json.dumps(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [run],
        },
        indent=2,
    )


FORMATS: Final[Mapping[str, Callable[[ScanResult], str]]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
}


def _sarif_result(finding: Finding) -> dict[str, Any]:
    came = f" It came with commit {finding.commit[:12]}." if finding.commit else ""
    return {
        "ruleId": _RULE,
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": f"The API key {finding.mask} can be read here.{came}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.path)},
                    "region": {"startLine": finding.line, "startColumn": finding.column},
                }
            }
        ],
        "partialFingerprints": {"keyId/v1": finding.mask},
    }


def _uri(path: str) -> str:
    clean = shown(path)
    return Path(clean).as_uri() if Path(clean).is_absolute() else quote(Path(clean).as_posix())
