"""Login sessions, which the `sid` of login tokens names.

A session is over when a user or administrator ends it, when its lifetime has passed, when it was idle for too long, or when
the settings no longer admit a login of its kind. The present configuration has the limits, so a shorter limit ends open
sessions. The time of a session's last request is collected in memory and written once a minute, never while a request waits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import CredentialKind, Principal, Session, TokenProfile
from msk_auth.errors import CredentialRefused, StoreUnavailable
from task_service.background import Flushing
from task_service.db import schema
from task_service.db.engine import lock_table
from task_service.errors import ProviderLoginRefused, SessionNotFound
from task_service.ids import is_id, new_id
from task_service.request_record import request_address, request_user_agent

from .changes import Accounts, Change
from .config import ServiceConfig
from .login_methods import LoginMethods

if TYPE_CHECKING:
    from .users import User

_log = logging.getLogger(__name__)

KEPT_FOR: Final = timedelta(days=30)
"""How long an ended or expired session stays in the database."""

_SESSIONS = schema.sessions.c
_SETTINGS = schema.settings.c
_IDENTITIES = schema.identities.c
_LOGOUTS = schema.logout_tokens.c
_DEFAULTS: Final = ServiceConfig()
_MINUTE: Final = timedelta(minutes=1)
_MICROSECOND: Final = timedelta(microseconds=1)


def _setting(name: str) -> Any:
    """A setting as part of a statement, so that one round trip reads a session and its limits."""
    return select(_SETTINGS.value).where(_SETTINGS.name == name).scalar_subquery().label(name)


_WITH_LIMITS = select(
    schema.sessions, _setting("session_lifetime_minutes"), _setting("session_idle_minutes")
)


@dataclass(frozen=True, slots=True)
class LoginSession:
    """One open login; `current` marks the login of the request that lists them.

    Attributes:
        authenticated_at: The time of the login; at an identity provider it may be long before `started_at`.
        started_at: The beginning of the session.
        last_seen_at: Its last use.
        expires_at: Its expiry without further use, by the present limits.
        address: The client's address at login.
        user_agent: The header `User-Agent` at login.
    """

    id: str
    authenticated_at: datetime
    started_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    address: str | None
    user_agent: str | None
    current: bool


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A successful login.

    Attributes:
        token: The login token (JWT). It expires with the session's lifetime.
        expires_in: Its lifetime in seconds, unless the session becomes idle earlier.
        user: The user who logged in.
        session_id: The new session.
    """

    token: str = field(repr=False)
    expires_in: int
    user: User
    session_id: str


@dataclass(frozen=True, slots=True)
class ProviderLogout:
    """The content of an identity provider's logout token.

    Attributes:
        issuer: Its `iss`.
        token_id: Its `jti`.
        expires_at: The time after which every process refuses it.
        subject: The person (`sub`); None if the token names only a session.
        provider_sid: The session at the provider (`sid`); None means all of the person's sessions.
    """

    issuer: str
    token_id: str
    expires_at: datetime
    subject: str | None
    provider_sid: str | None


