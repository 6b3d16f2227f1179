"""Times are kept as microseconds in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import Column, Engine, MetaData, Table, create_engine
from sqlalchemy.exc import StatementError

from task_service.db.schema import UtcMicroseconds

MOMENTS = Table("moments", MetaData(), Column("at", UtcMicroseconds))


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    MOMENTS.create(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(2026, 3, 1, 12, 0, 0, 1, timezone(timedelta(hours=-8))),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
        None,
    ],
)
def test_a_time_is_read_back_exactly_and_in_utc(engine: Engine, moment: datetime | None) -> None:
    with engine.begin() as connection:
        connection.execute(MOMENTS.insert().values(at=moment))
        stored = connection.scalar(MOMENTS.select())
    assert stored == moment
    assert stored is None or stored.tzinfo is UTC


def test_a_time_without_a_zone_is_refused(engine: Engine) -> None:
    naive = datetime(2026, 3, 1)  # noqa: DTZ001
    with engine.begin() as connection:
        with pytest.raises(StatementError, match="without a time zone"):
            connection.execute(MOMENTS.insert().values(at=naive))
        with pytest.raises(StatementError, match="without a time zone"):
            connection.execute(MOMENTS.select().where(MOMENTS.c.at < naive))
        assert connection.execute(MOMENTS.select()).all() == []
