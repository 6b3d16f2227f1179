"""For the tests of an application: a clock, and the credentials of a login page or a script."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol

from msk_auth import AsyncAuthenticator, Authenticator, Login, Owner, Principal, local_principal
from msk_auth.errors import ConfigurationError
from msk_auth.keys import CreatedKey


class FrozenClock:
    """A :class:`~msk_auth.Clock` for tests: time passes only by :meth:`advance`, and sleeping takes no real time.

    Args:
        at: The initial time.

    Raises:
        ValueError: `at` has no time zone.
    """

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if at.tzinfo is None:
            raise ValueError("at has no time zone. Write datetime(…, tzinfo=UTC).")
        self._lock = threading.Lock()
        self._began = at.astimezone(UTC)
        self._passed = timedelta(0)

    def now(self) -> datetime:
        """See :class:`~msk_auth.Clock`."""
        return self._began + self._passed

    def monotonic(self) -> float:
        """The seconds that have passed since this clock began."""
        return self._passed.total_seconds()

    def advance(self, by: timedelta) -> datetime:
        """Let time pass.

        Args:
            by: The duration, not negative.

        Returns:
            The new time.

        Raises:
            ValueError: Time would go back.
        """
        if by < timedelta(0):
            raise ValueError("time does not go back")
        with self._lock:
            self._passed += by
        return self.now()

    def sleep(self, seconds: float) -> None:
        """Advance the clock at once."""
        self.advance(timedelta(seconds=seconds))

    async def async_sleep(self, seconds: float) -> None:
        """Advance the clock at once, and let other tasks run."""
        self.advance(timedelta(seconds=seconds))
        await asyncio.sleep(0)


class Portal(Protocol):
    """Calls from a synchronous test into the event loop of an application: anyio's `BlockingPortal`."""

    def call(self, func: Callable[[], Any], /) -> Any:
        """Call a function on the loop, and wait for its result."""


_HOUR = timedelta(hours=1)
_NOW = timedelta(0)


def login_headers(
    authenticator: Authenticator[Any] | AsyncAuthenticator[Any],
    owner: Owner[Any] | str,
    *,
    session_id: str | None = None,
    since: timedelta = _NOW,
) -> dict[str, str]:
    """The headers of a person who has logged in, with a token of the authenticator's first profile.

    Without a profile, but with `logins`, this function adds a new credential to them, which no other function of `logins`
    accepts.

    Args:
        authenticator: The application's authenticator, or one with the same token profile and clock.
        owner: The person, or the id. The application's `find_owner` must find them.
        session_id: The login session; needed if the authenticator has a `find_session`, which must find it.
        since: The age of the login.

    Returns:
        `{"Authorization": "Bearer …"}`, valid for an hour.

    Raises:
        ConfigurationError: The authenticator accepts no logins or needs a session, or the profile cannot sign.
    """
    rules = authenticator.rules
    owner_id = owner if isinstance(owner, str) else owner.id
    if not authenticator.profiles:
        if not authenticator.logins:
            raise ConfigurationError(
                "This authenticator accepts no logins. Give it tokens=… or logins=…."
            )
        login = Login(owner_id, authenticator.clock.now() - since, session_id)
        credential = f"login-{secrets.token_hex(16)}"
        known = {credential: login}
        authenticator.logins.append(known.get)
        return _bearer(credential)
    profile = authenticator.profiles[0]
    if rules.checks_sessions and session_id is None:
        raise ConfigurationError("This authenticator looks up sessions. Pass a session_id.")
    now = authenticator.clock.now()
    token = profile.issue(
        subject=owner_id,
        now=now,
        lifetime=min(_HOUR, profile.max_lifetime),
        authenticated_at=now - since,
        session_id=session_id,
    )
    return _bearer(token)


def key_headers(
    authenticator: Authenticator[Any] | AsyncAuthenticator[Any],
    owner: Owner[Any] | str,
    *,
    scopes: Collection[str] | None = None,
    portal: Portal | None = None,
) -> dict[str, str]:
    """The headers of a script with a new key of this owner.

    Args:
        authenticator: The application's.
        owner: The owner of the key, or the id.
        scopes: Permissions that limit the key, out of the owner's; None means all.
        portal: For an `AsyncAuthenticator`: the portal of the test client, which runs the application: `client.portal` of
            FastAPI and Starlette, and `client.blocking_portal` of Litestar, inside the client's `with` statement.

    Returns:
        `{"Authorization": "Bearer msk_…"}`.

    Raises:
        ConfigurationError: An `AsyncAuthenticator` has no portal.
        Problem: As raised by :meth:`Authenticator.create_key`.
    """
    if isinstance(authenticator, AsyncAuthenticator):
        if portal is None:
            raise ConfigurationError(
                "An AsyncAuthenticator makes keys on an event loop. Write `with TestClient(app) as client:` and pass"
                " portal=client.portal (portal=client.blocking_portal in Litestar), or await async_key_headers(…) in an"
                " async test."
            )
        make = partial(async_key_headers, authenticator, owner, scopes=scopes)
        headers: dict[str, str] = portal.call(make)
        return headers
    principal = _maker(authenticator, owner, scopes)
    return _of_key(authenticator.create_key(principal, name="a test", scopes=scopes))


async def async_key_headers(
    authenticator: AsyncAuthenticator[Any],
    owner: Owner[Any] | str,
    *,
    scopes: Collection[str] | None = None,
) -> dict[str, str]:
    """The headers of a script with a new key of this owner, in an asynchronous test.

    Args:
        authenticator: The application's.
        owner: The owner of the key, or the id.
        scopes: Permissions that limit the key, out of the owner's; None means all.

    Returns:
        `{"Authorization": "Bearer msk_…"}`.

    Raises:
        Problem: As raised by :meth:`AsyncAuthenticator.create_key`.
    """
    principal = _maker(authenticator, owner, scopes)
    return _of_key(await authenticator.create_key(principal, name="a test", scopes=scopes))


def _maker(
    authenticator: Authenticator[Any] | AsyncAuthenticator[Any],
    owner: Owner[Any] | str,
    scopes: Collection[str] | None,
) -> Principal[Any]:
    """The principal that makes a key; only its id and permissions matter."""
    known = Owner(owner, scopes or (), None) if isinstance(owner, str) else owner
    return local_principal(known, at=authenticator.clock.now(), interactive=True)


def _of_key(created: CreatedKey) -> dict[str, str]:
    return _bearer(created.value.reveal())


def _bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}
