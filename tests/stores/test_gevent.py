"""A blocking store works where gevent replaces threads and sockets, on SQLite and on PostgreSQL with psycopg."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("contract_under_gevent.py")


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_contract_holds_under_gevent() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gevent.monkey", PROGRAM],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
