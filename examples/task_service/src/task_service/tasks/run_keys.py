"""Whether the API key that requested a run may still have it started.

A run acts for its owner later than its request, so the statement that starts it looks again: at the owner
(:mod:`.owner_rotation`) and at the key. The rows of both are beside the run, so this needs no secret, which a worker does
not have, and nothing can change between the look and the start.

Revoking a key leaves what it has started. A leak, or the request of its owner, ends that as well: :func:`of_key`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from task_service.db.schema import api_keys, runs

KEY_REVOKED: Final = "The API key that requested the run was revoked before it started."
"""The error of a run that was not started because of that."""
KEY_EXPIRED: Final = "The API key that requested the run expired before it started."
"""The error of a run that was not started because of that."""
KEY_LEAKED: Final = "The API key that requested the run was found in public."
"""The error of a run that ends because of that."""

_KEYS: Final = api_keys.c


def key_of(columns: ReadOnlyColumnCollection[str, Any]) -> ColumnElement[str | None]:
    """The id of the key that requested a run; NULL if a person did.

    Args:
        columns: Those of `runs`, or of an alias.
    """
    key_id: ColumnElement[str | None] = columns.requested_by[("credential", "key_id")].as_string()
    return key_id


def key_allows(
    columns: ReadOnlyColumnCollection[str, Any], now: int | ColumnElement[int]
) -> ColumnElement[bool]:
    """That a person requested the run, or a key that is active now.

    Args:
        columns: Those of `runs`, or of an alias.
        now: The time, in microseconds since 1970.
    """
    active = select(_KEYS.id).where(
        _KEYS.id == key_of(columns),
        _KEYS.revoked_at.is_(None),
        or_(_KEYS.expires_at.is_(None), _KEYS.expires_at > now),
    )
    return or_(key_of(columns).is_(None), active.exists())


def of_key(owner_id: str, key_id: str) -> ColumnElement[bool]:
    """That a key requested the run.

    Args:
        owner_id: The owner of the key and of its runs, by whom an index finds them.
        key_id: The key.
    """
    return and_(runs.c.owner_id == owner_id, key_of(runs.c) == key_id)


async def why_key_refuses(connection: AsyncConnection, key_id: str) -> str:
    """The error of a run whose key does not allow it any more."""
    found = await connection.execute(
        select(_KEYS.id).where(_KEYS.id == key_id, _KEYS.revoked_at.is_(None))
    )
    # A key without a row was removed from the table, which says as much.
    return KEY_REVOKED if found.one_or_none() is None else KEY_EXPIRED
