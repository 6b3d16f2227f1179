"""The guarantee on real databases: four processes under load, thousands of revocations, one history (G2)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine
from tests.databases import postgres_database

from msk_auth import ApiKey, KeyFormat, KeyHasher
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table, prepare_sqlite

ROOT = Path(__file__).parents[2]
PROCESSES = 4
LEASE_MS = 60


def fill(url: str, count: int) -> list[str]:
    """A table with this many keys; their values."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine)
    metadata = MetaData()
    api_key_table(metadata)
    metadata.create_all(engine)
    store = SQLAlchemyKeyStore(engine)
    keys = [KeyFormat().generate() for _ in range(count)]
    hasher = KeyHasher()
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    for key in keys:
        record = ApiKey(key.id, "load", "owner", hasher.digest(key.reveal()), None, moment)
        store.insert(record, max_active=None, now=moment)
    store.close()
    engine.dispose()
    return [key.reveal() for key in keys]


def run_deployment(url: str, keys: Sequence[str], frontier: Path) -> list[dict[str, Any]]:
    """What each of the processes wrote down."""
    frontier.write_bytes(bytes(8 * PROCESSES))
    setup = {
        "url": url,
        "lease_ms": LEASE_MS,
        "frontier": str(frontier),
        "shares": [keys[number::PROCESSES] for number in range(PROCESSES)],
    }

    def run(number: int) -> dict[str, Any]:
        finished = subprocess.run(
            [sys.executable, "-m", "tests.lease.deployment_process"],
            input=json.dumps({**setup, "number": number}),
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        history: dict[str, Any] = json.loads(finished.stdout)
        return history

    with ThreadPoolExecutor(PROCESSES) as pool:
        return list(pool.map(run, range(PROCESSES)))


def check(histories: Sequence[dict[str, Any]], revocations: int) -> None:
    returned = {key_id: at for history in histories for key_id, at in history["revoked"]}
    accepted = [tuple(each) for history in histories for each in history["accepted"]]
    assert len(returned) == revocations
    late = [(key_id, began) for key_id, began in accepted if began >= returned[key_id]]
    assert late == []
    # The history is conclusive: keys were in use before they were revoked, and refused afterwards.
    assert len(accepted) > revocations / 10
    assert sum(history["refused"] for history in histories) > revocations / 10


@pytest.mark.faults
def test_no_process_accepts_a_revoked_key_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    keys = fill(f"sqlite:///{path}", 400)
    histories = run_deployment(f"sqlite+aiosqlite:///{path}", keys, tmp_path / "frontier")
    check(histories, len(keys))


@pytest.mark.faults
def test_no_process_accepts_a_revoked_key_on_postgresql(tmp_path: Path) -> None:
    with postgres_database() as database:
        url = database.render_as_string(hide_password=False)
        keys = fill(url, 2000)
        histories = run_deployment(url, keys, tmp_path / "frontier")
        check(histories, len(keys))
