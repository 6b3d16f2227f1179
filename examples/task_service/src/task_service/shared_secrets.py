"""Whether the processes of a deployment have the same secrets.

Each process reads `secrets.json` in its own data folder. On several machines somebody has to copy that file, and if they
forget, a key that one machine makes is unknown to the next. So the first process that serves a database on PostgreSQL
leaves the fingerprints of its peppers there, and one that has none of them refuses to serve.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ConfigurationError
from task_service.db.engine import Database, lock_table
from task_service.db.schema import secret_checks


async def secrets_fit(db: Database, fingerprints: Mapping[str, str]) -> bool:
    """Whether these are the secrets of the other processes, or nobody has left any yet.

    Args:
        db: A database of this version's schema.
        fingerprints: From the ids of this process's peppers.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        return _fit(await _known(connection), fingerprints)


async def agree_on_secrets(db: Database, fingerprints: Mapping[str, str]) -> None:
    """Leave the fingerprints for other processes, if the secrets fit.

    A new pepper is no contradiction as long as an old one is still there.

    Raises:
        ConfigurationError: They do not.
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        if (await _known(connection)).items() >= fingerprints.items():
            return
    async with db.write() as connection:
        # Of two processes that come first at the same moment one must see the other.
        await lock_table(connection, secret_checks)
        known = await _known(connection)
        if not _fit(known, fingerprints):
            raise ConfigurationError(
                "The secrets in the data folder are not those with which the keys in this database were made."
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
    return not known or (bool(shared) and all(known[each] == fingerprints[each] for each in shared))


async def _known(connection: AsyncConnection) -> dict[str, str]:
    result = await connection.execute(
        select(secret_checks.c.pepper_id, secret_checks.c.fingerprint)
    )
    return {row.pepper_id: row.fingerprint for row in result}
