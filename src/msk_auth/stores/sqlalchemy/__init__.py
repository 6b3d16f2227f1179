"""Keys in a database, through SQLAlchemy: SQLite, PostgreSQL, MariaDB and MySQL, blocking and asynchronous.

One rule: a look-up reads the primary, in bounded time, or raises.

Either the library owns the table: call :func:`msk_auth.stores.sqlalchemy.migrations.upgrade` at start. Or the application owns
it: call :func:`api_key_table` with its own metadata, so that its migrations make the table, and pass the table to the store.

On SQLite call :func:`prepare_sqlite` with the engine first, on PostgreSQL :func:`prepare_postgresql`.

The users stay in the application's own tables: :class:`ModelUsers` look them up.
"""

from __future__ import annotations

from ._async.store import AsyncSQLAlchemyKeyStore
from ._async.users import AsyncModelUsers
from ._servers import commit_durably, prepare_postgresql
from ._sqlite import prepare_sqlite
from ._sync.store import SQLAlchemyKeyStore
from ._sync.users import ModelUsers
from ._table import api_key_table, read_record

__all__ = [
    "AsyncModelUsers",
    "AsyncSQLAlchemyKeyStore",
    "ModelUsers",
    "SQLAlchemyKeyStore",
    "api_key_table",
    "commit_durably",
    "prepare_postgresql",
    "prepare_sqlite",
    "read_record",
]
