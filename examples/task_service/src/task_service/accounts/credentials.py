"""Writes passwords and password links: one writer at a time, for an open login, and only over the verified value.

A password is verified and hashed outside of transactions. This takes tens of milliseconds, in which a reset may be
acknowledged. So every writer of a credential locks the users, checks in the same transaction that its login
is still open, and replaces only the hash that it verified. An earlier request never overwrites an acknowledged change.

:mod:`task_service.accounts.invitations` makes and redeems the links.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import select, update

from task_service.db import schema
from task_service.db.engine import lock_table

from .changes import Change
from .sessions import end_sessions, lock_users, require_open

MAX_FIRST_LINKS: Final = 16
"""The maximum number of valid links for the first administrator: one for each process, and a few restarts."""

_USERS = schema.users.c
_LINKS = schema.password_links.c


async def begin_credential_write(change: Change, *user_ids: str) -> None:
    """Lock the users: the first statement of every write of credentials, roles or disabled users.

    Users are always locked before links and sessions, so that transactions cannot deadlock.

    Args:
        change: The change.
        user_ids: The users whose rows it locks, besides its principal.

    Raises:
        CredentialRefused: The login of the change has ended since its request was authenticated.
    """
    await lock_table(change.connection, schema.users)
    # A request for a run does not wait for the table. It locks its user and the owner of the task.
    if change.by is None:
        await lock_users(change, *user_ids)
    else:
        await require_open(change, change.by, *user_ids)


async def replace_password(
    change: Change,
    user_id: str,
    password_hash: str,
    *,
    verified_hash: str | None = None,
    keep_session: str | None = None,
) -> bool:
    """Replace a user's password, void their links and end their login sessions.

    Args:
        change: After :func:`begin_credential_write`.
        user_id: The user.
        password_hash: From :meth:`Passwords.hash`.
        verified_hash: The verified hash of the current password; None for a redeemed link.
        keep_session: The session that stays open, in which the user changed the password.

    Returns:
        False if the stored hash is no longer `verified_hash`; then nothing was changed.
    """
    conditions = [_USERS.id == user_id]
    if verified_hash is not None:
        conditions.append(_USERS.password_hash == verified_hash)
    replaced = await change.connection.execute(
        update(schema.users).where(*conditions).values(password_hash=password_hash)
    )
    if replaced.rowcount != 1:
        return False
    await void_links(change, user_id)
    await end_sessions(change, user_id, schema.sessions.c.id != keep_session)
    return True


async def void_links(change: Change, user_id: str) -> None:
    """Void the links of a user."""
    await change.connection.execute(
        update(schema.password_links)
        .where(_LINKS.user_id == user_id, _LINKS.used_at.is_(None))
        .values(used_at=change.now)
    )


async def void_oldest_first_links(change: Change, user_id: str) -> None:
    """Leave room for one more link: the number of valid links must be bounded, even if a process restarts in a loop."""
    kept = (
        select(_LINKS.token_digest)
        .where(_LINKS.user_id == user_id, _LINKS.used_at.is_(None))
        .order_by(_LINKS.created_at.desc(), _LINKS.token_digest)
        .limit(MAX_FIRST_LINKS - 1)
    )
    await change.connection.execute(
        update(schema.password_links)
        .where(
            _LINKS.user_id == user_id,
            _LINKS.used_at.is_(None),
            _LINKS.token_digest.not_in(kept.subquery().select()),
        )
        .values(used_at=change.now)
    )
