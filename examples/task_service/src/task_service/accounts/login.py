"""Logging in, confirming and changing a password.

Neither the response nor its timing reveals whether a user name exists: every attempt is counted alike, costs one hash,
leaves one audit entry and gets the same refusal (ASVS 5.0, sections 6.3.1 and 6.3.8).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import update

from msk_auth import Clock, Principal
from msk_auth.errors import InputInvalid, StoreUnavailable, TooManyAttempts
from task_service.db import schema
from task_service.db.engine import Database
from task_service.errors import LoginFailed, PasswordLoginOff
from task_service.request_record import request_address

from . import AwaitLeaseExpiry, no_leases
from .audit import Audit
from .config import ConfigStore
from .credentials import begin_credential_write, replace_password
from .passwords import Passwords, check_password, normalised
from .sessions import Sessions, end_open_session
from .throttle import LoginThrottle
from .users import StoredPassword, User, Users, normalised_username

_USERS = schema.users.c


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A login that succeeded.

    Attributes:
        token: The login token (JWT).
        expires_in: Its lifetime in seconds, unless the session becomes idle earlier.
        user: The user who logged in.
        session_id: The new session.
    """

    token: str = field(repr=False)
    expires_in: int
    user: User
    session_id: str


class Login:
    """Logs users in, and changes their passwords.

    Args:
        db: Holds users and sessions.
        clock: Where the time comes from.
        users: The users.
        sessions: Starts sessions.
        passwords: Verifies and hashes passwords.
        config: Limits sessions.
        audit: Records every attempt.
        throttle: Limits the attempts.
        await_lease_expiry: See :data:`~task_service.accounts.AwaitLeaseExpiry`.
        passwords_on: Whether users have passwords here. Otherwise they log in at an identity provider.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        users: Users,
        sessions: Sessions,
        passwords: Passwords,
        config: ConfigStore,
        audit: Audit,
        throttle: LoginThrottle,
        await_lease_expiry: AwaitLeaseExpiry = no_leases,
        passwords_on: bool = True,
    ) -> None:
        self._db = db
        self._clock = clock
        self._users = users
        self._sessions = sessions
        self._passwords = passwords
        self._config = config
        self._audit = audit
        self._throttle = throttle
        self._await_lease_expiry = await_lease_expiry
        self._passwords_on = passwords_on

    async def log_in(
        self,
        username: str,
        password: str,
        *,
        address: str | None = None,
        user_agent: str | None = None,
    ) -> LoggedIn:
        """Start a session.

        Args:
            username: As it was typed.
            password: As it was typed.
            address: The client's address.
            user_agent: The header `User-Agent`.

        Raises:
            PasswordLoginOff: Users have no passwords here.
            TooManyAttempts: There were too many from this address or for this account; the password was not verified.
            LoginFailed: The name or the password is wrong, or the account cannot log in.
        """
        logged_in = await self._attempt(
            normalised_username(username), password, address, user_agent
        )
        if logged_in is None:
            raise LoginFailed
        return logged_in

    async def reauthenticate(
        self, principal: Principal[User], password: str, *, user_agent: str | None = None
    ) -> LoggedIn:
        """Replace the principal's session with a new one, so that the login is recent (ASVS 5.0, section 7.2.4).

        When this returns, no process accepts the earlier session's token.

        Args:
            principal: An interactive one; the caller has checked that.
            password: As it was typed.
            user_agent: The header `User-Agent`.

        Raises:
            TooManyAttempts: The password was wrong too often.
            InputInvalid: It is wrong.
            TokenRevoked: The session has ended meanwhile.
        """
        logged_in = await self._attempt(
            principal.user.username, password, request_address(), user_agent, replaced=principal
        )
        if logged_in is None:
            raise InputInvalid.of("password", "This is not your password.")
        await self._await_lease_expiry()
        return logged_in

    async def change_password(self, principal: Principal[User], current: str, new: str) -> None:
        """Replace the password and end the principal's other sessions.

        Args:
            principal: An interactive one; the caller has checked that.
            current: The current password, as it was typed.
            new: The new password, as it was typed.

        Raises:
            TooManyAttempts: The current password was wrong too often.
            InputInvalid: The current password is wrong, or the new one is not acceptable.
            TokenRevoked: The session has ended meanwhile, for example because the password was reset.
        """
        username = principal.user.username
        verified_hash = await self._verify_current(principal, current)
        new_hash = await self._passwords.hash(check_password(new, username, field="new_password"))
        while not await self._replace(principal, verified_hash, new_hash):
            # A login has upgraded the hash, or the password has changed.
            verified_hash = await self._verify_current(principal, current)
        await self._await_lease_expiry()

    async def _verify_current(self, principal: Principal[User], current: str) -> str:
        """The hash of the principal's password if `current` matches it; raises as `change_password`."""
        # A session left open on a shared machine must not be a way to guess, so this counts like a login.
        username, address = principal.user.username, request_address()
        stored, matches = await self._check(username, current, address)
        if stored is None or stored.hash is None or not matches:
            await self._audit.record_refusal(
                "user.password_change_failed", principal=principal, target=principal.owner.id
            )
            raise InputInvalid.of("current_password", "This is not your current password.")
        await self._throttle.succeeded(username, address)
        return stored.hash

    async def _replace(self, principal: Principal[User], verified_hash: str, new_hash: str) -> bool:
        """Replace the password; False if the stored hash is no longer the verified one."""
        now = self._clock.now()
        async with self._db.write() as connection:
            await begin_credential_write(connection, principal, now)
            replaced = await replace_password(
                connection,
                principal.owner.id,
                new_hash,
                now,
                verified_hash=verified_hash,
                keep_session=principal.session_id,
            )
            if replaced:
                await self._audit.record(
                    "user.password_changed",
                    principal=principal,
                    target=principal.owner.id,
                    connection=connection,
                )
        return replaced

    async def _attempt(
        self,
        account: str,
        password: str,
        address: str | None,
        user_agent: str | None,
        *,
        replaced: Principal[User] | None = None,
    ) -> LoggedIn | None:
        """Start a session, perhaps in place of another; None if the name or password is wrong or the account disabled."""
        stored, matches = await self._check(account, password, address)
        while (
            stored is not None and stored.hash is not None and matches and not stored.user.disabled
        ):
            logged_in = await self._start(stored, password, address, user_agent, replaced)
            if logged_in is not None:
                await self._throttle.succeeded(account, address)
                return logged_in
            stored, matches = await self._verify(account, password)
        # The entry omits the typed name: users mistakenly type their password there.
        target = None if stored is None else stored.user.id
        await self._audit.record_refusal(
            "login.failed", principal=replaced, anonymous=replaced is None, target=target
        )
        return None

    async def _check(
        self, account: str, password: str, address: str | None
    ) -> tuple[StoredPassword | None, bool]:
        """Count the attempt, and return the result of :meth:`_verify`."""
        if not self._passwords_on:
            raise PasswordLoginOff
        await self._throttle.attempt(account, address)
        try:
            return await self._verify(account, password)
        except (StoreUnavailable, TooManyAttempts):
            # The client has learned nothing about the password.
            await self._throttle.withdraw(account, address)
            raise

    async def _verify(self, account: str, password: str) -> tuple[StoredPassword | None, bool]:
        """The account, if there is one, and whether the password matches."""
        stored = await self._users.find_password(account)
        matches = await self._passwords.verify(password, None if stored is None else stored.hash)
        return stored, matches

    async def _start(
        self,
        stored: StoredPassword,
        password: str,
        address: str | None,
        user_agent: str | None,
        replaced: Principal[User] | None,
    ) -> LoggedIn | None:
        """Start a session; None if the account has changed since its password was verified."""
        new_hash = stored.hash
        if stored.hash is not None and self._passwords.needs_rehash(stored.hash):
            new_hash = await self._passwords.hash(normalised(password))
        config = await self._config.current()
        async with self._db.write() as connection:
            # Only if the account is unchanged since the password was read: a user who was disabled meanwhile, or
            # whose password was replaced, gets no session.
            updated = await connection.execute(
                update(schema.users)
                .where(
                    _USERS.id == stored.user.id,
                    _USERS.disabled_at.is_(None),
                    _USERS.password_hash == stored.hash,
                )
                .values(last_login_at=self._clock.now(), password_hash=new_hash)
            )
            if updated.rowcount != 1:
                return None
            if replaced is not None:
                await end_open_session(connection, replaced, self._clock.now())
            session = await self._sessions.start(
                stored.user.to_owner(),
                config,
                address=address,
                user_agent=user_agent,
                connection=connection,
                details=None if replaced is None else {"replaced": replaced.session_id},
            )
        token, expires_in = self._sessions.issue_token(session)
        return LoggedIn(token, expires_in, stored.user, session.id)
