"""What is asked of PostgreSQL, and what an answer means; both readers ask it in their own way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import ARRAY, Engine, String, Table, any_, bindparam, select
from sqlalchemy.dialects import postgresql

from msk_auth.core.model import ApiKey
from msk_auth.stores.sqlalchemy._rows import REMEMBERED, TIMES, NotNow, read_record

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

    from .wire import Wire

PAUSE_SECONDS: Final = 1.0
"""How long the long way is taken after a connection could not be had."""

_TUPLES: Final = 2  # PGRES_TUPLES_OK
_COMMAND: Final = 1  # PGRES_COMMAND_OK
_SQLSTATE: Final = 67  # PG_DIAG_SQLSTATE
# Behind a pooler that hands each transaction to another server: the statement is somewhere else, or there already.
_NOT_KEPT: Final = frozenset({b"26000", b"42P05"})


def is_plain_postgresql(engine: Engine) -> bool:
    """True where the short way of reading is open: psycopg, and tables under the names they were made with."""
    return (
        engine.dialect.name == "postgresql"
        and engine.dialect.driver == "psycopg"
        and "schema_translate_map" not in engine.get_execution_options()
    )


class Statement:
    """A statement under a name that no other one has: a pooler may hand us a server that knows somebody else's."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.name = b"msk_auth_" + hashlib.sha256(text).hexdigest()[:32].encode()


class Reading:
    """The questions about one table of keys, and what is known of how the server takes them.

    Args:
        table: The table of keys.
    """

    def __init__(self, table: Table) -> None:
        self.keeps_statements = True
        self.is_understood = True
        by_id = table.c.id == bindparam("key_id")
        among = table.c.id == any_(bindparam("key_ids", type_=ARRAY(String)))
        dialect = cast("Any", postgresql.dialect)(paramstyle="numeric_dollar")
        self.one, self.many = (
            Statement(str(select(*table.c).where(condition).compile(dialect=dialect)).encode())
            for condition in (by_id, among)
        )
        # The same bytes make the same record, which nobody can change.
        self._record = lru_cache(REMEMBERED)(_read_texts)

    def to_prepare(self, wire: Wire, *statements: Statement) -> Iterator[Statement]:
        """What a new wire is to prepare; each answer goes to :meth:`note_prepared` before the next one is taken.

        Raises:
            NotNow: It speaks in an encoding that is not read here.
        """
        if not wire.speaks_utf8:
            self.is_understood = False
            raise NotNow
        wire.prepares = wire.prepares and self.keeps_statements
        for statement in statements:
            if wire.prepares:
                yield statement

    def note_prepared(self, wire: Wire, answer: PGresult) -> None:
        """Learn whether a statement was prepared.

        Raises:
            NotNow: It was not, and cannot be asked in another way either.
        """
        if answer.status == _COMMAND:
            return
        if not self._is_not_kept(answer):
            raise NotNow
        wire.prepares = False

    def records(self, answer: PGresult) -> list[ApiKey]:
        """The records in an answer.

        Raises:
            NotNow: It is an error. The long way says which; what is held may be at fault, and should be closed.
        """
        if answer.status != _TUPLES:
            self._is_not_kept(answer)
            raise NotNow
        columns = range(answer.nfields)
        return [
            self._record(tuple([answer.get_value(row, column) for column in columns]))
            for row in range(answer.ntuples)
        ]

    def _is_not_kept(self, answer: PGresult) -> bool:
        is_not_kept = answer.error_field(_SQLSTATE) in _NOT_KEPT
        if is_not_kept:
            self.keeps_statements = False
        return is_not_kept


def as_parameter(key_id: str) -> bytes:
    """An id as a parameter in text.

    Raises:
        NotNow: It cannot be an id of ours, and libpq would end it at a NUL.
    """
    if not (key_id.isascii() and key_id.isalnum()):
        raise NotNow
    return key_id.encode()


def as_array(key_ids: Sequence[str]) -> bytes:
    """Ids as one parameter. Raises as :func:`as_parameter` does."""
    # In quotes, because the word NULL without them is none.
    return b"{%b}" % b",".join([b'"%b"' % as_parameter(key_id) for key_id in key_ids])


def _read_texts(texts: tuple[bytes | None, ...]) -> ApiKey:
    values: list[Any] = [None if text is None else text.decode() for text in texts]
    for column in TIMES:
        if values[column] is not None:
            values[column] = int(values[column])
    return read_record(values)
