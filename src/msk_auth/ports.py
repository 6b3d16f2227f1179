"""The two drivers of flows, :func:`run_blocking` and :func:`run_awaiting`, and what the core's flows reach through them.

A driver decides nothing: it calls a step, sends the answer into the flow, and throws into it what the step raised. What
a flow of the core does not handle becomes :class:`~msk_auth.StoreUnavailable`, unless it is a
:class:`~msk_auth.Problem` already.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast

from ._failures import unavailable_because
from ._fork import abandon, after_fork_in_child
from .clock import Clock
from .core.digest import KeyHasher
from .core.errors import Problem
from .core.model import (
    ApiKey,
    ExternalIdentity,
    KeyLimits,
    Owner,
    Principal,
    Session,
    UserT,
    freeze_permissions,
)
from .core.steps import Flow, WrongRecord
from .core.store import AsyncKeyStore, AsyncLeaseRegister, KeyStore, LeaseRegister, offered
from .leases.cache import LeaseCache, Leases
from .leases.single_flight import MAX_WAIT_SECONDS, Flight, SingleFlight
from .users import RequestSession, in_session_of

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
AnyFlow: TypeAlias = Generator[Callable[[Any], Any], Any, T]
"""A flow over ports of any kind."""

# How many Argon2id verifications of imported keys run at once: each takes a core and 19 MiB.
_SLOW_AT_ONCE: Final = 2


def _as_it_is(flow: AnyFlow[Any], error: BaseException) -> Callable[[Any], Any]:
    return flow.throw(error)


def run_blocking(
    flow: AnyFlow[T], ports: object, throw: Callable[[AnyFlow[Any], BaseException], Any] = _as_it_is
) -> T:
    """Run a flow whose steps return their answers.

    Args:
        flow: Not started yet.
        ports: What each step is called with.
        throw: Throws into the flow what a step raised; it returns the next step, and may translate what the flow lets
            through.

    Returns:
        What the flow returns.
    """
    try:
        step = flow.send(None)
        while True:
            # A stray StopIteration of a store must not look like the end of the flow.
            try:
                answer = step(ports)
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                step = throw(flow, error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return cast("T", stop.value)


async def run_awaiting(
    flow: AnyFlow[T], ports: object, throw: Callable[[AnyFlow[Any], BaseException], Any] = _as_it_is
) -> T:
    """As :func:`run_blocking`, for steps that return awaitables of their answers."""
    try:
        step = flow.send(None)
        while True:
            try:
                answer = await step(ports)
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                step = throw(flow, error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return cast("T", stop.value)


class SyncPorts(Generic[UserT]):
    """What a flow reaches through `Authenticator`.

    Attributes:
        keys_at_once: How many keys one call of :meth:`find_keys` may look up.
    """

    keys_at_once: Final = 1

    def __init__(
        self,
        store: KeyStore,
        *,
        find_owner: Callable[[str], Owner[UserT] | None],
        find_external_owner: Callable[[ExternalIdentity], Owner[UserT] | None] | None,
        find_session: Callable[[str], Session | None] | None,
        key_limits: KeyLimits | Callable[[], KeyLimits],
        may_act_for: Callable[[Principal[UserT], Owner[UserT]], Iterable[str] | None] | None,
        hasher: KeyHasher,
        cache: LeaseCache[UserT] | None,
        clock: Clock,
    ) -> None:
        self.store = store
        self.has_register: bool = _is_register(store)
        # Used only if the store has these methods.
        self.register: LeaseRegister = cast("LeaseRegister", store)
        self.leases: Leases[UserT] = Leases(
            cache,
            has_register=self.has_register,
            clock=clock,
            single_flight=SingleFlight(threading.Event, lambda: None),
        )
        self._find_owner = find_owner
        self._find_external_owner = find_external_owner
        self._find_session = find_session
        self._key_limits = key_limits
        self._may_act_for = may_act_for
        self._hasher = hasher
        self._clock = clock

    def run(self, flow: Flow[T]) -> T:
        """Run a flow of the core to its end and return its result."""
        try:
            return run_blocking(flow, self, _throw)
        except WrongRecord as error:
            raise unavailable_because(error) from error

    def find_key(self, key_id: str) -> ApiKey | None:
        return self.store.find(key_id)

    def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        return [self.store.find(key_id) for key_id in key_ids]

    def of_request(self, request: RequestSession | None) -> SyncPorts[UserT]:
        """These ports for the verification of a request: where they may, they read the owner in its session.

        They may not under a lease. A session answers with what it has read before, which can be older than the lease, and other
        requests would get it.
        """
        if request is None or self.leases.cache is not None:
            return self
        ports = copy(self)
        ports._find_owner = in_session_of(request, self._find_owner)  # noqa: SLF001 - it is a copy of this object
        ports._find_external_owner = in_session_of(request, self._find_external_owner)  # noqa: SLF001
        return ports

    def find_owner(self, owner_id: str) -> Owner[UserT] | None:
        return self._find_owner(owner_id)

    def find_external_owner(self, identity: ExternalIdentity) -> Owner[UserT] | None:
        find = self._find_external_owner
        return None if find is None else find(identity)

    def find_session(self, session_id: str) -> Session | None:
        return None if self._find_session is None else self._find_session(session_id)

    def find_login(self, ask: Callable[[], object]) -> object:
        return ask()

    def may_act_for(
        self, principal: Principal[UserT], owner: Owner[UserT]
    ) -> frozenset[str] | None:
        ask = self._may_act_for
        return None if ask is None else _permissions_or_none(ask(principal, owner))

    def key_limits(self) -> KeyLimits:
        return self._key_limits if isinstance(self._key_limits, KeyLimits) else self._key_limits()

    def verify_off_loop(self, key: str, encoded: str) -> bool:
        return self._hasher.verify(key, encoded)

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def wait_for(self, flight: Flight) -> None:
        flight.finished.wait(MAX_WAIT_SECONDS)

    def wait_for_future(self, future: Future[None], seconds: float) -> None:
        from concurrent.futures import wait

        wait([future], seconds)

    def await_lease_expiry(self) -> None:
        self.run(self.leases.await_expiry())


class AsyncPorts(Generic[UserT]):
    """What a flow reaches through `AsyncAuthenticator`.

    Attributes:
        keys_at_once: How many keys one call of :meth:`find_keys` may look up.
    """

    def __init__(
        self,
        store: AsyncKeyStore,
        *,
        find_owner: Callable[[str], Awaitable[Owner[UserT] | None]],
        find_external_owner: Callable[[ExternalIdentity], Awaitable[Owner[UserT] | None]] | None,
        find_session: Callable[[str], Awaitable[Session | None]] | None,
        key_limits: KeyLimits | Callable[[], Awaitable[KeyLimits]],
        may_act_for: Callable[[Principal[UserT], Owner[UserT]], Awaitable[Iterable[str] | None]]
        | None,
        hasher: KeyHasher,
        cache: LeaseCache[UserT] | None,
        clock: Clock,
    ) -> None:
        # Imported here because `asyncio` takes as long to load as the rest of the library.
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        from .batching import MAX_BATCH, BatchedReader

        self.store = store
        self.has_register: bool = _is_register(store)
        self.register: AsyncLeaseRegister = cast("AsyncLeaseRegister", store)
        self.leases: Leases[UserT] = Leases(
            cache,
            has_register=self.has_register,
            clock=clock,
            single_flight=SingleFlight(asyncio.Event, asyncio.get_running_loop),
        )
        self._find_many: Callable[[Sequence[str]], Awaitable[Sequence[ApiKey]]] | None
        self._find_many = offered(store, "find_many")
        self._reader = (
            None if self._find_many is None else BatchedReader(store.find, self._find_many)
        )
        self.keys_at_once: int = 1 if self._find_many is None else MAX_BATCH
        self._find_owner = find_owner
        self._find_external_owner = find_external_owner
        self._find_session = find_session
        self._key_limits = key_limits
        self._may_act_for = may_act_for
        self._hasher = hasher
        self._clock = clock
        # It starts threads on first use, and serves every event loop.
        self._make_slow = partial(ThreadPoolExecutor, _SLOW_AT_ONCE, "msk_auth argon2")
        self._slow = self._make_slow()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        abandon(self._slow)
        self._slow = self._make_slow()

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow of the core to its end and return its result."""
        try:
            return await run_awaiting(flow, self, _throw)
        except WrongRecord as error:
            raise unavailable_because(error) from error

    def find_key(self, key_id: str) -> Awaitable[ApiKey | None]:
        return self.store.find(key_id) if self._reader is None else self._reader.find(key_id)

    async def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        if self._find_many is None:
            return [await self.store.find(key_id) for key_id in key_ids]
        return await self._find_many(key_ids)

    def of_request(self, request: RequestSession | None) -> AsyncPorts[UserT]:
        """As :meth:`SyncPorts.of_request`."""
        if request is None or self.leases.cache is not None:
            return self
        ports = copy(self)
        ports._find_owner = in_session_of(request, self._find_owner)  # noqa: SLF001 - it is a copy of this object
        ports._find_external_owner = in_session_of(request, self._find_external_owner)  # noqa: SLF001
        return ports

    async def find_owner(self, owner_id: str) -> Owner[UserT] | None:
        return await self._find_owner(owner_id)

    async def find_external_owner(self, identity: ExternalIdentity) -> Owner[UserT] | None:
        find = self._find_external_owner
        return None if find is None else await find(identity)

    async def find_session(self, session_id: str) -> Session | None:
        return None if self._find_session is None else await self._find_session(session_id)

    async def find_login(self, ask: Callable[[], object]) -> object:
        answer = ask()
        return await cast("Awaitable[object]", answer) if isinstance(answer, Awaitable) else answer

    async def may_act_for(
        self, principal: Principal[UserT], owner: Owner[UserT]
    ) -> frozenset[str] | None:
        ask = self._may_act_for
        return None if ask is None else _permissions_or_none(await ask(principal, owner))

    async def key_limits(self) -> KeyLimits:
        return (
            self._key_limits
            if isinstance(self._key_limits, KeyLimits)
            else await self._key_limits()
        )

    async def verify_off_loop(self, key: str, encoded: str) -> bool:
        import asyncio

        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._slow, self._hasher.verify, key, encoded)

    async def sleep(self, seconds: float) -> None:
        await self._clock.async_sleep(seconds)

    async def wait_for(self, flight: Flight) -> None:
        import asyncio

        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await flight.finished.wait()

    async def wait_for_future(self, future: Future[None], seconds: float) -> None:
        import asyncio

        # It cancels nothing: other requests wait for the same.
        await asyncio.wait([asyncio.wrap_future(future)], timeout=seconds)

    async def await_lease_expiry(self) -> None:
        await self.run(self.leases.await_expiry())


def _permissions_or_none(given: Iterable[str] | None) -> frozenset[str] | None:
    """What a `may_act_for` returned. Here, inside the step, a value of another type refuses the operation."""
    return None if given is None else freeze_permissions(given, "may_act_for")


def _is_register(store: object) -> bool:
    """True if the store has all methods of a register of leases."""
    methods = ("recorded_leases", "record_lease", "forget_lease")
    return all(offered(store, method) is not None for method in methods)


def _throw(flow: AnyFlow[Any], error: BaseException) -> Callable[[Any], Any]:
    """Throw it; what the flow does not handle is a refusal: fail closed."""
    try:
        return flow.throw(error)
    except (StopIteration, Problem):
        raise
    except Exception as unhandled:
        raise unavailable_because(unhandled) from unhandled
