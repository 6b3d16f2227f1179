"""The authenticator that awaits."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from msk_auth._failures import log_failure, unavailable_because
from msk_auth.clock import Clock
from msk_auth.core import flows, revocation
from msk_auth.core.digest import KeyHasher
from msk_auth.core.errors import Problem
from msk_auth.core.events import CredentialUsed, Event
from msk_auth.core.flows import Changed, CreatedKey, Lifetime
from msk_auth.core.issuer import TokenIssuer
from msk_auth.core.keys import KeyFormat
from msk_auth.core.model import (
    ApiKey,
    ExternalIdentity,
    KeyLimits,
    KeyPage,
    KeyStatus,
    Owner,
    Principal,
    Session,
    UserT,
)
from msk_auth.core.policy import Policy
from msk_auth.core.revocation import Ended, LeakedKey
from msk_auth.core.steps import Flow
from msk_auth.core.store import AsyncKeyStore
from msk_auth.ports import AsyncPorts
from msk_auth.tokens.profile import TokenProfile
from msk_auth.watch import MAX_INTERVAL, AsyncWatch, AsyncWatches, check_interval

from .base import FLUSH_SECONDS, NO_LIMITS, PROBLEM_BASE, BaseAuthenticator, refusal
from .validation import not_a_list_of_values

# `asyncio` takes as long to load as everything else here together, and a blocking application has no use for it: it is
# imported where a loop is running, in the functions below.
if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class AsyncAuthenticator(BaseAuthenticator[UserT]):
    """Authenticates requests and manages keys, on an asyncio event loop.

    As an asynchronous context manager it writes times of last use once a minute while it is open,
    and the rest when it is closed::

        async with authenticator:
            ...

    Args:
        store: Where the keys are.
        find_owner: The application's user with this id, read afresh; None if there is none.
        tokens: The profile of the JWTs that this application issues, or several; none by default.
        issuers: Identity providers whose JWTs are accepted as well, such as `msk_auth.tokens.Auth0`.
        find_external_owner: The application's user for a subject of one of the issuers, read
            afresh; None if there is none. It may make one. Needed with `issuers`.
        find_session: The login session with this id, read afresh; None if there is none. Without it
            a JWT is good until it expires, whatever happens.
        key_limits: What new keys may be; a function is asked each time, so that a change takes
            effect at once.
        key_format: The prefix of the keys.
        hasher: How keys are digested; give it a pepper ring in production.
        on_event: Told what happened, and awaited if it returns an awaitable; what it raises is
            logged and changes nothing.
        realm: Names the protected space in challenges (RFC 9110, section 11.5).
        problem_base: What the `type` of problem documents begins with.
        clock: Where the time comes from.
        lease: For how long a verification may be reused; None reads the store each time. Whatever
            narrows access then takes that much longer to return: see `msk_auth.leases.cache`. What
            `find_owner` returns must not be able to change: see :func:`~msk_auth.immutable`.
        lease_entries: How many verifications are kept; each takes about 1 KiB.
        watch_interval: How often what is open is verified, by :meth:`watch`; at most a second.

    Raises:
        ConfigurationError: A setting cannot work; the message says what to write instead.
    """

    def __init__(
        self,
        store: AsyncKeyStore,
        *,
        find_owner: Callable[[str], Awaitable[Owner[UserT] | None]],
        tokens: TokenProfile | Sequence[TokenProfile] = (),
        issuers: Sequence[TokenIssuer] = (),
        find_external_owner: Callable[[ExternalIdentity], Awaitable[Owner[UserT] | None]]
        | None = None,
        find_session: Callable[[str], Awaitable[Session | None]] | None = None,
        key_limits: KeyLimits | Callable[[], Awaitable[KeyLimits]] = NO_LIMITS,
        key_format: KeyFormat | None = None,
        hasher: KeyHasher | None = None,
        on_event: Callable[[Event], Awaitable[None] | None] | None = None,
        realm: str = "api",
        problem_base: str = PROBLEM_BASE,
        clock: Clock | None = None,
        lease: timedelta | None = None,
        lease_entries: int = 10_000,
        watch_interval: timedelta = MAX_INTERVAL,
    ) -> None:
        super().__init__(
            store=store,
            find_owner=find_owner,
            find_external_owner=find_external_owner,
            find_session=find_session,
            key_limits=key_limits,
            on_event=on_event,
            tokens=tokens,
            issuers=issuers,
            key_format=key_format,
            hasher=hasher,
            realm=realm,
            problem_base=problem_base,
            clock=clock,
            lease=lease,
            lease_entries=lease_entries,
            awaits=True,
            overrides_authenticate=type(self).authenticate
            is not AsyncAuthenticator[Any].authenticate,
        )
        self._ports = AsyncPorts(
            store,
            find_owner=find_owner,
            find_external_owner=find_external_owner,
            find_session=find_session,
            key_limits=key_limits,
            hasher=self.rules.hasher,
            cache=self._cache,
            clock=self.clock,
        )
        self._leases = self._ports.leases
        self._watches = AsyncWatches(
            self.rules, self._ports, self.clock, check_interval(watch_interval)
        )
        self._on_event = on_event
        self._flusher: asyncio.Task[None] | None = None

    async def authenticate(self, authorization: Sequence[str | bytes]) -> Principal[UserT]:
        """As :meth:`Authenticator.authenticate`."""
        principal = None if self._cache is None else self._cache.find(authorization)
        if principal is None:
            if isinstance(authorization, (str, bytes)):
                raise not_a_list_of_values()
            try:
                # Garbage ends here, before a clock is read or anybody asked.
                presented = flows.read_credential(self.rules, authorization)
                principal = await self._ports.run(self._verify(presented))
            except Problem as problem:
                if self._on_event is not None:
                    await self._emit(refusal(problem, self.clock.now()))
                raise
            except Exception as error:
                unavailable = unavailable_because(error)
                await self._emit(refusal(unavailable, self.clock.now()))
                raise unavailable from error
        if self._on_event is not None:
            await self._emit(CredentialUsed(self.clock.now(), principal))
        return principal

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> AsyncWatch[UserT]:
        """As :meth:`Authenticator.watch`, for websockets and event streams on an event loop."""
        return self._watches.watch(principal, policy)

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
    ) -> CreatedKey:
        """As :meth:`Authenticator.create_key`."""
        now = self.clock.now()
        return await self._change(
            flows.create_key(
                self.rules, principal, name=name, scopes=scopes, lifetime=lifetime, now=now
            )
        )

    async def rotate_key(
        self, principal: Principal[UserT], key_id: str, *, overlap: timedelta = timedelta(0)
    ) -> CreatedKey:
        """As :meth:`Authenticator.rotate_key`."""
        now = self.clock.now()
        return await self._change(
            flows.rotate_key(self.rules, principal, key_id, overlap=overlap, now=now)
        )

    async def revoke_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """As :meth:`Authenticator.revoke_key`."""
        return await self._change(flows.revoke_key(principal, key_id, now=self.clock.now()))

    async def delete_key(self, principal: Principal[UserT], key_id: str) -> None:
        """As :meth:`Authenticator.delete_key`."""
        await self._change(flows.delete_key(principal, key_id, now=self.clock.now()))

    async def expire_key(self, principal: Principal[UserT], key_id: str, *, at: datetime) -> ApiKey:
        """As :meth:`Authenticator.expire_key`."""
        return await self._change(flows.expire_key(principal, key_id, at=at, now=self.clock.now()))

    async def revoke_presented_key(self, key: str) -> ApiKey | None:
        """As :meth:`Authenticator.revoke_presented_key`."""
        flow = revocation.revoke_presented_key(self.rules, key, self.clock.now())
        return (await self._end(flow))[0]

    async def revoke_leaked(self, leaked: Sequence[LeakedKey]) -> tuple[ApiKey | None, ...]:
        """As :meth:`Authenticator.revoke_leaked`."""
        return await self._end(revocation.revoke_leaked(self.rules, leaked, self.clock.now()))

    async def forget_owner(self, owner_id: str) -> int:
        """As :meth:`Authenticator.forget_owner`."""
        return len(await self._end(revocation.forget_owner(owner_id, self.clock.now())))

    async def get_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """As :meth:`Authenticator.get_key`."""
        return await self._ports.run(flows.get_key(principal, key_id))

    async def list_keys(
        self,
        principal: Principal[UserT],
        *,
        status: KeyStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> KeyPage:
        """As :meth:`Authenticator.list_keys`."""
        now = self.clock.now()
        return await self._ports.run(
            flows.list_keys(principal, status=status, cursor=cursor, limit=limit, now=now)
        )

    async def flush(self) -> None:
        """As :meth:`Authenticator.flush`."""
        with self._usage.batch() as batch:
            if batch.last_used:
                await self._ports.store.touch(batch.last_used)
            for key_id, (old, new) in batch.upgrades.items():
                await self._ports.store.replace_digest(key_id, old=old, new=new)

    async def __aenter__(self) -> AsyncAuthenticator[UserT]:
        import asyncio

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

        if self._flusher is not None:
            self._flusher.cancel()
            # `wait` raises nothing of the task's; a cancellation of the caller still gets through.
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

    async def _emit(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            told = self._on_event(event)
            if told is not None:
                await told
        except Exception as error:  # noqa: BLE001 - a hook never breaks a request
            what = f"the on_event hook failed on {type(event).__name__}"
            log_failure(logging.ERROR, what, error)
