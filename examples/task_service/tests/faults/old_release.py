"""An older release at work: it writes runs, keys and audit entries with the statements of the schema before this one.

It prints on its standard output, as a JSON object a line, what the database acknowledged and how long that took, or how a
statement failed.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from typing import Any, NoReturn

import psycopg

OWNER = f"usr_{'0' * 16}"
TASK = f"tsk_{'0' * 16}"

# As an older release gives up on its own.
SECONDS = 8

_PAUSE_SECONDS = 0.1
_RUN_EVERY = 8

RUN = (
    "INSERT INTO runs (id, task_id, owner_id, state, requested_by, handler, params, timeout_seconds, created_at)"
    " VALUES (%s, %s, %s, 'queued', %s, 'command', %s, 60, %s)"
)
KEY = "INSERT INTO msk_auth_api_keys (id, name, owner_id, digest, created_at) VALUES (%s, 'old', %s, %s, %s)"
AUDIT = (
    "INSERT INTO audit (at, action, actor_id, credential_kind, target, details)"
    " VALUES (%s, 'run.requested', %s, 'interactive', %s, '{}')"
)
CLAIM = "SELECT id FROM runs WHERE state = 'queued' ORDER BY created_at LIMIT 1"

REQUESTED_BY = json.dumps(
    {
        "user_id": OWNER,
        "username": "ann",
        "credential": {"kind": "interactive", "key_id": None},
    }
)
PARAMS = json.dumps({"argv": ["true"]})


def microseconds() -> int:
    return time.time_ns() // 1000


def insert_run(cursor: psycopg.Cursor[Any], run_id: str) -> None:
    cursor.execute(RUN, (run_id, TASK, OWNER, REQUESTED_BY, PARAMS, microseconds()))


def main(url: str, name: str) -> NoReturn:
    """Work until SIGTERM comes.

    Args:
        url: Of the database.
        name: One letter that its rows have in their ids, unlike those of others.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with psycopg.connect(url, options=f"-c statement_timeout={SECONDS}s") as connection:
        for number in itertools.count():
            _once(connection, f"{name}{number:015}", with_run=number % _RUN_EVERY == 0)
            if stop.wait(_PAUSE_SECONDS):
                sys.exit(0)
    raise AssertionError


def _once(connection: psycopg.Connection[Any], unique: str, *, with_run: bool) -> None:
    """One transaction with a row of each kind, as a request makes them."""
    began = time.monotonic()
    written: dict[str, object] = {}
    try:
        with connection.transaction(), connection.cursor() as cursor:
            cursor.execute(CLAIM)
            if with_run:
                written["run"] = f"run_{unique}"
                insert_run(cursor, f"run_{unique}")
            cursor.execute(KEY, (f"{unique[0]}{unique[-11:]}", OWNER, "x", microseconds()))
            cursor.execute(AUDIT, (microseconds(), OWNER, unique))
            written["target"] = unique
    except psycopg.Error as error:
        written = {"error": repr(error)}
    print(json.dumps({**written, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
