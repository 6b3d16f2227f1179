"""What the lease keeps in memory for each credential, and that it keeps no more than its limit.

Each figure comes from a process of its own: `python -m benchmarks.memory CREDENTIALS`, which prints bytes.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from msk_auth import ApiKey, Authenticator, KeyFormat, KeyHasher, Owner, SystemClock
from msk_auth.stores.memory import MemoryKeyStore

from .machine import describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .timing import Scale

ROOT = Path(__file__).parents[1]
MOST_PER_ENTRY = 1024
PERMISSIONS = ("tasks:read", "tasks:run")


def fill(credentials: int, entries: int) -> dict[str, int]:
    """Verify this many different keys under a lease that keeps `entries`; the bytes that stay, and the entries."""
    store = MemoryKeyStore()
    hasher = KeyHasher()
    now = SystemClock().now()
    headers: list[list[bytes]] = []
    for number in range(credentials):
        key = KeyFormat().generate()
        digest = hasher.digest(key.reveal())
        store.insert(ApiKey(key.id, "x", f"o{number}", digest, None, now), max_active=None, now=now)
        headers.append([f"Bearer {key.reveal()}".encode()])

    def find_owner(owner_id: str) -> Owner[str]:
        # As from a database: everything about it is new each time.
        return Owner("".join(owner_id), frozenset("".join(each) for each in PERMISSIONS), owner_id)

    auth = Authenticator(
        store,
        find_owner=find_owner,
        lease=timedelta(seconds=5),
        lease_entries=entries,
    )
    cache = auth._cache
    assert cache is not None
    gc.collect()
    tracemalloc.start()
    for header in headers:
        auth.authenticate(header)
    # Times of last use are another matter, and gone once they are written.
    auth.flush()
    gc.collect()
    before_clearing, _ = tracemalloc.get_traced_memory()
    entries_kept = len(cache)
    cache.clear()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"bytes": before_clearing - after, "entries": entries_kept}


def in_a_process(credentials: int, entries: int) -> dict[str, int]:
    """:func:`fill`, where nothing else is."""
    command = [sys.executable, "-m", "benchmarks.memory", str(credentials), str(entries)]
    finished = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return dict(json.loads(finished.stdout))


def row(name: str, samples: Sequence[dict[str, int]]) -> Row:
    """Of the same fill, several times."""
    per_entry = [each["bytes"] / each["entries"] for each in samples]
    return Row(
        "",
        name,
        {
            "entries": Spread.of([each["entries"] for each in samples]),
            "per_entry": Spread.of(per_entry),
            "all": Spread.of([each["bytes"] / 2**20 for each in samples]),
        },
        aim=Aim("per_entry", "at most", MOST_PER_ENTRY),
    )


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe()
    limit = scale.pick(20, 10_000)
    fills = {
        f"{limit // 10:,} credentials": (limit // 10, limit),
        f"{limit:,} credentials": (limit, limit),
        f"{limit * 2:,} credentials, {limit:,} kept": (limit * 2, limit),
    }
    samples: dict[str, list[dict[str, int]]] = {name: [] for name in fills}
    measure = fill if scale.is_quick else in_a_process
    for _ in range(scale.pick(1, 3)):
        for name, (credentials, entries) in fills.items():
            samples[name].append(measure(credentials, entries))
    return Result(
        name="memory",
        title="Memory of a lease",
        method="What is freed when the cache is emptied after that many different keys were verified, each of an owner"
        f" of its own with {len(PERMISSIONS)} permissions. The principal and its owner count in full.",
        columns=[
            Column("entries", "Entries kept", is_count=True),
            Column("per_entry", "For each", "bytes"),
            Column("all", "In all", "MiB"),
        ],
        rows=[row(name, own) for name, own in samples.items()],
        chart=Chart("bars", "bytes for each entry", "per_entry"),
        measured=measured,
    )


if __name__ == "__main__":
    json.dump(fill(int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
