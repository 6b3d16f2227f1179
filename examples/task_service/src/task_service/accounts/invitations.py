"""One-time links with which people choose their own password: new users, forgotten passwords, the first administrator.

A user has one valid link at a time. The exception is the first administrator: while no administrator can log in, each
process makes a link at its start. All of these links are valid until one is used or another administrator can log in.

A link has a token of 256 random bits in its fragment, which browsers send to no server. The database has only the
token's SHA-256, so a reader of the database or a log cannot redeem a link.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import insert, select, update

from msk_auth import Principal
from msk_auth.errors import InputInvalid
from task_service.db import schema
from task_service.errors import LinkInvalid, PasswordLoginOff

from .changes import Accounts, Change
from .credentials import (
    begin_credential_write,
    replace_password,
    void_links,
    void_oldest_first_links,
)
from .names import check_name
from .passwords import Passwords, check_password
from .roles import ADMIN, Role
from .users import (
    User,
    Users,
    administrators_of,
    begin_administration,
    name_taken,
    read_user,
    void_first_links,
)

LINK_LIFETIME: Final = timedelta(days=7)

_TOKEN: Final = re.compile(r"[0-9A-Za-z_-]{43}")
_LINKS = schema.password_links.c


@dataclass(frozen=True, slots=True)
class Invitation:
    """A user and the link to choose their password, which is shown only once."""

    user: User
    invitation_url: str = field(repr=False)
    expires_at: datetime

    @property
    def token(self) -> str:
        """The secret part of the link."""
        return self.invitation_url.partition("#")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitations:
    """Makes and redeems links.

    Attributes:
        accounts: The database.
        users: The users.
        passwords: Hashes the chosen password.
        base_url: The service's own origin.
        passwords_on: False if users have no passwords here. Then there are no links.
    """

    accounts: Accounts
    users: Users
    passwords: Passwords
    base_url: str
    passwords_on: bool = True

    async def create(self, user_id: str, *, by: Principal[Any] | None = None) -> Invitation:
        """Make a link for a user and void earlier links.

        Args:
            user_id: The user.
            by: The administrator; None means the service itself or its command line.

        Raises:
            UserNotFound: There is no such user.
            InputInvalid: The user is disabled.
            Problem: As for :func:`begin_administration`.
        """
        async with self.accounts.change(by) as change:
            await begin_administration(change)
            user = await read_user(change.connection, user_id)
            if user.disabled:
                raise InputInvalid.of("user_id", "This user is disabled. Enable the user first.")
            await void_links(change, user.id)
            return await self._add_link(change, user)

    async def create_user(
        self, username: str, roles: Iterable[Role], *, by: Principal[Any] | None = None
    ) -> Invitation:
        """Add a user with a link, both or neither. Arguments and errors as for :meth:`Users.create`."""
        name = check_name(username)
        async with name_taken(), self.accounts.change(by) as change:
            user = await self.users.add(change, name, roles)
            return await self._add_link(change, user)

    async def create_for_first_administrator(self) -> Invitation | None:
        """A link for this process's output while no administrator can log in; otherwise None.

        Several processes may call this at once at their start. The first process adds the administrator if there is
        none, and each process makes a link for that user. All links are valid until one is used, so the operator may take
        the link from the output of any process.
        """
        if not self.passwords_on:
            return None
        async with self.accounts.change() as change:
            # Two processes must not make two administrators: the link of the one would stay valid after the link of the
            # other was used.
            await begin_credential_write(change)
            administrators = await administrators_of(change.connection)
            if any(user.can_log_in for user in administrators):
                return None
            user = administrators[0] if administrators else await self._add_admin(change)
            await void_oldest_first_links(change, user.id)
            return await self._add_link(change, user)

    async def check(self, token: str) -> User:
        """The user whose password a link would set. Changes nothing.

        Raises:
            PasswordLoginOff: Users have no passwords here.
            LinkInvalid: The link is unknown, spent or expired, or its user is disabled.
        """
        if not self.passwords_on:
            raise PasswordLoginOff
        if _TOKEN.fullmatch(token) is None:
            raise LinkInvalid
        async with self.accounts.db.read() as connection:
            user_id = await connection.scalar(
                select(_LINKS.user_id).where(
                    _LINKS.token_digest == _digest(token),
                    _LINKS.used_at.is_(None),
                    _LINKS.expires_at > self.accounts.now(),
                )
            )
        if user_id is None:
            raise LinkInvalid
        user = await self.users.get(user_id)
        if user.disabled:
            raise LinkInvalid
        return user

    async def redeem(self, token: str, password: str) -> None:
        """Set a user's password, spend the link, void the user's other links and end their login sessions.

        When this returns, no process accepts the earlier sessions.

        Args:
            token: The link's secret part.
            password: The typed new password.

        Raises:
            PasswordLoginOff: Users have no passwords here.
            LinkInvalid: It is unknown, spent or expired, or its user is disabled.
            InputInvalid: The password is not acceptable; the link stays valid.
            TooManyAttempts: Too many passwords are being hashed; the link stays valid.
        """
        # The service spends time on hashing only for a valid link.
        user = await self.check(token)
        password_hash = await self.passwords.hash(check_password(password, user.username))
        async with self.accounts.narrow() as change:
            connection = change.connection
            # Of concurrent requests with links of the user, only one finds its link unspent. Any other change of the
            # password or the user since then has voided the link too.
            await begin_credential_write(change)
            spent = await connection.execute(
                update(schema.password_links)
                .where(
                    _LINKS.token_digest == _digest(token),
                    _LINKS.used_at.is_(None),
                    _LINKS.expires_at > change.now,
                )
                .values(used_at=change.now)
            )
            if spent.rowcount != 1:
                raise LinkInvalid
            user = await read_user(connection, user.id)
            if ADMIN in user.roles:
                await void_first_links(change)
            await replace_password(change, user.id, password_hash)
            await change.record("user.password_set", user.id, anonymous=True)

    async def _add_link(self, change: Change, user: User) -> Invitation:
        if not self.passwords_on:
            raise PasswordLoginOff
        url = f"{self.base_url}/set-password#{secrets.token_urlsafe(32)}"
        invitation = Invitation(user, url, change.now + LINK_LIFETIME)
        await change.connection.execute(
            insert(schema.password_links).values(
                token_digest=_digest(invitation.token),
                user_id=user.id,
                created_at=change.now,
                expires_at=invitation.expires_at,
            )
        )
        await change.record("user.invited", user.id)
        return invitation

    async def _add_admin(self, change: Change) -> User:
        named = select(schema.users.c.id).where(schema.users.c.username == "admin")
        taken = await change.connection.scalar(named)
        # An existing user of this name has other roles or is disabled, and stays unchanged.
        name = "admin" if taken is None else f"admin-{secrets.token_hex(3)}"
        return await self.users.add(change, name, (ADMIN,))


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
