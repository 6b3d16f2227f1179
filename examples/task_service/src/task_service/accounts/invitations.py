"""One-time links with which people choose their own password: new users, forgotten passwords, the first administrator.

A link carries a token of 256 random bits in its fragment, which browsers send to no server. The database holds the
token's SHA-256, so neither a copy of the database nor a log can redeem it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Clock, InputInvalid, Principal
from task_service.db import schema
from task_service.db.engine import Database, lock_table
from task_service.errors import LinkInvalid, UsernameTaken

from .audit import Audit
from .narrowing import AccessNarrowed, nothing_is_reused
from .passwords import Passwords, check_password
from .roles import ADMIN
from .users import User, Users

LINK_LIFETIME: Final = timedelta(days=7)

_TOKEN: Final = re.compile(r"[0-9A-Za-z_-]{43}")
_LINKS = schema.password_links.c
_USERS = schema.users.c
_SESSIONS = schema.sessions.c


@dataclass(frozen=True, slots=True)
class Invitation:
    """A link that was just made. It cannot be shown again.

    Attributes:
        user: Who may choose a password with it.
        token: The secret part.
        expires_at: When it stops working.
    """

    user: User
    token: str = field(repr=False)
    expires_at: datetime

    def url(self, base_url: str) -> str:
        """The link, under the service's own origin."""
        return f"{base_url}/set-password#{self.token}"


class Invitations:
    """Makes and redeems links.

    Args:
        db: Where they are.
        clock: Where the time comes from.
        users: Whose passwords they set.
        audit: Records what is done, in its own transaction.
        passwords: Hashes the password that is chosen.
        access_narrowed: See :mod:`task_service.accounts.narrowing`.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        users: Users,
        audit: Audit,
        passwords: Passwords,
        access_narrowed: AccessNarrowed = nothing_is_reused,
    ) -> None:
        self._db = db
        self._clock = clock
        self._users = users
        self._audit = audit
        self._passwords = passwords
        self._access_narrowed = access_narrowed

    async def create(self, user_id: str, *, by: Principal[Any] | None = None) -> Invitation:
        """Make a link for a user; the ones they had before are void.

        Args:
            user_id: Whose password it sets.
            by: Who does it; None means the service itself or its command line.

        Raises:
            UserNotFound: There is no such user.
            InputInvalid: The user is disabled.
        """
        user = await self._users.get(user_id)
        if user.disabled:
            raise InputInvalid.of("user_id", "This user is disabled. Enable them first.")
        now = self._clock.now()
        invitation = Invitation(user, secrets.token_urlsafe(32), now + LINK_LIFETIME)
        async with self._db.write() as connection:
            await _void_links(connection, user.id, now)
            await connection.execute(
                insert(schema.password_links).values(
                    token_digest=_digest(invitation.token),
                    user_id=user.id,
                    created_at=now,
                    expires_at=invitation.expires_at,
                )
            )
            await self._audit.record(
                "user.invited", principal=by, target=user.id, connection=connection
            )
        return invitation

    async def create_for_first_administrator(self) -> Invitation | None:
        """A fresh link as long as no administrator can log in; None once one can.

        Called at each start. The administrator is made if there is none yet.
        """
        async with self._db.read() as connection:
            rows = (
                await connection.execute(
                    select(_USERS.id, _USERS.roles, _USERS.password_hash.is_not(None))
                    .where(_USERS.disabled_at.is_(None))
                    .order_by(_USERS.created_at, _USERS.id)
                )
            ).all()
        administrators = [
            (user_id, can_log_in) for user_id, roles, can_log_in in rows if ADMIN in roles
        ]
        if any(can_log_in for _, can_log_in in administrators):
            return None
        if administrators:
            return await self.create(administrators[0][0])
        return await self.create((await self._create_administrator()).id)

    async def redeem(self, token: str, password: str) -> User:
        """Set a user's password. The link is spent, other links are void and open login sessions end.

        When this returns, no process acts on what was before.

        Args:
            token: The link's secret part.
            password: What the user chose.

        Raises:
            LinkInvalid: It is unknown, spent or too old, or its user is disabled.
            InputInvalid: The password is not acceptable; the link can be used again.
            TooManyAttempts: Too many passwords are being hashed; the link can be used again.
        """
        # Without a valid link nobody gets to spend the service's time on hashing.
        user = await self._find_user(token)
        password_hash = await self._passwords.hash(check_password(password, user.username))
        now = self._clock.now()
        async with self._db.write() as connection:
            # Of those who redeem it at the same moment one finds it unspent.
            spent = await connection.execute(
                update(schema.password_links)
                .where(
                    _LINKS.token_digest == _digest(token),
                    _LINKS.used_at.is_(None),
                    _LINKS.expires_at > now,
                )
                .values(used_at=now)
            )
            if spent.rowcount != 1:
                raise LinkInvalid
            await replace_password(connection, user.id, password_hash, now)
            await self._audit.record(
                "user.password_set", anonymous=True, target=user.id, connection=connection
            )
        await self._access_narrowed()
        return await self._users.get(user.id)

    async def _find_user(self, token: str) -> User:
        if _TOKEN.fullmatch(token) is None:
            raise LinkInvalid
        async with self._db.read() as connection:
            user_id = await connection.scalar(
                select(_LINKS.user_id).where(
                    _LINKS.token_digest == _digest(token),
                    _LINKS.used_at.is_(None),
                    _LINKS.expires_at > self._clock.now(),
                )
            )
        if user_id is None:
            raise LinkInvalid
        user = await self._users.get(user_id)
        if user.disabled:
            raise LinkInvalid
        return user

    async def _create_administrator(self) -> User:
        try:
            return await self._users.create("admin", [ADMIN])
        except UsernameTaken:
            # Somebody of that name has other roles, and shall keep them.
            return await self._users.create(f"admin-{secrets.token_hex(3)}", [ADMIN])


async def replace_password(
    connection: AsyncConnection,
    user_id: str,
    password_hash: str,
    now: datetime,
    *,
    keep_session: str | None = None,
) -> None:
    """Give a user another password. Their links are void and their login sessions end.

    Args:
        connection: In a write transaction.
        user_id: Whose.
        password_hash: As :meth:`Passwords.hash` made it.
        now: When.
        keep_session: The one session that goes on: the one in which the password was changed.
    """
    await connection.execute(
        update(schema.users).where(_USERS.id == user_id).values(password_hash=password_hash)
    )
    await _void_links(connection, user_id, now)
    ending = (
        update(schema.sessions)
        .where(_SESSIONS.user_id == user_id, _SESSIONS.ended_at.is_(None))
        .values(ended_at=now)
    )
    if keep_session is not None:
        ending = ending.where(_SESSIONS.id != keep_session)
    await connection.execute(ending)


async def _void_links(connection: AsyncConnection, user_id: str, now: datetime) -> None:
    # Two that make a link for one user at once take turns, or both would be good.
    await lock_table(connection, schema.password_links)
    await connection.execute(
        update(schema.password_links)
        .where(_LINKS.user_id == user_id, _LINKS.used_at.is_(None))
        .values(used_at=now)
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
