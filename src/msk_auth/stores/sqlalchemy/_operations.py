"""The store's operations, as functions of a connection inside a transaction, for both stores.

Three rules make them correct with any number of processes, at any isolation level:

1. A change is one conditional `UPDATE` of its own columns. No read value is written back, so a
   stale reader can undo nothing, and "set once" is a condition that the database checks.
2. A transaction that adds a key under a limit first increments the owner's counter, which locks its row until the
   transaction has ended. The first increment makes the row, so this also works for an owner without any key. Only then
   are the keys counted.
3. A transaction that writes begins with a write. An SQLite transaction that begins by reading may have an old state when
   it writes, and fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    LargeBinary,
    Table,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.sql import ColumnElement, Select

from msk_auth.core.errors import ConfigurationError, KeyLimitReached, KeyNotActive
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery, KeyStatus, spellings
from msk_auth.core.store import RecordedLease

from ._table import (
    first_record,
    read_record,
    records,
    registers_of,
    select_from_id,
    to_microseconds,
    to_row,
)

_LEASE: Final = "lease:"
# The first text after all texts with this prefix; registers sort by code point.
_BEHIND_LEASES: Final = "lease;"
_TURN: Final = "turn:"
_MICROSECOND: Final = timedelta(microseconds=1)


class ChangeLostError(RuntimeError):
    """After `on_change`, its write is no longer in the transaction."""


class Written(NamedTuple):
    """The outcome of a write.

    Attributes:
        record: The key after the write; None if the owner has no such key. For a rotation the predecessor.
        is_changed: True if this write changed the key.
    """

    record: ApiKey | None
    is_changed: bool


class KeyOperations:
    """The operations on a table of keys.

    Args:
        table: The table from :func:`~msk_auth.stores.sqlalchemy.api_key_table`.
        dialect: SQLAlchemy's name of the database.

    Raises:
        ConfigurationError: The table was made differently, or the database is not supported.
    """

    def __init__(self, table: Table, dialect: str) -> None:
        if dialect not in {"sqlite", "postgresql", "mysql", "mariadb"}:
            raise ConfigurationError(
                f"Keys cannot be kept in {dialect!r}: use SQLite, PostgreSQL, MariaDB or MySQL."
            )
        self.table = table
        self._keys = table.c
        self._registers = registers_of(table)
        self._dialect = dialect
        self._is_mysql = dialect in {"mysql", "mariadb"}
        self._find = select_from_id(table).limit(literal_column("1"))
        self._find_many = select(*table.c).where(
            table.c.id.in_(bindparam("key_ids", expanding=True))
        )

    def find(self, connection: Connection, key_id: str) -> ApiKey | None:
        return first_record(connection.execute(self._find, {"key_id": key_id}).all(), key_id)

    def find_many(self, connection: Connection, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        rows = connection.execute(self._find_many, {"key_ids": list(key_ids)}).all()
        return records(rows, len(key_ids))

    def insert(
        self, connection: Connection, record: ApiKey, *, max_active: int | None, now: datetime
    ) -> Written:
        if max_active is not None:
            self._take_turn(connection, record.owner_id)
        self._add(connection, record, max_active, now)
        return Written(record, is_changed=True)

    def page_of_all(self, after: tuple[str, datetime, str] | None, limit: int) -> Select[Any]:
        """A page of the keys of all owners."""
        keys = self._keys
        listed: ColumnElement[bool] = keys.deleted_at.is_(None)
        if self._dialect == "sqlite":
            # After `IS NULL` SQLite would drop the column from the order, and sort each owner's keys itself.
            listed = func.coalesce(keys.deleted_at, 0) == 0
        # A backward scan of the index of listings, from the end of the last page.
        order = (keys.owner_id, keys.deleted_at, keys.created_at, keys.id)
        page = (
            select(*self._keys)
            .where(listed)
            .order_by(*(column.desc() for column in order))
            .limit(limit)
        )
        if after is not None:
            owner_id, created_at, key_id = after
            newer = ((keys.created_at, to_microseconds(created_at)), (keys.id, key_id))
            page = page.where(_before((keys.owner_id, owner_id), *newer))
        return page

    def page_of_expiring(self, query: ExpiryQuery) -> Select[Any]:
        """A page of the keys that end soon."""
        keys = self._keys
        order = [keys.expires_at, keys.id]
        if not self._is_mysql:
            # The same in all rows: they show PostgreSQL that the index has the rows in order. MariaDB would sort.
            order[:0] = [keys.announced_days, keys.revoked_at]
        page = (
            select(*self._keys)
            .where(
                keys.announced_days == query.announced_days,  # NULL for None
                keys.revoked_at.is_(None),
                keys.replaced_by.is_(None),
                keys.expires_at > to_microseconds(query.now),
                keys.expires_at < to_microseconds(query.before),
            )
            .order_by(*order)
            .limit(query.limit)
        )
        if query.after is not None:
            expires_at, key_id = query.after
            moment = to_microseconds(expires_at)
            page = page.where(
                keys.expires_at >= moment,  # bounds the stretch of the index
                or_(keys.expires_at > moment, keys.id > key_id),
            )
        return page

    def set_columns(
        self,
        connection: Connection,
        key_id: str,
        of: ColumnElement[bool],
        values: Mapping[str, Any],
        *where: ColumnElement[bool],
    ) -> Written:
        """Set columns of a key, if it also meets conditions; otherwise the key is returned unchanged.

        Args:
            connection: A connection in a transaction.
            key_id: The id of the key.
            of: Selects the key.
            values: The new values by column.
            where: The conditions.
        """
        if self.set_where(connection, and_(of, *where), values):
            return Written(self.find(connection, key_id), is_changed=True)
        row = connection.execute(select(*self._keys).where(of)).one_or_none()
        return Written(None if row is None else read_record(row), is_changed=False)

    def differ(self, values: Mapping[str, str | None]) -> ColumnElement[bool]:
        """The condition that one of these texts differs from the stored text."""
        return or_(*(self._differs(self._keys[name], value) for name, value in values.items()))

    def rotate(
        self,
        connection: Connection,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
    ) -> Written:
        if max_active is not None:
            self._take_turn(connection, successor.owner_id)
        own = self.is_own(key_id, successor.owner_id)
        is_active, is_current = or_(*self._active_stretches(now)), self._keys.replaced_by.is_(None)
        end = {"replaced_by": successor.id, **self._end(ends_at, now)}
        written = self.set_columns(connection, key_id, own, end, is_active, is_current)
        if written.is_changed:
            self._add(connection, successor, max_active, now)
        elif written.record is not None:
            raise KeyNotActive
        return written

    def check_written(self, connection: Connection, written: Written) -> None:
        """Verify that a write is still in the transaction, after code of the application ran in it.

        An error that this code caught may have ended the transaction, on some databases silently: a commit would then
        commit nothing and report success.

        Raises:
            DBAPIError: PostgreSQL refuses every further statement.
            ChangeLostError: The write is no longer there.
        """
        record = written.record
        if record is not None and self.find(connection, record.id) != record:
            raise ChangeLostError(
                "The change is no longer in the transaction after on_change. Let the hook raise the errors of its statements,"
                " or run statements that may fail in a savepoint, and neither commit nor roll back."
            )

    def touch(self, connection: Connection, last_used: Sequence[tuple[str, datetime]]) -> None:
        at = bindparam("used_at", type_=self._keys.last_used_at.type)
        earlier = or_(self._keys.last_used_at.is_(None), self._keys.last_used_at < at)
        statement = (
            update(self.table)
            .where(self._keys.id == bindparam("key_id"), earlier)
            .values(last_used_at=at)
        )
        parameters = [
            {"key_id": key_id, "used_at": to_microseconds(used_at)} for key_id, used_at in last_used
        ]
        connection.execute(statement, parameters)

    def recorded_leases(self, connection: Connection) -> Collection[RecordedLease]:
        registers = self._registers.c
        rows = connection.execute(
            select(registers.name, registers.value).where(
                registers.name >= _LEASE, registers.name < _BEHIND_LEASES
            )
        )
        return [_recorded_lease(name, mark) for name, mark in rows]

    def record_lease(self, connection: Connection, lease: RecordedLease) -> None:
        self._upsert_register(connection, _lease_name(lease), lease.mark, literal(lease.mark))

    def forget_lease(self, connection: Connection, lease: RecordedLease) -> None:
        registers = self._registers.c
        connection.execute(
            delete(self._registers).where(
                registers.name == _lease_name(lease), registers.value == lease.mark
            )
        )

    def _differs(self, column: ColumnElement[Any], value: str | None) -> ColumnElement[bool]:
        """The condition that a text differs from the stored text, by its bytes. NULL is compared like a text."""
        new: ColumnElement[Any] = literal(value, column.type)
        if self._is_mysql:
            # For its collations, texts that differ in case, or in trailing spaces, are equal.
            column, new = cast(column, LargeBinary), cast(new, LargeBinary)
        return column.is_distinct_from(new)

    def is_own(self, key_id: str, owner_id: str) -> ColumnElement[bool]:
        """The condition that the key is this owner's and not deleted."""
        keys = self._keys
        return and_(keys.id == key_id, self._is_owned_by(owner_id), keys.deleted_at.is_(None))

    def _is_owned_by(self, owner_id: str) -> ColumnElement[bool]:
        column, texts = self._keys.owner_id, spellings(owner_id)
        if not self._is_mysql:
            return column.in_(texts) if len(texts) > 1 else column == owner_id
        # For the collation "ann" and "ann " are the same owner; their lengths differ.
        length = func.char_length(column)
        return or_(*(and_(column == text, length == len(text)) for text in texts))

    def set_where(
        self, connection: Connection, where: ColumnElement[bool], values: Mapping[str, Any]
    ) -> bool:
        """Set columns of a key, selected by its id and conditions; returns True if it meets them."""
        statement = update(self.table).where(where).values(values)
        if self._is_mysql:
            # InnoDB would sometimes lock an entry of another index before the row, and another writer's update the other way
            # round: one of the two would fail.
            statement = statement.with_hint("FORCE INDEX (PRIMARY)")
        return bool(connection.execute(statement).rowcount)

    def _end(self, ends_at: datetime, now: datetime) -> dict[str, Any]:
        """The values that retire a predecessor: a revocation now, or an expiry that is never later than before."""
        if ends_at <= now:
            return {"revoked_at": to_microseconds(now)}
        expires_at, end = self._keys.expires_at, to_microseconds(ends_at)
        return {"expires_at": case((expires_at < end, expires_at), else_=end)}

    def _add(
        self, connection: Connection, record: ApiKey, max_active: int | None, now: datetime
    ) -> None:
        connection.execute(insert(self.table).values(to_row(record)))
        # Counted afterwards, so that the new key is included.
        if max_active is not None:
            active = self.count_active(connection, record.owner_id, now, up_to=max_active + 1)
            if active > max_active:
                raise KeyLimitReached(max_active)

    def count_active(
        self, connection: Connection, owner_id: str, now: datetime, *, up_to: int
    ) -> int:
        """The number of the owner's active keys, or any number above `up_to` if there are more.

        However many ended or active keys there are, at most twice `up_to` are read.
        """
        stretches = (
            select(literal(1)).where(self._is_owned_by(owner_id), stretch).limit(up_to).subquery()
            for stretch in self._active_stretches(now)
        )
        never, later = (
            select(func.count()).select_from(stretch).scalar_subquery() for stretch in stretches
        )
        return int(connection.execute(select(never + later)).scalar_one())

    def _active_stretches(self, now: datetime) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        """The conditions for the active keys of an owner, which are two contiguous ranges of the index."""
        keys = self._keys
        not_revoked = keys.revoked_at.is_(None)
        return (
            and_(not_revoked, keys.expires_at.is_(None)),
            and_(not_revoked, keys.expires_at > to_microseconds(now)),
        )

    def _take_turn(self, connection: Connection, owner_id: str) -> None:
        value = self._registers.c.value
        # Keys under all spellings of an id count against one limit.
        name = spellings(owner_id)[0]
        self._upsert_register(connection, f"{_TURN}{name}", 1, value + 1)

    def _upsert_register(
        self, connection: Connection, name: str, first: int, then: ColumnElement[int]
    ) -> None:
        """Insert a register with `first`, or set an existing one to `then`; its row stays locked until the end."""
        row = {"name": name, "value": first}
        statement: Any
        if self._is_mysql:
            statement = mysql.insert(self._registers).values(row)
            statement = statement.on_duplicate_key_update(value=then)
        else:
            dialect = postgresql if self._dialect == "postgresql" else sqlite
            statement = dialect.insert(self._registers).values(row)
            statement = statement.on_conflict_do_update(
                index_elements=[self._registers.c.name], set_={"value": then}
            )
        connection.execute(statement)

    def page(self, query: KeyQuery) -> Select[Any]:
        """A page of the keys of an owner."""
        keys = self._keys
        state: ColumnElement[bool]
        match query.status:
            case KeyStatus.ACTIVE:
                return self._active_page(query)
            case KeyStatus.REVOKED:
                state = keys.revoked_at.is_not(None)
            case KeyStatus.EXPIRED:
                state = and_(
                    keys.revoked_at.is_(None), keys.expires_at <= to_microseconds(query.now)
                )
            case None:
                state = true()
        return self._newest(query, keys.deleted_at.is_(None), state, same=[keys.deleted_at])

    def _active_page(self, query: KeyQuery) -> Select[Any]:
        # A scan of the index of active keys: an owner may have a few active keys and 100,000 ended ones.
        never, later = self._active_stretches(query.now)
        never_page = self._newest(query, never, same=[self._keys.revoked_at, self._keys.expires_at])
        later_page = self._newest(query, later, same=[])
        either = union_all(select(never_page.subquery()), select(later_page.subquery())).subquery()
        return (
            select(either)
            .order_by(either.c.created_at.desc(), either.c.id.desc())
            .limit(query.limit)
        )

    def _newest(
        self, query: KeyQuery, *where: ColumnElement[bool], same: Sequence[ColumnElement[Any]]
    ) -> Select[Any]:
        """A page, newest first.

        Args:
            query: The owner, the end of the previous page and the size.
            where: The conditions for the keys.
            same: The columns of the index that `where` requires to be NULL. Sorting by them too changes nothing,
                but shows PostgreSQL that the index has the rows in order.
        """
        keys = self._keys
        order = [column.desc() for column in (*same, keys.created_at, keys.id)]
        statement = select(*self._keys).where(self._is_owned_by(query.owner_id), *where)
        if query.label is not None:
            # A label has no characters that JSON escapes, and no upper case.
            statement = statement.where(keys.labels.contains(f'"{query.label}"', autoescape=True))
        if query.after is not None:
            created_at, key_id = query.after
            place = ((keys.created_at, to_microseconds(created_at)), (keys.id, key_id))
            statement = statement.where(_before(*place))
        return statement.order_by(*order).limit(query.limit)


def _before(*place: tuple[ColumnElement[Any], Any]) -> ColumnElement[bool]:
    """The condition that a row comes before a place, which is a value for each column of an order.

    Not by tuples, which MariaDB and MySQL do not look up in an index.
    """
    (column, value), *rest = place
    before: ColumnElement[bool] = column < value
    if rest:
        # The first condition bounds the stretch of the index.
        before = and_(column <= value, or_(before, _before(*rest)))
    return before


def _lease_name(lease: RecordedLease) -> str:
    return f"{_LEASE}{lease.duration // _MICROSECOND}:{lease.holder}"


def _recorded_lease(name: str, mark: int) -> RecordedLease:
    microseconds, _, holder = name.removeprefix(_LEASE).partition(":")
    return RecordedLease(timedelta(microseconds=int(microseconds)), holder, mark)