class Sessions(Flushing):
    """The login sessions.

    As an asynchronous context manager it writes the sessions' last use once a minute while it is open, and once more
    when it is closed.

    Args:
        accounts: The database.
        tokens: Issues the login tokens.
        methods: The ways to log in. A session from another way is over.
    """

    def __init__(self, accounts: Accounts, *, tokens: TokenProfile, methods: LoginMethods) -> None:
        self._accounts = accounts
        self._tokens = tokens
        self._admitted = _WITH_LIMITS.where(methods.admit_session())
        self._find_session = accounts.db.prepare_by_id(self._admitted)
        self._seen: dict[str, datetime] = {}

    async def start(
        self,
        change: Change,
        user: User,
        config: ServiceConfig,
        *,
        details: Mapping[str, Any] | None = None,
        replaces: str | None = None,
        authenticated_at: datetime | None = None,
        id_token: str | None = None,
        provider_sid: str | None = None,
    ) -> LoggedIn:
        """Add a session, and record the login.

        Args:
            change: The login.
            user: The user.
            config: The limits of the session.
            details: The details of the audit entry.
            replaces: The id of a session to end, if it is this user's; then wait for the leases after the change.
            authenticated_at: The time of the login; now by default.
            id_token: The identity provider's ID token, which a logout there needs.
            provider_sid: The session at the provider, whose end also ends this session.
        """
        now, session_id = change.now, new_id("ses")
        lifetime = config.session_lifetime_minutes * _MINUTE
        authenticated_at = now if authenticated_at is None else min(authenticated_at, now)
        more = dict(details or {})
        # A client may have chosen the cookie that names this session.
        if replaces is not None and await end_sessions(change, user.id, _SESSIONS.id == replaces):
            more["replaced"] = replaces
        await change.connection.execute(
            insert(schema.sessions).values(
                id=session_id,
                user_id=user.id,
                authenticated_at=authenticated_at,
                started_at=now,
                last_seen_at=now,
                expires_at=now + lifetime,
                address=request_address(),
                user_agent=request_user_agent(),
                id_token=id_token,
                provider_sid=provider_sid,
            )
        )
        begun = Principal(
            user.to_owner(),
            CredentialKind.INTERACTIVE,
            user.permissions,
            authenticated_at,
            session_id=session_id,
        )
        await replace(change, by=begun).record("login.succeeded", user.id, **more)
        token = self._tokens.issue(
            subject=user.id,
            now=now,
            lifetime=lifetime,
            authenticated_at=authenticated_at,
            session_id=session_id,
        )
        return LoggedIn(token, int(lifetime.total_seconds()), user, session_id)

    async def find_session(self, session_id: str) -> Session | None:
        """Read the session with this id for the library's authenticator; None if there is none."""
        if not is_id(session_id, "ses"):
            return None
        row = await self._find_session(session_id)
        if row is None:
            return None
        return Session(row.id, row.user_id, self._expires_at(row), row.ended_at)

    async def find_id_token(self, session_id: str) -> str | None:
        """The ID token of an open session that began at the identity provider."""
        statement = select(_SESSIONS.id_token).where(
            _SESSIONS.id == session_id, _SESSIONS.ended_at.is_(None)
        )
        async with self._accounts.db.read() as connection:
            return await connection.scalar(statement)

    async def list_open(
        self, user_id: str, *, current: str | None = None
    ) -> tuple[LoginSession, ...]:
        """A user's open sessions, the most recent login first.

        Args:
            user_id: The user.
            current: The id of the session that lists them.
        """
        now = self._accounts.now()
        async with self._accounts.db.read() as connection:
            rows = await connection.execute(
                self._admitted.where(
                    _SESSIONS.user_id == user_id, _SESSIONS.ended_at.is_(None)
                ).order_by(_SESSIONS.authenticated_at.desc(), _SESSIONS.id)
            )
            return tuple(
                LoginSession(
                    id=row.id,
                    authenticated_at=row.authenticated_at,
                    started_at=_started_at(row),
                    last_seen_at=self._last_seen_at(row),
                    expires_at=self._expires_at(row),
                    address=row.address,
                    user_agent=row.user_agent,
                    current=row.id == current,
                )
                for row in rows
                if now < self._expires_at(row)
            )

    async def end(self, session_id: str, *, by: Principal[Any]) -> None:
        """End one of the principal's own sessions. When this returns, no process accepts its token.

        Raises:
            SessionNotFound: The principal has no such open session.
        """
        if not is_id(session_id, "ses"):
            raise SessionNotFound
        async with self._accounts.narrow(by) as change:
            if not await end_sessions(change, by.owner.id, _SESSIONS.id == session_id):
                raise SessionNotFound
            await change.record("session.ended", session_id)

    async def end_all(self, user_id: str, *, by: Principal[Any], keep: str | None = None) -> int:
        """End a user's sessions. When this returns, no process accepts their tokens.

        Args:
            user_id: The user.
            by: The acting principal.
            keep: The id of a session that stays open.

        Returns:
            The number of sessions that were open.
        """
        async with self._accounts.narrow(by) as change:
            rows = await end_sessions(change, user_id, _SESSIONS.id != keep)
            # Expired sessions are marked too, but not counted.
            count = sum(change.now < self._expires_at(row) for row in rows)
            if count:
                await change.record("session.all_ended", user_id, ended=count)
        return count

    async def end_at_provider(self, logout: ProviderLogout) -> int:
        """End the sessions that the identity provider has ended. When this returns, no process accepts their tokens.

        Returns:
            How many were open.

        Raises:
            CredentialRefused: The logout token was used before.
        """
        of_session: list[ColumnElement[bool]] = []
        if logout.provider_sid is not None:
            same = _SESSIONS.provider_sid == logout.provider_sid
            # An unknown session at the provider may be the ended session.
            unknown = _SESSIONS.provider_sid.is_(None)
            of_session = [same if logout.subject is None else same | unknown]
        people = select(_IDENTITIES.user_id).where(_IDENTITIES.issuer == logout.issuer)
        if logout.subject is None:
            found = select(_SESSIONS.user_id).where(
                *of_session, _SESSIONS.ended_at.is_(None), _SESSIONS.user_id.in_(people)
            )
            people = found.distinct().order_by(_SESSIONS.user_id)
        else:
            people = people.where(_IDENTITIES.subject == logout.subject)
        ended: list[Row[Any]] = []
        async with self._accounts.narrow() as change:
            await _use_up(change, logout)
            for user_id in (await change.connection.scalars(people)).all():
                ended += await end_sessions(change, user_id, *of_session)
            still_open = [row.id for row in ended if change.now < self._expires_at(row)]
            await change.record("session.ended", *still_open, issuer=logout.issuer)
        return len(still_open)

    async def last_provider_logout(self) -> datetime | None:
        """The time of the provider's latest logout, for :meth:`refuse_ended_at_provider`, or None."""
        async with self._accounts.db.read() as connection:
            latest: datetime | None = await connection.scalar(
                select(func.max(_LOGOUTS.received_at))
            )
        return latest

    async def refuse_ended_at_provider(
        self,
        connection: AsyncConnection,
        *,
        issuer: str,
        subject: str,
        provider_sid: str | None,
        since: datetime | None,
    ) -> None:
        """Refuse a login whose session at the provider has ended meanwhile.

        Logouts wait until the transaction ends. Later logouts find the session of the login.

        Args:
            connection: The connection, in a write transaction whose first statement this is.
            issuer: The provider's issuer.
            subject: The person.
            provider_sid: The session at the provider, if the ID token named it.
            since: The result of :meth:`last_provider_logout`, before the exchange of the login's code.

        Raises:
            ProviderLoginRefused: A later logout ended this login.
        """
        await lock_table(connection, schema.logout_tokens)
        # The same rule as in `end_at_provider`. A token names the person, the session, or both.
        of_session = _LOGOUTS.provider_sid.is_(None) | (
            _LOGOUTS.subject.is_not(None)
            if provider_sid is None
            else _LOGOUTS.provider_sid == provider_sid
        )
        conditions = [
            _LOGOUTS.issuer == issuer,
            _LOGOUTS.subject.is_(None) | (_LOGOUTS.subject == subject),
            of_session,
            _LOGOUTS.received_at.is_not(None) if since is None else _LOGOUTS.received_at > since,
        ]
        if await connection.scalar(select(_LOGOUTS.jti).where(*conditions).limit(1)) is not None:
            raise ProviderLoginRefused(
                "You were logged out at the identity provider meanwhile. Log in again."
            )

    async def purge(self) -> None:
        """Delete sessions and links that have been over for :data:`KEPT_FOR`, and the ids of expired logout tokens."""
        links = schema.password_links.c
        now = self._accounts.now()
        before = now - KEPT_FOR
        async with self._accounts.db.write() as connection:
            # First, in the order of a logout's locks, so that the two cannot deadlock.
            await connection.execute(delete(schema.logout_tokens).where(_LOGOUTS.expires_at < now))
            await connection.execute(
                delete(schema.sessions).where(
                    (_SESSIONS.expires_at < before) | (_SESSIONS.ended_at < before)
                )
            )
            await connection.execute(delete(schema.password_links).where(links.expires_at < before))

    def seen(self, session_id: str, at: datetime) -> None:
        """Remember that a session was used, in memory only."""
        latest = self._seen.get(session_id)
        if latest is None or latest < at:
            self._seen[session_id] = at

    async def flush(self) -> None:
        """Write the times from :meth:`seen`, or keep them for the next call if the database does not answer."""
        if not self._seen:
            return
        # Cleared only after the write, so that the sessions do not look idle meanwhile.
        batch = dict(self._seen)
        try:
            async with self._accounts.db.write() as connection:
                await connection.execute(
                    update(schema.sessions)
                    .where(
                        _SESSIONS.id == bindparam("session"),
                        _SESSIONS.last_seen_at < bindparam("at"),
                    )
                    .values(last_seen_at=bindparam("at")),
                    # In the same order everywhere, so that two processes cannot deadlock.
                    [{"session": session, "at": at} for session, at in sorted(batch.items())],
                )
        except StoreUnavailable:
            _log.warning(
                "the database did not answer, so the sessions' last use was not written; trying again later"
            )
            return
        for session_id, at in batch.items():
            if self._seen.get(session_id) == at:
                del self._seen[session_id]

    def _last_seen_at(self, row: Row[Any]) -> datetime:
        last_seen_at: datetime = row.last_seen_at
        return max(last_seen_at, self._seen.get(row.id, last_seen_at))

    def _expires_at(self, row: Row[Any]) -> datetime:
        idle = _minutes(row.session_idle_minutes, _DEFAULTS.session_idle_minutes)
        return min(_lifetime_end(row), self._last_seen_at(row) + idle)


