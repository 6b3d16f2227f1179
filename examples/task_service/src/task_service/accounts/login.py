"""Logging in, confirming and changing a password.

Neither the response nor its timing reveals whether a user name exists: every attempt is counted alike, costs one hash,
leaves one audit entry and gets the same refusal (ASVS 5.0, sections 6.3.1 and 6.3.8).
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import update

from msk_auth import Principal
from msk_auth.errors import InputInvalid, StoreUnavailable, TooManyAttempts
from task_service.db import schema
from task_service.errors import LoginFailed, PasswordLoginOff

from .changes import Accounts
from .config import ConfigStore
from .credentials import begin_credential_write, replace_password
from .names import normalised_username
from .passwords import Passwords, check_password, normalised
from .sessions import LoggedIn, Sessions, require_open
from .throttle import LoginThrottle
from .users import User, Users

_USERS = schema.users.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Logs users in, and changes their passwords.

    Attributes:
        accounts: The database of users and sessions.
        users: The users.
        sessions: Starts sessions.
        passwords: Verifies and hashes passwords.
        config: Limits sessions.
        throttle: Limits the attempts.
        passwords_on: False if users have no passwords here, and log in at an identity provider.
    """

    accounts: Accounts
    users: Users
    sessions: Sessions
    passwords: Passwords
    config: ConfigStore
    throttle: LoginThrottle
    passwords_on: bool = True

    async def log_in(self, username: str, password: str) -> LoggedIn:
        """Start a session.

        Args:
            username: The typed name.
            password: The typed password.

        Raises:
            PasswordLoginOff: Users have no passwords here.
            TooManyAttempts: Too many attempts from this address or for this account; the password was not verified.
            LoginFailed: The name or the password is wrong, or the account cannot log in.
        """
        logged_in = await self._attempt(normalised_username(username), password)
        if logged_in is None:
            raise LoginFailed
        return logged_in

    async def reauthenticate(self, principal: Principal[User], password: str) -> LoggedIn:
        """Replace the principal's session with a new one, so that the login is recent (ASVS 5.0, section 7.2.4).

        When this returns, no process accepts the earlier session's token.

        Args:
            principal: The interactive principal; the caller has checked its kind.
            password: The typed password.

        Raises:
            TooManyAttempts: The password was wrong too often.
            InputInvalid: The password is wrong.
            CredentialRefused: The session has ended meanwhile.
        """
        logged_in = await self._attempt(principal.user.username, password, replaced=principal)
        if logged_in is None:
            raise InputInvalid.of("password", "This is not your password.")
        await self.accounts.await_lease_expiry()
        return logged_in

    async def change_password(self, principal: Principal[User], current: str, new: str) -> None:
        """Replace the password and end the principal's other sessions.

        Args:
            principal: The interactive principal; the caller has checked its kind.
            current: The typed current password.
            new: The typed new password.

        Raises:
            TooManyAttempts: The current password was wrong too often.
            InputInvalid: The current password is wrong, or the new password is not acceptable.
            CredentialRefused: The session has ended meanwhile, for example because the password was reset.
        """
        username = principal.user.username
        verified_hash = await self._verify_current(principal, current)
        new_hash = await self.passwords.hash(check_password(new, username, field="new_password"))
        while not await self._replace(principal, verified_hash, new_hash):
            # A login has upgraded the hash, or the password has changed.
            verified_hash = await self._verify_current(principal, current)

    async def _verify_current(self, principal: Principal[User], current: str) -> str:
        """The hash of the principal's password, if `current` matches; raises errors like `change_password`."""
        # A stranger at an open session must not guess the password, so this counts like a login.
        username = principal.user.username
        _, verified_hash = await self._check(username, current)
        if verified_hash is None:
            await self.accounts.audit.record_refusal(
                "user.password_change_failed", principal=principal, target=principal.owner.id
            )
            raise InputInvalid.of("current_password", "This is not your current password.")
        await self.throttle.succeeded(username)
        return verified_hash

    async def _replace(self, principal: Principal[User], verified_hash: str, new_hash: str) -> bool:
        """Replace the password; False if the stored hash is no longer the verified one."""
        async with self.accounts.narrow(principal) as change:
            await begin_credential_write(change)
            replaced = await replace_password(
                change,
                principal.owner.id,
                new_hash,
                verified_hash=verified_hash,
                keep_session=principal.session_id,
            )
            if replaced:
                await change.record("user.password_changed", principal.owner.id)
        return replaced

    async def _attempt(
        self, account: str, password: str, *, replaced: Principal[User] | None = None
    ) -> LoggedIn | None:
        """Start a session, perhaps in place of another; None for a wrong name or password, or a disabled account."""
        user, verified_hash = await self._check(account, password)
        while user is not None and verified_hash is not None and not user.disabled:
            logged_in = await self._start(user, verified_hash, password, replaced)
            if logged_in is not None:
                await self.throttle.succeeded(account)
                return logged_in
            user, verified_hash = await self._verify(account, password)
        # The entry omits the typed name: users mistakenly type their password there.
        target = None if user is None else user.id
        await self.accounts.audit.record_refusal(
            "login.failed", principal=replaced, anonymous=replaced is None, target=target
        )
        return None

    async def _check(self, account: str, password: str) -> tuple[User | None, str | None]:
        """Count the attempt, and return the result of :meth:`_verify`."""
        if not self.passwords_on:
            raise PasswordLoginOff
        await self.throttle.attempt(account)
        try:
            return await self._verify(account, password)
        except (StoreUnavailable, TooManyAttempts):
            # The client has learned nothing about the password.
            await self.throttle.withdraw(account)
            raise

    async def _verify(self, account: str, password: str) -> tuple[User | None, str | None]:
        """The account, if it exists, and the hash of its password, if the password matches."""
        stored = await self.users.find_password(account)
        user, encoded = (None, None) if stored is None else (stored.user, stored.hash)
        matches = await self.passwords.verify(password, encoded)
        return user, encoded if matches else None

    async def _start(
        self, user: User, verified_hash: str, password: str, replaced: Principal[User] | None
    ) -> LoggedIn | None:
        """Start a session; None if the account has changed since its password was verified."""
        new_hash = verified_hash
        if self.passwords.needs_rehash(verified_hash):
            new_hash = await self.passwords.hash(normalised(password))
        config = await self.config.current()
        async with self.accounts.change(replaced) as change:
            # Only if the account is unchanged since the password was read: a user who was disabled meanwhile, or
            # has a new password, gets no session.
            updated = await change.connection.execute(
                update(schema.users)
                .where(
                    _USERS.id == user.id,
                    _USERS.disabled_at.is_(None),
                    _USERS.password_hash == verified_hash,
                )
                .values(last_login_at=change.now, password_hash=new_hash)
            )
            if updated.rowcount != 1:
                return None
            if replaced is not None:
                await require_open(change, replaced)
            replaces = None if replaced is None else replaced.session_id
            return await self.sessions.start(change, user, config, replaces=replaces)
