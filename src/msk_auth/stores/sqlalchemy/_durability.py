"""Transactions that are on the disk when they return, even if the server's default is asynchronous."""

from __future__ import annotations

from sqlalchemy import Connection, text

# What is stronger than "on", `remote_apply` for example, stays. "local" and "remote_write" survive a crash of the server.
_COMMIT_DURABLY = text(
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)


def commit_durably(connection: Connection) -> None:
    """Have the current transaction on the disk when its commit returns, even under `synchronous_commit = off`.

    The stores do it in each transaction that writes. Call it at the start of a transaction of your own that ends
    access: one that disables a user, ends a session or changes a password. On other databases than PostgreSQL it does
    nothing: their durability is a setting of the server, or of the connection (:func:`prepare_sqlite`). With an
    asynchronous connection: `await connection.run_sync(commit_durably)`.

    Args:
        connection: In a transaction.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_COMMIT_DURABLY)
