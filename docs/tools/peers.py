"""Compares packages by using them: `python docs/tools/peers.py` installs them into a throwaway environment.

With `--write` the answers go to `docs/assets/peers.json`, from which the page "Comparison with peers"
is made. Nothing of that page's table is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from msk_auth import SystemClock

Answers: TypeAlias = Mapping[str, Mapping[str, Any]]

ROOT: Final = Path(__file__).parents[2]
RESULT: Final = ROOT / "docs" / "assets" / "peers.json"

PACKAGES: Final = (
    "keyshield[aiocache,argon2,fastapi,sqlalchemy]==2.0.1",
    "djangorestframework-api-key==3.1.0",
    "litestar-api-auth[sqlalchemy]==0.1.2",
    "litestar-security==0.6.0",
    "flask-jwt-extended==4.7.4",
    "flask-security[fsqla]==5.9.2",
    "fastapi-users==15.0.5",
)
"""What is compared with. Raise a version, run the script, and look at what changed."""

# What the packages need for the probe, and leave to their users.
BESIDE: Final = (
    *("aiosqlite", "django>=5.2,<6", "djangorestframework", "flask-sqlalchemy", "httpx"),
    # advanced-alchemy, with which litestar-api-auth keeps keys, fails with the next.
    "sqlalchemy<2.1",
)

QUESTIONS: Final[Mapping[str, str]] = {
    "microseconds": "processor time to verify a key, read from SQLite",
    "writes_on_each_request": "writes to the database on each request",
    "key_has_an_owner": "a key has an owner",
    "routes_open_as_shipped": "routes that make keys, mounted as the documentation shows",
    "key_makes_keys": "these routes, called with an unrestricted key",
    "missing": "answer without credentials",
    "challenge": "`WWW-Authenticate` of this answer",
    "revoked": "answer to a revoked key",
    "revoked_accepted_from_cache": "a key that another process revoked, with the package's cache",
    "revoked_active_again": "the record after this request",
}
"""The rows of the table: from the name of an answer to what it is about."""


def ask() -> Answers:
    """Install the packages and run the probe.

    Raises:
        subprocess.CalledProcessError: They could not be installed, or the probe failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "env" / "bin" / "python"
        uv = Path(sys.executable).parent / "uv"
        run = [str(uv), "pip", "install", "--quiet", "--python", str(python)]
        subprocess.run(  # noqa: S603 - our own words
            [str(uv), "venv", "--quiet", "--python", sys.executable, str(python.parents[1])],
            check=True,
        )
        library = f"{ROOT}[fastapi,sqlalchemy]"
        subprocess.run([*run, library, *PACKAGES, *BESIDE], check=True)  # noqa: S603 - as above
        probe = Path(__file__).with_name("peers_probe.py")
        printed = subprocess.run(  # noqa: S603 - as above
            [str(python), str(probe)], check=True, stdout=subprocess.PIPE, text=True, cwd=folder
        ).stdout
    answers: Answers = json.loads(printed)
    return answers


def render() -> str:
    """The tables, from the answers that were written last: packages with keys, and those with logins alone."""
    written = json.loads(RESULT.read_text("utf-8"))
    answers: Answers = written["answers"]
    logins = {name: each for name, each in answers.items() if name not in with_keys(answers)}
    parts = [
        table(with_keys(answers), QUESTIONS),
        "Packages with logins, and without keys:",
        table(logins, ("missing", "challenge")),
        f"Asked on {written['date']}.",
    ]
    return "\n\n".join(parts)


def with_keys(answers: Answers) -> Answers:
    """The packages that have keys."""
    return {
        name: each for name, each in answers.items() if each.get("key_has_an_owner") is not None
    }


def table(answers: Answers, questions: Iterable[str]) -> str:
    """One column for each package, one row for each question."""
    header = " | ".join(f"{name} {each['version']}" for name, each in answers.items())
    lines = [f"| | {header} |", "|---" * (len(answers) + 1) + "|"]
    for question in questions:
        words = QUESTIONS[question]
        cells = " | ".join(_cell(question, each) for each in answers.values())
        lines.append(f"| {words} | {cells} |")
    return "\n".join(lines)


def _cell(question: str, answers: Mapping[str, Any]) -> str:
    value = answers.get(question)
    if question == "challenge":
        return "none" if value is None else f"`{value}`"
    if value is None:
        return "–"
    match question:
        case "microseconds":
            return _time(value) + _delay(answers)
        case "missing" | "revoked":
            return str(value)
        case "routes_open_as_shipped":
            return "**open to every caller**" if value else "guarded"
        case "key_makes_keys":
            return "**make a key**" if value else "refuse it"
        case "revoked_accepted_from_cache":
            return "**accepted**" if value else "refused"
        case "revoked_active_again":
            return "**active again**" if value else "stays revoked"
    return "yes" if value else "no"


def _delay(answers: Mapping[str, Any]) -> str:
    delay = answers.get("facts", {}).get("delay_seconds")
    if delay is None:
        return ""
    low, high = (round(seconds * 1000) for seconds in delay)
    return f", and a delay of {low} to {high} ms"


def _time(microseconds: float) -> str:
    return f"{microseconds / 1000:.0f} ms" if microseconds >= 10_000 else f"{microseconds:.0f} µs"


def main() -> None:
    """Ask, print the table, and write the answers if that was asked for."""
    parser = argparse.ArgumentParser(description="Compare packages by using them.")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name} anew")
    given = parser.parse_args()
    answers = ask()
    sys.stdout.write(table(answers, QUESTIONS) + "\n")
    if given.write:
        date = SystemClock().now().date()
        RESULT.write_text(json.dumps({"date": str(date), "answers": answers}, indent=2) + "\n")


if __name__ == "__main__":
    main()
