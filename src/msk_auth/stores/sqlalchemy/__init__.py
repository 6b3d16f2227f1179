"""Keys in a database, through SQLAlchemy: SQLite, PostgreSQL, MariaDB and MySQL, blocking and asynchronous."""

from __future__ import annotations

from ._schema import api_key_table
from ._types import UtcMicroseconds

__all__ = ["UtcMicroseconds", "api_key_table"]
