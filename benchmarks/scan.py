"""How fast `msk-auth scan` reads, against reading the same files and doing nothing with them.

    python -m benchmarks.scan [MEGABYTES]

One process, one core, files that the system has in its memory: what is measured is the processor's time for each byte.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from msk_auth.cli._finder import CHUNK, Finder
from msk_auth.cli._sources import files

ROUNDS = 5
FILE_SIZE = 8_000_000
# Text that gets the search going now and then: parts of the prefix, and look-alikes of a key.
LINE = b"    the_task = risk_of(masks[3], 'msk_not_a_key')  # ask for the msk_ prefix, 80 columns\n"


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


def best(work: Callable[[Path], int], folder: Path) -> float:
    """The processor's seconds of the fastest round: what else the machine does only ever adds to it."""
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work(folder)
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    """Measure plain text and random bytes."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    text = LINE * (FILE_SIZE // len(LINE))
    print(f"{'content':<14} {'bare read':>12} {'scan':>12} {'scan / read':>12}")
    for name, content in (("plain text", text), ("random bytes", secrets.token_bytes(FILE_SIZE))):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            for number in range(max(1, megabytes * 1_000_000 // FILE_SIZE)):
                (place / f"{number:04}").write_bytes(content)
            size = read(place) / 1e6
            bare, scanned = best(read, place), best(scan, place)
            print(
                f"{name:<14} {size / bare:>7.0f} MB/s {size / scanned:>7.0f} MB/s {bare / scanned:>12.2f}"
            )


if __name__ == "__main__":
    main()
