"""Measure: everything, or what is named.

python -m benchmarks [NAME…] [--quick] [--minutes MINUTES] [--write]
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from dataclasses import replace
from pathlib import Path

from .result import Result, table
from .timing import Scale

ASSETS = Path(__file__).parents[1] / "docs" / "assets" / "benchmarks"
NAMES = (
    "verification",
    "authoritative",
    "refusals",
    "mcp",
)
"""Every measurement, each a module of its own; the documentation names their aims in this order."""

APART = ("service", "soak")
"""Measured only when they are named: they start a deployment of their own."""


def measure(name: str, scale: Scale) -> Result:
    """Run one of :data:`NAMES` or :data:`APART`."""
    result: Result = importlib.import_module(f"benchmarks.{name}").run(scale)
    options = " --quick" * scale.is_quick
    if name == "soak":
        options += f" --minutes {scale.minutes:g}"
    command = f"python -m benchmarks {name}{options}"
    made = replace(result, measured={**result.measured, "command": command})
    # What is printed is what is kept, digit by digit.
    return Result.from_json(made.to_json())


def write(result: Result, folder: Path) -> None:
    """Keep a result as `<name>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.name}.json").write_text(result.to_json(), "utf-8")


def report(result: Result) -> str:
    """The result for a terminal, in Markdown."""
    facts = "\n".join(f"- {name}: {value}" for name, value in result.measured.items() if value)
    return f"## {result.title}\n\n{result.method}\n\n{table(result)}\n\n{facts}\n"


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure what things cost, in turns."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"one of {', '.join(NAMES)}; apart from them {', '.join(APART)}",
    )
    parser.add_argument(
        "--quick", action="store_true", help="show that it works: the figures mean nothing"
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"keep results in docs/{'/'.join(ASSETS.parts[-2:])}",
    )
    parser.add_argument(
        "--minutes", type=float, default=30, help="how long a soak lasts (default: %(default)s)"
    )
    parser.add_argument("--to", type=Path, default=ASSETS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {*NAMES, *APART}
    if unknown:
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}")
    scale = Scale(is_quick=options.quick, minutes=options.minutes)
    for name in options.names or NAMES:
        began = time.monotonic()
        result = measure(name, scale)
        print(report(result), flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        if options.write:
            write(result, options.to)
    return 0


if __name__ == "__main__":
    sys.exit(main())
