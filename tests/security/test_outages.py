"""What an outage leaves in the log: one line for each request, whatever fails (ASVS 5.0, section 16.5)."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import exc
from tests.core.support import World

from msk_auth.errors import StoreUnavailable


def _wrapped() -> exc.OperationalError:
    driver = sqlite3.OperationalError("database or disk is full")
    error = exc.OperationalError("UPDATE t SET digest = ?", ("secret-digest",), driver)
    error.__cause__ = driver
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (_wrapped(), "OperationalError: OperationalError('database or disk is full')"),
        (TimeoutError("too slow"), "TimeoutError: TimeoutError('too slow')"),
        (ConnectionRefusedError(111, "refused"), "ConnectionRefusedError"),
        (exc.TimeoutError("the pool is empty"), "TimeoutError: TimeoutError('the pool is empty')"),
    ],
)
def test_an_outage_is_logged_in_one_line(
    error: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    record = _logged_of(error, caplog)
    assert message in record.getMessage()
    assert record.exc_info is None
    assert "secret-digest" not in caplog.text


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [(_wrapped(), True), (StoreUnavailable(), True), (KeyError("a mistake"), False)],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failing_hook_or_flush_is_logged_in_the_same_way(
    kind: str, error: Exception, is_outage: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(_event: object) -> None:
        raise error

    with closing(World(kind, on_event=hook)) as world:
        world.enter(world.create().value.reveal())
        world.store.fail(error)
        world.call("flush")
    records = [each for each in caplog.records if each.name == "msk_auth"]
    assert [record.getMessage().partition(": ")[0] for record in records] == [
        "the on_event hook failed on KeyEvent 'created'",
        "the on_event hook failed on CredentialUsed",
        "could not write when keys were last used; will retry",
    ]
    assert {record.exc_info is None for record in records} == {is_outage}
    assert "secret-digest" not in caplog.text


def test_a_mistake_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    error = TypeError("no such method")
    record = _logged_of(error, caplog)
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def _logged_of(error: Exception, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    """What is logged when the store fails with this."""
    with closing(World("sync")) as world:
        key = world.create().value.reveal()
        world.store.fail(error)
        caplog.clear()
        with pytest.raises(StoreUnavailable):
            world.enter(key)
    (record,) = (each for each in caplog.records if each.name == "msk_auth")
    return record
