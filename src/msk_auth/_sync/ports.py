# Generated from src/msk_auth/_async/ports.py by tools/generate_sync.py: change that, and run this.
"""The store, the look-ups and the clock, as the flows of the core reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from msk_auth.flows import fail_closed, run_blocking
from msk_auth.leases import single_flight
from msk_auth.leases.cache import LeaseCache, Leases
from msk_auth.leases.single_flight import Flight, SingleFlight
from msk_auth.users import RequestSession, in_session_of

from . import primitives
from .store import KeyStore, LeaseRegister

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Ports(Generic[UserT]):
    """What a flow reaches through `Authenticator`.

    Attributes:
        keys_at_once: How many keys one call of :meth:`find_keys` may look up.
    """

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

    def run(self, flow: Flow[T]) -> T:
        """Run a flow of the core to its end and return its result."""
        try:
            return run_blocking(flow, self, fail_closed)
        except WrongRecord as error:
            raise unavailable_because(error) from error

    def find_key(self, key_id: str) -> ApiKey | None:
        return self._keys.find(key_id)

    def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        return self._keys.find_many(key_ids)

    def of_request(self, request: RequestSession | None) -> Ports[UserT]:
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
        return primitives.result_of(ask())

    def may_act_for(
        self, principal: Principal[UserT], owner: Owner[UserT]
    ) -> frozenset[str] | None:
        ask = self._may_act_for
        return None if ask is None else _permissions_or_none(ask(principal, owner))

    def key_limits(self) -> KeyLimits:
        return self._key_limits if isinstance(self._key_limits, KeyLimits) else self._key_limits()

    def verify_off_loop(self, key: str, encoded: str) -> bool:
        return self._slow.run(self._hasher.verify, key, encoded)

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def wait_for(self, flight: Flight) -> None:
        primitives.wait_for_event(flight.finished, single_flight.MAX_WAIT_SECONDS)

    def wait_for_future(self, future: Future[None], seconds: float) -> None:
        primitives.wait_for_future(future, seconds)

    def await_lease_expiry(self) -> None:
        self.run(self.leases.await_expiry())


def _permissions_or_none(given: Iterable[str] | None) -> frozenset[str] | None:
    """What a `may_act_for` returned. Here, inside the step, a value of another type refuses the operation."""
    return None if given is None else freeze_permissions(given, "may_act_for")


def _is_register(store: object) -> bool:
    """True if the store has all methods of a register of leases."""
    methods = ("recorded_leases", "record_lease", "forget_lease")
    return all(offered(store, method) is not None for method in methods)
