"""The authenticator that awaits."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from msk_auth._failures import log_failure, unavailable_because
from msk_auth.clock import Clock
from msk_auth.core import authentication, key_management, revocation
from msk_auth.core.activity import ActivitySettings, KeyActivity
from msk_auth.core.digest import KeyHasher
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.events import CredentialUsed, Event
from msk_auth.core.key_management import Changed, CreatedKey, Lifetime
from msk_auth.core.keys import KeyFormat
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import (
    UNCHANGED,
    ApiKey,
    ExternalIdentity,
    KeyLimits,
    KeyPage,
    KeyStatus,
    Login,
    Owner,
    Principal,
    Session,
    Unchanged,
    UserT,
)
from msk_auth.core.policy import Policy
from msk_auth.core.revocation import Ended, LeakedKey
from msk_auth.core.steps import Flow
from msk_auth.core.store import AsyncKeyStore
from msk_auth.ports import AsyncPorts
from msk_auth.tokens.external import ExternalIssuer
from msk_auth.tokens.profile import TokenProfile
from msk_auth.users import RequestSession
from msk_auth.watch import MAX_INTERVAL, AsyncWatch, AsyncWatches, check_interval

from .base import FLUSH_SECONDS, NO_LIMITS, PROBLEM_BASE, BaseAuthenticator, refusal
from .validation import not_a_list_of_values, takes

# Importing `asyncio` takes as long as importing the rest of the library, and a blocking application does not need it. The
# functions below import it, where an event loop runs.
if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
R = TypeVar("R")
AnyT = TypeVar("AnyT")
P = ParamSpec("P")


def is_beside_loop() -> bool:
    """True in a thread that runs no event loop, such as the one in which a framework runs a `def` route.

    The main thread is none of these: a test or a script may start a loop there.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is not threading.main_thread()
    return False