async def require_open(change: Change, principal: Principal[Any], *user_ids: str) -> None:
    """Refuse to write for a login that has ended since its request was authenticated.

    The login then stays open until the transaction ends: every change that ends a session locks its user first.

    Args:
        change: A change without a lock of a session.
        principal: The interactive principal, whose user is locked.
        user_ids: Other users to lock with it.

    Raises:
        CredentialRefused: The session has ended, has passed the present limit, or does not exist.
    """
    await lock_users(change, principal.owner.id, *user_ids)
    found = await change.connection.execute(
        _WITH_LIMITS.where(
            _SESSIONS.id == principal.session_id,
            _SESSIONS.user_id == principal.owner.id,
            _SESSIONS.ended_at.is_(None),
        )
    )
    row = found.one_or_none()
    # The session is not idle: this request uses it.
    if row is None or change.now >= _lifetime_end(row):
        raise CredentialRefused("token_revoked")


async def end_sessions(
    change: Change, user_id: str, *which: ColumnElement[bool]
) -> Sequence[Row[Any]]:
    """End a user's open sessions.

    Args:
        change: A change that has locked no session.
        user_id: The user.
        which: Conditions for the sessions to end, such as `schema.sessions.c.id == session_id`.

    Returns:
        The ended rows as they were before, with the present limits.
    """
    await lock_users(change, user_id)
    conditions = (_SESSIONS.user_id == user_id, _SESSIONS.ended_at.is_(None), *which)
    # In the order of a flush, so that the two cannot deadlock.
    found = _WITH_LIMITS.where(*conditions).order_by(_SESSIONS.id)
    rows = (await change.connection.execute(found.with_for_update(of=schema.sessions))).all()
    await change.connection.execute(
        update(schema.sessions).where(*conditions).values(ended_at=change.now, id_token=None)
    )
    return rows


