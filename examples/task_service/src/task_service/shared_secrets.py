"""Whether the processes of a deployment have the same secrets.

Each process reads `secrets.json` in its own data folder. On several machines the operator has to copy that file, or a key
that one machine makes is unknown to the next, and a login likewise. So the first process that serves a database on
PostgreSQL leaves the fingerprints of its peppers and token keys there, and one that has none of either refuses to serve.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ConfigurationError
from task_service.db.engine import Database, lock_table
from task_service.db.schema import secret_checks
from task_service.secrets_file import TOKEN_KEY


async def secrets_fit(db: Database, fingerprints: Mapping[str, str]) -> bool:
    """Whether these are the secrets of the other processes, or nobody has left any yet.

    Args:
        db: A database of this version's schema.
        fingerprints: From the names of this process's peppers and token keys; empty if there is no file.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        return _fit(await _known(connection), fingerprints)


async def agree_on_secrets(db: Database, fingerprints: Mapping[str, str]) -> None:
    """Leave the fingerprints for other processes, if the secrets fit.

    A new pepper or token key is no contradiction as long as an old one is still there.

    Raises:
        ConfigurationError: They do not.
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        known = await _known(connection)
    if known.items() >= fingerprints.items() and _fit(known, fingerprints):
        return
    async with db.write() as connection:
        # Of two processes that come first at the same moment one must see the other.
        await lock_table(connection, secret_checks)
        known = await _known(connection)
        if not _fit(known, fingerprints):
            raise ConfigurationError(
                "The secrets in the data folder are not those with which the keys and logins in this database were made."
                " Copy secrets.json from a machine that serves it. If that file is lost, run"
                " task-service migrate --new-secrets: all keys and logins made with it are lost too."
            )
        for pepper_id in sorted(fingerprints.keys() - known.keys()):
            await connection.execute(
                insert(secret_checks).values(
                    pepper_id=pepper_id, fingerprint=fingerprints[pepper_id]
                )
            )


async def forget_secrets(db: Database) -> None:
    """Let the next process that serves begin with other secrets.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.write() as connection:
        await connection.execute(delete(secret_checks))


def _fit(known: Mapping[str, str], fingerprints: Mapping[str, str]) -> bool:
    shared = known.keys() & fingerprints.keys()
    return all(known[name] == fingerprints[name] for name in shared) and all(
        # An older version has left none of token keys.
        not of_kind or bool(of_kind & shared)
        for of_kind in (
            {name for name in known if name.startswith(TOKEN_KEY)},
            {name for name in known if not name.startswith(TOKEN_KEY)},
        )
    )


async def _known(connection: AsyncConnection) -> dict[str, str]:
    result = await connection.execute(
        select(secret_checks.c.pepper_id, secret_checks.c.fingerprint)
    )
    return {row.pepper_id: row.fingerprint for row in result}
