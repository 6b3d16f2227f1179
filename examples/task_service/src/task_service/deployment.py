"""The id and the fingerprints of secrets that the processes on one database share.

The first start makes the deployment's id. It is part of the `aud` of login tokens, so two deployments with copied secrets do
not accept each other's logins (RFC 7519, section 4.1.3). The id is in the database, not in the data folder, because the
processes on one database are one deployment.

Each process reads `secrets.json` in its own data folder. The operator must copy this file to all machines, or a key or
login made on one machine is unknown on another. So the first process on a PostgreSQL database stores the fingerprints
of its peppers and token keys. A process refuses to serve if it shares no pepper or no token key with them, or if it lacks a
pepper or a token key that another process *uses*: digests upgraded there would be unknown here. A pepper that is only
present, as in the first step of a rotation, may be missing elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import ConfigurationError
from task_service.db.engine import Database, lock_table
from task_service.db.schema import deployment, secret_checks
from task_service.ids import new_id
from task_service.parameter_keys import ParameterKeys
from task_service.secrets_file import TOKEN_KEY

_ID: Final = "id"
# Prefix for the name of a used pepper or token key. The row without the prefix remains for the version before.
_USED: Final = "used:"


async def deployment_id(db: Database, now: datetime) -> str:
    """The id of the deployment, made if it is missing. Processes that start at the same moment agree.

    Args:
        db: A database of this version's schema.
        now: The present time.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    first = db.insert(deployment).values(name=_ID, value=new_id("dep"), noted_at=now)
    async with db.write() as connection:
        # The first process wins; the statement waits for a concurrent insert.
        await connection.execute(first.on_conflict_do_nothing(index_elements=[deployment.c.name]))
        found = await connection.execute(select(deployment.c.value).where(deployment.c.name == _ID))
        made: str = found.scalar_one()
    return made


async def forget_deployment_id(db: Database) -> None:
    """Delete the id: the next process that serves makes a new id, and present logins end.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with db.write() as connection:
        await connection.execute(delete(deployment).where(deployment.c.name == _ID))


async def check_secrets(db: Database, fingerprints: Mapping[str, str]) -> None:
    """Check that the secrets match those of the other processes, if any are stored.

    Args:
        db: A database of this version's schema.
        fingerprints: The fingerprints by the names of this process's peppers and token keys; empty without a file.

    Raises:
        ConfigurationError: The secrets do not match.
        StoreUnavailable: The database does not answer.
    """
    async with db.read() as connection:
        await _read_matching(connection, fingerprints)


async def agree_on_secrets(
    db: Database, fingerprints: Mapping[str, str], in_use: frozenset[str]
) -> None:
    """Store the fingerprints for other processes, if the secrets match.

    A new pepper or token key is accepted while those that other processes use are still present.

    Args:
        db: A database of this version's schema.
        fingerprints: The fingerprints by the names of this process's peppers and token keys.
        in_use: The names of the pepper and the token key with which it makes digests and logins.

    Raises:
        ConfigurationError: The secrets do not match.
        StoreUnavailable: The database does not answer.
    """
    mine = {**fingerprints, **{f"{_USED}{name}": fingerprints[name] for name in in_use}}
    async with db.write() as connection:
        # Two first processes at the same moment must see each other's fingerprints.
        await lock_table(connection, secret_checks)
        stored = await _read_matching(connection, fingerprints)
        new = [
            {"pepper_id": name, "fingerprint": mine[name]}
            for name in sorted(mine.keys() - stored.keys())
        ]
        if new:
            await connection.execute(insert(secret_checks), new)


async def check_parameter_keys(db: Database, keys: ParameterKeys) -> str:
    """Check that a worker can open the secrets that processes seal now.

    Args:
        db: A database of this version's schema.
        keys: The keys of the setting `parameter_keys`.

    Returns:
        A sentence with the state.

    Raises:
        ConfigurationError: There are keys, but a key in use is missing.
        StoreUnavailable: The database does not answer.
    """
    if not keys.values:
        return "this machine has none; a worker without them fails runs of tasks with secrets"
    async with db.read() as connection:
        found = await connection.scalars(
            select(secret_checks.c.pepper_id).where(secret_checks.c.pepper_id.startswith(_USED))
        )
    used = {name.removeprefix(_USED) for name in found}
    lacking = [name for name in sorted(used - keys.values.keys()) if not name.startswith(TOKEN_KEY)]
    if lacking:
        raise ConfigurationError(
            f"TASK_SERVICE_PARAMETER_KEYS lacks {', '.join(lacking)}, which other processes use: this process could not open"
            " the secrets of tasks. Set the variable to the output of task-service parameter-keys on a machine that serves."
        )
    return "they open the secrets that other processes seal"


async def forget_secrets(db: Database) -> None:
    """Delete the fingerprints: the next process that serves stores those of its own secrets.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with db.write() as connection:
        await connection.execute(delete(secret_checks))


async def _read_matching(
    connection: AsyncConnection, fingerprints: Mapping[str, str]
) -> dict[str, str]:
    """The stored fingerprints; raises errors like :func:`check_secrets`."""
    found = await connection.execute(select(secret_checks.c.pepper_id, secret_checks.c.fingerprint))
    stored = {row.pepper_id: row.fingerprint for row in found}
    shared = stored.keys() & fingerprints.keys()
    # An older version stored no fingerprints of token keys.
    kinds = {name.startswith(TOKEN_KEY) for name in stored if not name.startswith(_USED)}
    if kinds != {name.startswith(TOKEN_KEY) for name in shared} or any(
        stored[name] != fingerprints[name] for name in shared
    ):
        raise ConfigurationError(
            "The secrets in the data folder are missing, or differ from those of the keys and logins in this database."
            " Copy secrets.json from a machine that serves it. If that file is lost, run"
            " task-service migrate --new-secrets: all keys and logins made with it are lost too."
        )
    used = {
        name.removeprefix(_USED): value for name, value in stored.items() if name.startswith(_USED)
    }
    if lacking := [name for name in sorted(used) if fingerprints.get(name) != used[name]]:
        raise ConfigurationError(
            f"secrets.json in the data folder lacks {', '.join(lacking)}, which other processes use: this process would refuse"
            " their keys or logins. Copy the file from a machine that serves. If you removed the entry on purpose, run"
            " task-service migrate --new-secrets with the new file: keys and logins made with the entry are then refused."
        )
    return stored
