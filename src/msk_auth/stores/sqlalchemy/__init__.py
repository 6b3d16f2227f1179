"""Keys in a database, through SQLAlchemy: SQLite, PostgreSQL, MariaDB and MySQL, blocking and asynchronous.

One rule: a look-up reads the primary, in bounded time, or raises.

The table is made in one of two ways. The library owns it: call
:func:`msk_auth.stores.sqlalchemy.migrations.upgrade` at start. Or the application does: call :func:`api_key_table`
with its own metadata, so that its own migrations make the table with the others, and hand the table to the store.

On SQLite call :func:`prepare_sqlite` with the engine first, on PostgreSQL :func:`prepare_postgresql`.

The users stay in the application's own tables: :class:`ModelUsers` look them up.
"""

from __future__ import annotations

from ._async_store import AsyncSQLAlchemyKeyStore
from ._durability import commit_durably
from ._postgresql import prepare_postgresql
from ._prepared import AsyncPreparedLookUp, AsyncPreparedRead, PreparedRead
from ._rows import read_record
from ._schema import api_key_table
from ._sqlite import prepare_sqlite
from ._store import SQLAlchemyKeyStore
from ._users import AsyncModelUsers, ModelUsers

__all__ = [
    "AsyncModelUsers",
    "AsyncPreparedLookUp",
    "AsyncPreparedRead",
    "AsyncSQLAlchemyKeyStore",
    "ModelUsers",
    "PreparedRead",
    "SQLAlchemyKeyStore",
    "api_key_table",
    "commit_durably",
    "prepare_postgresql",
    "prepare_sqlite",
    "read_record",
]
