"""The store, the look-ups and the clock, as the flows of the core reach them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from msk_auth._failures import unavailable_because
from msk_auth.clock import Clock
from msk_auth.core.digest import KeyHasher
from msk_auth.core.model import (
    ApiKey,
    ExternalIdentity,
    KeyLimits,
    Owner,
    Principal,
    Session,
    UserT,
    freeze_permissions,
)
from msk_auth.core.steps import Flow, WrongRecord
from msk_auth.core.store import offered
from msk_auth.flows import fail_closed, run_awaiting
from msk_auth.leases import single_flight
from msk_auth.leases.cache import LeaseCache, Leases
from msk_auth.leases.single_flight import Flight, SingleFlight
from msk_auth.users import RequestSession, in_session_of

from . import primitives
from .store import AsyncKeyStore, AsyncLeaseRegister

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


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
        self.store = store
        self.has_register: bool = _is_register(store)
        # Used only if the store has these methods.
        self.register: AsyncLeaseRegister = cast("AsyncLeaseRegister", store)
        self.leases: Leases[UserT] = Leases(
            cache,
            has_register=self.has_register,
            clock=clock,
            single_flight=SingleFlight(primitives.make_event, primitives.scope),
        )
        self._keys = primitives.KeyReader(store)
        self.keys_at_once: int = self._keys.at_once
        self._find_owner = find_owner
        self._find_external_owner = find_external_owner
        self._find_session = find_session
        self._key_limits = key_limits
        self._may_act_for = may_act_for
        self._hasher = hasher
        self._slow = primitives.SlowWork()
        self._clock = clock

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow of the core to its end and return its result."""
        try:
            return await run_awaiting(flow, self, fail_closed)
        except WrongRecord as error:
            raise unavailable_because(error) from error

    def find_key(self, key_id: str) -> Awaitable[ApiKey | None]:
        return self._keys.find(key_id)

    def find_keys(self, key_ids: Sequence[str]) -> Awaitable[Sequence[ApiKey | None]]:
        return self._keys.find_many(key_ids)

    def of_request(self, request: RequestSession | None) -> AsyncPorts[UserT]:
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

    async def find_owner(self, owner_id: str) -> Owner[UserT] | None:
        return await self._find_owner(owner_id)

    async def find_external_owner(self, identity: ExternalIdentity) -> Owner[UserT] | None:
        find = self._find_external_owner
        return None if find is None else await find(identity)

    async def find_session(self, session_id: str) -> Session | None:
        return None if self._find_session is None else await self._find_session(session_id)

    async def find_login(self, ask: Callable[[], object]) -> object:
        return await primitives.result_of(ask())

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
        return await self._slow.run(self._hasher.verify, key, encoded)

    async def sleep(self, seconds: float) -> None:
        await self._clock.async_sleep(seconds)

    async def wait_for(self, flight: Flight) -> None:
        await primitives.wait_for_event(flight.finished, single_flight.MAX_WAIT_SECONDS)

    async def wait_for_future(self, future: Future[None], seconds: float) -> None:
        await primitives.wait_for_future(future, seconds)

    async def await_lease_expiry(self) -> None:
        await self.run(self.leases.await_expiry())


def _permissions_or_none(given: Iterable[str] | None) -> frozenset[str] | None:
    """What a `may_act_for` returned. Here, inside the step, a value of another type refuses the operation."""
    return None if given is None else freeze_permissions(given, "may_act_for")


def _is_register(store: object) -> bool:
    """True if the store has all methods of a register of leases."""
    methods = ("recorded_leases", "record_lease", "forget_lease")
    return all(offered(store, method) is not None for method in methods)
