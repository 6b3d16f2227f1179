"""What importing the library costs a program that starts: time, and modules loaded.

Each import is done by a fresh interpreter, which says how much processor time the statement took and what it added to `sys.modules`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from .machine import describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .timing import Scale

MOST_MS = 30.0
FRAMEWORKS = ("fastapi", "flask", "litestar", "starlette", "sqlalchemy", "alembic", "argon2")
PROGRAM = """
import json, sys, time
before, began = set(sys.modules), time.process_time()
{statement}
took = time.process_time() - began
new = set(sys.modules) - before
packages = {{name.partition(".")[0] for name in new}} - before
print(json.dumps({{"ms": took * 1000, "modules": len(new), "packages": sorted(packages)}}))
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """What a statement did."""

    ms: float
    modules: int
    packages: list[str]

    @property
    def frameworks(self) -> int:
        """How many of the optional packages it loaded that were not there."""
        return len(set(self.packages) & set(FRAMEWORKS))


STANDARD, ALONE = "standard library's part", "msk_auth, after the standard library"
NEEDED = "import asyncio, dataclasses, datetime, hmac, inspect, json, logging, secrets"
# What is measured, and what is loaded before.
STATEMENTS = {
    STANDARD: (NEEDED, ""),
    "jwt": ("import jwt", ""),
    "msk_auth": ("import msk_auth", ""),
    ALONE: ("import msk_auth", NEEDED),
    **{
        f"adapter, after {framework}": (
            f"import msk_auth.integrations.{framework}",
            f"import {framework}",
        )
        for framework in ("fastapi", "starlette", "flask", "litestar")
    },
}


def measure(name: str) -> Imported:
    """In a fresh interpreter."""
    statement, before = STATEMENTS[name]
    program = f"{before}\n{PROGRAM.format(statement=statement)}"
    # Compiled modules are kept, whatever the shell says: compiling is done once, and not what is measured.
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return Imported(**json.loads(finished.stdout))


def row(name: str, samples: list[Imported]) -> Row:
    """Of the same statement, several times."""
    return Row(
        "",
        name,
        {
            "time": Spread.of([each.ms for each in samples]),
            "modules": Spread.of([each.modules for each in samples]),
            "frameworks": Spread.of([each.frameworks for each in samples]),
        },
        aim=Aim("time", "at most", MOST_MS) if name == ALONE else None,
    )


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("pyjwt", "cryptography")
    names = list(STATEMENTS)[: scale.pick(4, len(STATEMENTS))]
    samples: dict[str, list[Imported]] = {name: [] for name in names}
    for number in range(scale.pick(1, 11) + (not scale.is_quick)):
        for name in names:
            found = measure(name)
            # The first round writes and reads bytecode for the first time.
            if number > 0 or scale.is_quick:
                samples[name].append(found)
    return Result(
        name="imports",
        title="Importing the library",
        method="Processor time of each import in a fresh interpreter, compiled before. What is loaded already is"
        " not counted.",
        columns=[
            Column("time", "Time", "ms"),
            Column("modules", "Modules", is_count=True),
            Column("frameworks", "Frameworks and databases", is_count=True),
        ],
        rows=[row(name, own) for name, own in samples.items()],
        chart=Chart("bars", "processor time of one import, ms", "time"),
        measured=measured,
    )
