# Generated from src/msk_auth/_async/ports.py by tools/generate_sync.py: change that, and run this.
"""The store, the look-ups and the hooks of the application, as the flows of the core reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from msk_auth.core.model import (
    KeyLimits,
    Owner,
    Principal,
    UserT,
    freeze_permissions,
)
from msk_auth.core.steps import Flow
from msk_auth.flows import fail_closed, run_blocking

from .leases import Leases
from .look_ups import LookUps
from .store import KeyStore
from .verification import Verifier

T = TypeVar("T")


class Ports(Generic[UserT]):
    """What a flow reaches through `Authenticator`."""

    def __init__(
        self,
        store: KeyStore,
        look_ups: LookUps[UserT],
        verifier: Verifier,
        leases: Leases[UserT],
        *,
        key_limits: KeyLimits | Callable[[], KeyLimits],
        may_act_for: Callable[[Principal[UserT], Owner[UserT]], Iterable[str] | None] | None,
    ) -> None:
        self.store = store
        self.find_key = look_ups.find_key
        self.find_owner = look_ups.find_owner
        self.verify_again = verifier.verify_again
        self.find_presented = verifier.find_presented
        self.await_lease_expiry = leases.await_expiry
        self._key_limits = key_limits
        self._may_act_for = may_act_for

    def run(self, flow: Flow[T]) -> T:
        """Run a flow of the core to its end and return its result. What a step raises is a refusal: fail closed."""
        return run_blocking(flow, self, fail_closed)

    def may_act_for(
        self, principal: Principal[UserT], owner: Owner[UserT]
    ) -> frozenset[str] | None:
        ask = self._may_act_for
        given = None if ask is None else ask(principal, owner)
        # Inside the step a value of another type refuses the operation.
        return None if given is None else freeze_permissions(given, "may_act_for")

    def key_limits(self) -> KeyLimits:
        return self._key_limits if isinstance(self._key_limits, KeyLimits) else self._key_limits()
