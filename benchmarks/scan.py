"""How fast `msk-auth scan` reads, against reading the same files and doing nothing with them.

One process, one core, files that the system has in its memory: what is measured is the processor's time for each byte.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msk_auth.cli._finder import CHUNK, Finder
from msk_auth.cli._sources import files

from .machine import describe
from .result import Chart, Column, Result, Row, Spread
from .timing import Scale, ratios

# Text that gets the search going now and then: parts of the prefix, and look-alikes of a key.
LINE = b"    the_task = risk_of(masks[3], 'msk_not_a_key')  # ask for the msk_ prefix, 80 columns\n"
READ, SCAN = "bare read", "scan"


def read(folder: Path) -> int:
    """Read all files, and say how many bytes they have."""
    total = 0
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                total += len(chunk)
    return total


def scan(folder: Path) -> int:
    """Scan all files, and say how many keys they have."""
    finder = Finder(["msk"])
    return sum(len(list(finder.find(source.chunks()))) for source in files([str(folder)], print))


def seconds(work: Callable[[Path], int], folder: Path) -> float:
    """The processor's seconds of one go."""
    began = time.process_time()
    work(folder)
    return time.process_time() - began


def measure(content: str, line: bytes, scale: Scale) -> list[Row]:
    """The rows of one kind of content."""
    size = scale.pick(100_000, 8_000_000)
    number = scale.pick(1, 12)
    # Of random bytes, every file has others.
    times: dict[str, list[float]] = {READ: [], SCAN: []}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for each in range(number):
            text = line * (size // len(line)) if line else secrets.token_bytes(size)
            (place / f"{each:04}").write_bytes(text)
        total = read(place) / 1e6
        for _ in range(scale.pick(1, 9)):
            times[READ].append(seconds(read, place))
            times[SCAN].append(seconds(scan, place))
    speeds = {name: [total / max(took, 1e-9) for took in own] for name, own in times.items()}
    return [
        Row(content, READ, {"speed": Spread.of(speeds[READ])}),
        Row(
            content,
            SCAN,
            {
                "speed": Spread.of(speeds[SCAN]),
                "ratio": Spread.of(ratios(speeds[SCAN], speeds[READ])),
            },
            READ,
        ),
    ]


def run(scale: Scale) -> Result:
    """Measure plain text and random bytes."""
    measured = describe()
    return Result(
        name="scan",
        title="Scanning for keys",
        method="`msk-auth scan` on one core, over files that the system has in its memory, by processor time.",
        columns=[Column("speed", "Speed", "MB/s"), Column("ratio", "Ratio")],
        rows=[*measure("Plain text", LINE, scale), *measure("Random bytes", b"", scale)],
        chart=Chart("bars", "MB per second", "speed"),
        measured=measured,
    )
