"""Statements of the application that are read the short way, as keys are: compiled once, on a connection that is held."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from sqlalchemy import ColumnElement, Connection, Dialect, Select, String
from sqlalchemy.exc import InvalidRequestError

from msk_auth.core.errors import ConfigurationError

from ._deadlines import is_late
from ._rows import FastPathUnavailable


class PreparedRead(Protocol):
    """A prepared statement: called with the values of its parameters, it returns the rows as named tuples."""

    def __call__(self, **parameters: Any) -> Sequence[Any]:
        """All rows that the statement selects now."""
        ...


class AsyncPreparedRead(Protocol):
    """A statement that :meth:`AsyncSQLAlchemyKeyStore.prepare` has prepared."""

    def __call__(self, **parameters: Any) -> Awaitable[Sequence[Any]]:
        """All rows that the statement selects now."""
        ...


class AsyncPreparedLookUp(Protocol):
    """A statement that :meth:`AsyncSQLAlchemyKeyStore.prepare_by_id` has prepared."""

    def __call__(self, row_id: str, /) -> Awaitable[Any | None]:
        """The row with this id, as a named tuple; None if there is none now."""
        ...


def id_of(statement: Select[Any]) -> ColumnElement[str]:
    """The column `id` of a statement.

    Raises:
        ConfigurationError: It has none, or one that is no text.
    """
    column = statement.selected_columns.get("id")
    if column is None or not isinstance(column.type, String):
        raise ConfigurationError(
            "A statement whose rows are looked up by id needs a column `id` of text. Select it, or use prepare()."
        )
    return column


class Statement:
    """A `SELECT` for the cursors of one dialect.

    Args:
        select: The statement. Its parameters are those of `bindparam`.
        dialect: Of the engine.

    Raises:
        ConfigurationError: A parameter is a list, whose length would be part of the text.
    """

    def __init__(self, select: Select[Any], dialect: Dialect) -> None:
        self._select = select
        self._is_postgresql = dialect.name == "postgresql"
        # Annotations of SQLAlchemy leave out what its own dialects define.
        compiled = cast("Any", select.compile(dialect=dialect))
        if compiled.post_compile_params:
            raise ConfigurationError(
                "A prepared statement cannot have a list as a parameter. Use one parameter for each value."
            )
        self.text: str = compiled.string
        self._compiled = compiled
        self._positions: Sequence[str] | None = compiled.positiontup
        self._to_driver = {
            name: process
            for name, bind in compiled.binds.items()
            if (process := bind.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        columns = select.selected_columns
        make_class = cast("Any", namedtuple)  # type checkers expect its names in the source
        names = [str(column.key) for column in columns]
        self._make: Callable[[Sequence[Any]], Any] = make_class("Row", names, rename=True)._make
        self._from_driver: list[tuple[int, Callable[[Any], Any]]] | None = []
        try:
            for number, column in enumerate(columns):
                process = column.type.dialect_impl(dialect).result_processor(dialect, None)
                if process is not None:
                    self._from_driver.append((number, process))
        except (InvalidRequestError, TypeError):
            # The type depends on what the driver says of each result, such as NUMERIC of PostgreSQL; without
            # that its converter fails on formatting its own message.
            self._from_driver = None

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """The parameters as a cursor of the driver takes them.

        Raises:
            FastPathUnavailable: The driver would refuse a value, or the types of the result are not known beforehand.
        """
        if self._from_driver is None:
            raise FastPathUnavailable
        found = self._compiled.construct_params(values)
        for name, process in self._to_driver.items():
            found[name] = process(found[name])
        for value in found.values():
            if isinstance(value, str):
                _check_text(value)
        if self._positions is None:
            return found
        return tuple(found[name] for name in self._positions)

    def rows(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The rows of a cursor of the driver, with the types of SQLAlchemy."""
        if not self._from_driver:
            return [self._make(row) for row in rows]
        converted: list[Any] = []
        for row in rows:
            cells = list(row)
            for number, process in self._from_driver:
                cells[number] = process(cells[number])
            converted.append(self._make(cells))
        return converted

    def read(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """The rows; on PostgreSQL by a cursor of the driver, which takes half of the time of SQLAlchemy's statements."""
        if self._is_for_cursors_of(connection):
            try:
                return self.rows(_fetch(connection, self.text, self.parameters(values)))
            except Exception:
                if is_late():
                    raise
                # SQLAlchemy makes it one of its errors, and closes what has to be closed.
        return [self._make(row) for row in connection.execute(self._select, values)]

    def _is_for_cursors_of(self, connection: Connection) -> bool:
        # A listener of the application sees every statement, and may change it.
        return (
            self._is_postgresql
            and "schema_translate_map" not in connection.get_execution_options()
            and not connection.dispatch.before_execute
            and not connection.dispatch.before_cursor_execute
        )


def _fetch(connection: Connection, text: str, parameters: Any) -> Sequence[Sequence[Any]]:
    cursor = connection.connection.cursor()
    try:
        cursor.execute(text, parameters)
        return cursor.fetchall()
    except Exception:
        raise
    except BaseException:
        # Interrupted: an answer may be on its way, and it must not be the next one's.
        connection.invalidate()
        raise
    finally:
        cursor.close()


def _check_text(value: str) -> None:
    """Refuse what a driver would: a NUL, or half a surrogate."""
    if "\0" in value:
        raise FastPathUnavailable
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise FastPathUnavailable from None