def _awaited(method: Callable[Concatenate[AnyT, P], R]) -> Callable[Concatenate[AnyT, P], R]:
    """Refuse a call from a `def` route, which cannot await it: access would stay as it is, without an error."""

    @functools.wraps(method)
    def called(self: AnyT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if cast("AsyncAuthenticator[Any]", self).is_open and is_beside_loop():
            raise ConfigurationError(
                f"{method.__name__} was called in a thread beside the event loop, where nothing awaits it, so it would"
                " do nothing. Await it in an `async def` route, or build a synchronous application on Authenticator."
            )
        return method(self, *args, **kwargs)

    # Known to Python from 3.12 on, for code that asks whether a function has to be awaited.
    mark: Any = getattr(inspect, "markcoroutinefunction", None)
    return called if mark is None else mark(called)


class AsyncAuthenticator(BaseAuthenticator[UserT]):
    """Authenticates requests and manages keys, on an asyncio event loop.

    As an asynchronous context manager it writes times of last use once a minute, and the rest when it is closed::

        async with authenticator:
            ...

    Args:
        store: Stores the keys.
        find_owner: Returns the application's user with an id, read anew on each call; None if there is none. As
            :class:`~msk_auth.AsyncUsers` it reads in the session of the request, where the adapter knows it.
        tokens: The profile of the JWTs that this application issues, or several; none by default.
        issuers: Identity providers whose JWTs are accepted as well, such as `Auth0` of `msk_auth.tokens.issuers`.
            Opening this authenticator starts to fetch their keys.
        find_external_owner: Returns the application's user for a subject of one of the issuers, read anew on each call;
            None if there is none. It may create one. Needed with `issuers`.
        logins: Functions of the application that return a :class:`~msk_auth.Login` for a bearer credential of their own,
            or None. Asked in this order about what is no key and no token of `tokens` and `issuers`. A plain one is called
            on the event loop, so it must not block.
        find_session: Returns the login session with an id, read anew on each call; None if there is none. Without it a
            JWT is accepted until it expires, and logging out cannot end it.
        key_limits: Limits for new keys. A function is called for each new key, so that a change takes effect at once.
        may_act_for: Returns the permissions that a person may give to keys of another owner, such as a service account, as any
            iterable of strings; None if the person may not act for this owner. Called with the person's principal, read
            anew, and the owner. Without it, a key is managed by its own owner only.
        key_format: The prefix of the keys.
        hasher: Digests and compares keys. Give it a pepper ring in production.
        on_event: Called with each event; an awaitable that it returns is awaited. What it raises is logged and changes no
            result.
        realm: Names the protected space in challenges (RFC 9110, section 11.5).
        problem_base: What the `type` of problem documents begins with.
        clock: Where the time comes from.
        lease: For how long a verification may be reused; None reads the store for each request. Every call that ends
            access waits that much longer: see `msk_auth.leases.cache`. The owners that `find_owner` returns must be
            immutable: see :func:`~msk_auth.immutable`.
        lease_entries: How many verifications are cached; each takes about 1 KiB.
        activity: Counts what keys do, for :meth:`key_activity`, and says what is kept; None counts nothing. A function is
            called with each :meth:`flush`, so that a change takes effect at once.
        watch_interval: How often :meth:`watch` verifies an open connection; at most a second.

    Raises:
        ConfigurationError: An argument cannot work; the message says what to write instead.
    """

    def __init__(
        self,
        store: AsyncKeyStore,
        *,
        find_owner: Callable[[str], Awaitable[Owner[UserT] | None]],
        tokens: TokenProfile | Sequence[TokenProfile] = (),
        issuers: Sequence[ExternalIssuer] = (),
        logins: Sequence[Callable[[str], Login | Awaitable[Login | None] | None]] = (),
        find_external_owner: Callable[[ExternalIdentity], Awaitable[Owner[UserT] | None]]
        | None = None,
        find_session: Callable[[str], Awaitable[Session | None]] | None = None,
        key_limits: KeyLimits | Callable[[], Awaitable[KeyLimits]] = NO_LIMITS,
        may_act_for: Callable[[Principal[UserT], Owner[UserT]], Awaitable[Iterable[str] | None]]
        | None = None,
        key_format: KeyFormat | None = None,
        hasher: KeyHasher | None = None,
        on_event: Callable[[Event], Awaitable[None] | None] | None = None,
        realm: str = "api",
        problem_base: str = PROBLEM_BASE,
        clock: Clock | None = None,
        lease: timedelta | None = None,
        lease_entries: int = 10_000,
        activity: ActivitySettings | Callable[[], Awaitable[ActivitySettings]] | None = None,
        watch_interval: timedelta = MAX_INTERVAL,
    ) -> None:
        super().__init__(
            store=store,
            find_owner=find_owner,
            find_external_owner=find_external_owner,
            find_session=find_session,
            key_limits=key_limits,
            may_act_for=may_act_for,
            on_event=on_event,
            tokens=tokens,
            issuers=issuers,
            logins=logins,
            key_format=key_format,
            hasher=hasher,
            realm=realm,
            problem_base=problem_base,
            clock=clock,
            lease=lease,
            lease_entries=lease_entries,
            activity=activity,
            awaits=True,
            overrides_authenticate=type(self).authenticate
            is not AsyncAuthenticator[Any].authenticate,
            takes_address=takes(type(self).authenticate, "address"),
        )
        self._ports = AsyncPorts(
            store,
            find_owner=find_owner,
            find_external_owner=find_external_owner,
            find_session=find_session,
            key_limits=key_limits,
            may_act_for=may_act_for,
            hasher=self.rules.hasher,
            cache=self._cache,
            clock=self.clock,
        )
        self._leases = self._ports.leases
        self._watches: AsyncWatches[UserT] = AsyncWatches(
            self.rules, self._ports, self.clock, check_interval(watch_interval)
        )
        self._on_event = on_event
        self._flusher: asyncio.Task[None] | None = None

    async def authenticate(
        self,
        authorization: Sequence[str | bytes],
        elsewhere: RequestLogins | None = None,
        request: RequestSession | None = None,
        address: str | None = None,
    ) -> Principal[UserT]:
        """As :meth:`Authenticator.authenticate`."""
        principal = None if self._cache is None else self._cache.find(authorization)
        if principal is None:
            if isinstance(authorization, (str, bytes)):
                raise not_a_list_of_values()
            try:
                # A malformed credential ends here, before the clock or the store is read.
                presented = authentication.read_credential(self.rules, authorization, elsewhere)
                ports = self._ports.of_request(request)
                principal = await ports.run(self._verify(presented, address))
            except Problem as problem:
                await self._report(problem)
                raise
            except Exception as error:
                raise await self._report(error) from error
        if self._on_event is not None:
            await self._emit(CredentialUsed(self.clock.now(), principal))
        return principal

    async def resume(self, reference: str) -> Principal[UserT]:
        """As :meth:`Authenticator.resume`."""
        peppers = self._peppers_of_references()
        try:
            principal = await self._ports.run(self._resume(peppers, reference))
        except Problem as problem:
            await self._report(problem)
            raise
        except Exception as error:
            raise await self._report(error) from error
        await self._emit(CredentialUsed(self.clock.now(), principal))
        return principal

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> AsyncWatch[UserT]:
        """As :meth:`Authenticator.watch`, for websockets and event streams on an event loop."""
        return self._watches.watch(principal, policy)

    @_awaited
    async def await_lease_expiry(self) -> None:
        """As :meth:`Authenticator.await_lease_expiry`."""
        await self._ports.await_lease_expiry()

    async def create_key(
        self,
        principal: Principal[UserT],
        *,
        name: str,
        scopes: Iterable[str] | None = None,
        lifetime: Lifetime = "default",
        description: str | None = None,
        labels: Iterable[str] = (),
        networks: Iterable[str] | None = None,
        on_behalf_of: str | None = None,
    ) -> CreatedKey:
        """As :meth:`Authenticator.create_key`."""
        now = self.clock.now()
        return await self._change(
            key_management.create_key(
                self.rules,
                principal,
                name=name,
                scopes=scopes,
                lifetime=lifetime,
                description=description,
                labels=labels,
                networks=networks,
                on_behalf_of=on_behalf_of,
                now=now,
            )
        )

    async def rotate_key(
        self,
        principal: Principal[UserT],
        key_id: str,
        *,
        overlap: timedelta = timedelta(0),
        on_behalf_of: str | None = None,
    ) -> CreatedKey:
        """As :meth:`Authenticator.rotate_key`."""
        now = self.clock.now()
        return await self._change(
            key_management.rotate_key(
                self.rules, principal, key_id, overlap=overlap, on_behalf_of=on_behalf_of, now=now
            )
        )

    @_awaited
    async def revoke_key(
        self, principal: Principal[UserT], key_id: str, *, on_behalf_of: str | None = None
    ) -> ApiKey:
        """As :meth:`Authenticator.revoke_key`."""
        return await self._change(
            key_management.revoke_key(
                self.rules, principal, key_id, on_behalf_of=on_behalf_of, now=self.clock.now()
            )
        )

    @_awaited
    async def delete_key(
        self, principal: Principal[UserT], key_id: str, *, on_behalf_of: str | None = None
    ) -> None:
        """As :meth:`Authenticator.delete_key`."""
        await self._change(
            key_management.delete_key(
                self.rules, principal, key_id, on_behalf_of=on_behalf_of, now=self.clock.now()
            )
        )

    @_awaited
    async def expire_key(
        self,
        principal: Principal[UserT],
        key_id: str,
        *,
        at: datetime,
        on_behalf_of: str | None = None,
    ) -> ApiKey:
        """As :meth:`Authenticator.expire_key`."""
        return await self._change(
            key_management.expire_key(
                self.rules,
                principal,
                key_id,
                at=at,
                on_behalf_of=on_behalf_of,
                now=self.clock.now(),
            )
        )

    @_awaited
    async def update_key(
        self,
        principal: Principal[UserT],
        key_id: str,
        *,
        name: str | Unchanged = UNCHANGED,
        description: str | Unchanged | None = UNCHANGED,
        labels: Iterable[str] | Unchanged = UNCHANGED,
        networks: Iterable[str] | Unchanged | None = UNCHANGED,
        on_behalf_of: str | None = None,
    ) -> ApiKey:
        """As :meth:`Authenticator.update_key`."""
        return await self._change(
            key_management.update_key(
                self.rules,
                principal,
                key_id,
                name=name,
                description=description,
                labels=labels,
                networks=networks,
                on_behalf_of=on_behalf_of,
                now=self.clock.now(),
            )
        )

    @_awaited
    async def revoke_presented_key(self, key: str) -> ApiKey | None:
        """As :meth:`Authenticator.revoke_presented_key`."""
        flow = revocation.revoke_presented_key(self.rules, key, self.clock.now())
        return (await self._end(flow))[0]

    @_awaited
    async def revoke_leaked(self, leaked: Sequence[LeakedKey]) -> tuple[ApiKey | None, ...]:
        """As :meth:`Authenticator.revoke_leaked`."""
        return await self._end(revocation.revoke_leaked(self.rules, leaked, self.clock.now()))

    @_awaited
    async def forget_owner(self, owner_id: str) -> int:
        """As :meth:`Authenticator.forget_owner`."""
        return len(await self._end(revocation.forget_owner(owner_id, self.clock.now())))

    async def get_key(
        self, principal: Principal[UserT], key_id: str, *, on_behalf_of: str | None = None
    ) -> ApiKey:
        """As :meth:`Authenticator.get_key`."""
        return await self._ports.run(
            key_management.get_key(
                self.rules, principal, key_id, on_behalf_of=on_behalf_of, now=self.clock.now()
            )
        )

    async def key_activity(
        self,
        principal: Principal[UserT],
        key_id: str,
        *,
        since: date | None = None,
        on_behalf_of: str | None = None,
    ) -> KeyActivity:
        """As :meth:`Authenticator.key_activity`."""
        self._activity_log()
        return await self._ports.run(
            key_management.key_activity(
                self.rules,
                principal,
                key_id,
                since=since,
                on_behalf_of=on_behalf_of,
                now=self.clock.now(),
            )
        )

    async def list_keys(
        self,
        principal: Principal[UserT],
        *,
        status: KeyStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
        label: str | None = None,
        on_behalf_of: str | None = None,
    ) -> KeyPage:
        """As :meth:`Authenticator.list_keys`."""
        now = self.clock.now()
        return await self._ports.run(
            key_management.list_keys(
                self.rules,
                principal,
                status=status,
                cursor=cursor,
                limit=limit,
                label=label,
                on_behalf_of=on_behalf_of,
                now=now,
            )
        )

    @_awaited
    async def flush(self) -> None:
        """As :meth:`Authenticator.flush`."""
        with self._usage.batch() as batch:
            if batch.last_used:
                await self._ports.store.touch(batch.last_used)
            for key_id, (old, new) in batch.upgrades.items():
                await self._ports.store.replace_digest(key_id, old=old, new=new)
        if self.activity is not None:
            await self._ports.run(self.activity.flush(self.clock.now()))

    @property
    def is_open(self) -> bool:
        """True between the beginning and the end of an `async with` of this authenticator."""
        return self._flusher is not None

    async def __aenter__(self) -> AsyncAuthenticator[UserT]:
        import asyncio

        self._open_issuers()
        # An application and its adapter may both open it.
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_forever(), name="msk_auth flush")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import asyncio

        self._close_issuers()
        if self._flusher is not None:
            self._flusher.cancel()
            # `wait` does not raise the task's errors, but a cancellation of the caller still has its effect.
            await asyncio.wait([self._flusher])
            self._flusher = None
        await self._watches.close()
        await self.flush()

    async def _flush_forever(self) -> None:
        import asyncio

        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def _change(self, flow: Flow[Changed[T]]) -> T:
        changed = await self._ports.run(flow)
        await self._emit(changed.event)
        return changed.value

    async def _end(self, flow: Flow[Ended]) -> tuple[ApiKey | None, ...]:
        ended = await self._ports.run(flow)
        for event in ended.events:
            await self._emit(event)
        return ended.records

    async def _report(self, error: Exception) -> Problem:
        """As in :class:`Authenticator`."""
        problem = error if isinstance(error, Problem) else unavailable_because(error)
        if self._on_event is not None:
            await self._emit(refusal(problem, self.clock.now()))
        return problem

    async def _emit(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            result = self._on_event(event)
            if result is not None:
                await result
        except Exception as error:  # noqa: BLE001 - a hook never breaks a request
            what = f"the on_event hook failed on {type(event).__name__}"
            log_failure(logging.ERROR, what, error)