async def _use_up(change: Change, logout: ProviderLogout) -> None:
    """Remember a logout token, so that it works only once, and for unfinished logins.

    Raises errors like :meth:`Sessions.end_at_provider`.
    """
    now, connection = change.now, change.connection
    await lock_table(connection, schema.logout_tokens)
    latest = await connection.scalar(select(func.max(_LOGOUTS.received_at)))
    try:
        await connection.execute(
            insert(schema.logout_tokens).values(
                issuer=logout.issuer,
                jti=logout.token_id,
                expires_at=logout.expires_at,
                subject=logout.subject,
                provider_sid=logout.provider_sid,
                received_at=now if latest is None else max(now, latest + _MICROSECOND),
            )
        )
    except IntegrityError as error:
        raise CredentialRefused("token_invalid") from error


async def lock_users(change: Change, *user_ids: str) -> None:
    """Lock users until the transaction ends, but permit new rows that refer to them, such as a task.

    A transaction locks several users in one call, in the order of their ids, so that two transactions cannot deadlock.
    """
    users = schema.users.c
    locked = select(users.id).where(users.id.in_(user_ids)).order_by(users.id)
    await change.connection.execute(locked.with_for_update(key_share=True))


def _started_at(row: Row[Any]) -> datetime:
    started_at: datetime = row.authenticated_at if row.started_at is None else row.started_at
    return started_at


def _lifetime_end(row: Row[Any]) -> datetime:
    """The end of a session's lifetime, by the present limit."""
    lifetime = _minutes(row.session_lifetime_minutes, _DEFAULTS.session_lifetime_minutes)
    stored: datetime = row.expires_at
    return min(stored, _started_at(row) + lifetime)


def _minutes(stored: object, default: int) -> timedelta:
    return (stored if isinstance(stored, int) else default) * _MINUTE
