"""How requests use leases, and how a call that ends access waits for them: the rules are those of `msk_auth.leases.cache`."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, Final, Generic, NamedTuple, cast

from msk_auth._failures import log_failure
from msk_auth.clock import Clock
from msk_auth.core.authentication import Authenticated, Presented
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import Principal, UserT
from msk_auth.core.store import offered
from msk_auth.leases import single_flight
from msk_auth.leases.cache import Fingerprint, LeaseCache, seconds_to_wait, usual_header
from msk_auth.leases.single_flight import Flight, SingleFlight

from . import primitives
from .register import LeaseRegisterView
from .store import AsyncLeaseRegister


class Attempt(NamedTuple, Generic[UserT]):
    """How one request comes to a principal.

    Attributes:
        principal: What was verified before; None if this request has to verify.
        flight: Requests with the same credential wait for its end.
        fingerprint: Of the credential.
        began: When a lease began, on the monotonic clock in seconds; None if none was granted.
    """

    principal: Principal[UserT] | None = None
    flight: Flight | None = None
    fingerprint: Fingerprint | None = None
    began: float | None = None


_WITHOUT_LEASE: Final[Attempt[Any]] = Attempt()


class Leases(Generic[UserT]):
    """What keeps the rules of `msk_auth.leases.cache`.

    Args:
        cache: What was verified; None if this process uses no lease.
        store: May have a register of leases.
        clock: Where the time comes from.

    Raises:
        ConfigurationError: There is a cache, and the store has no register.
    """

    def __init__(
        self,
        cache: LeaseCache[UserT] | None,
        store: object,
        clock: Clock,
    ) -> None:
        methods = ("recorded_leases", "record_lease", "forget_lease")
        self._has_register = all(offered(store, method) is not None for method in methods)
        if cache is not None and not self._has_register:
            raise ConfigurationError(
                "This store cannot record leases. Give it recorded_leases(), record_lease() and"
                " forget_lease(), or leave the lease out."
            )
        self.cache = cache
        self._clock = clock
        self._single_flight = SingleFlight(primitives.make_event, primitives.scope)
        # Used only if the store has these methods.
        self._register = LeaseRegisterView(cast("AsyncLeaseRegister", store), clock)

    async def begin(self, presented: Presented | RequestLogins) -> Attempt[UserT]:
        """Look for a credential in the cache, or wait for another request that verifies it.

        If neither gives a principal, the caller verifies the credential and calls :meth:`keep`. In any case it calls
        :meth:`end`.
        """
        cache = self.cache
        # Nothing of a request identifies its login before the application was asked, so no lease covers it.
        if cache is None or isinstance(presented, RequestLogins):
            return _WITHOUT_LEASE
        header = usual_header(presented)
        usual = (header,)
        # It may have been verified under another spelling of its header.
        principal = cache.find(usual, checks_address=True)
        if principal is not None:
            return Attempt(principal)
        fingerprint = cache.fingerprint(header)
        flight = self._single_flight.join(fingerprint.digest)
        try:
            if not flight.leads:
                await self.wait_for(flight)
                principal = cache.find(usual, checks_address=True)
                if principal is not None:
                    return Attempt(principal)
            if not self._register.allows_leases(self._clock.monotonic()):
                await self._confirm(cache.duration)
            # Rule 1: before the first read, and after each wait. Rule 5: whether a lease may begin at this moment.
            began = self._clock.monotonic()
        except BaseException:
            self._single_flight.finish(flight)
            raise
        is_granted = self._register.allows_leases(began)
        return Attempt(None, flight, fingerprint, began if is_granted else None)

    def keep(self, attempt: Attempt[UserT], outcome: Authenticated) -> None:
        """Keep the outcome of a verification, if it may be reused."""
        if attempt.began is not None and outcome.reusable:
            cache = cast("LeaseCache[UserT]", self.cache)
            fingerprint = cast("Fingerprint", attempt.fingerprint)
            cache.fill(
                fingerprint,
                attempt.began,
                outcome.principal,
                outcome.valid_until,
                has_spellings=outcome.has_spellings,
            )

    def end(self, attempt: Attempt[UserT]) -> None:
        """Wake the requests that wait for this one, if it was to verify."""
        if attempt.flight is not None:
            self._single_flight.finish(attempt.flight)

    async def wait_for(self, flight: Flight) -> None:
        """Wait until another request's flight has ended, for so long at most that a read that hangs delays no other."""
        await primitives.wait_for_event(flight.finished, single_flight.MAX_WAIT_SECONDS)

    async def _confirm(self, duration: timedelta) -> None:
        flight = self._single_flight.join(LeaseRegisterView)
        try:
            if flight.leads:
                await self._register.confirm(duration)
            else:
                await self.wait_for(flight)
        finally:
            self._single_flight.finish(flight)

    async def await_expiry(self) -> None:
        """Wait until no process can use anything that it read before this call."""
        if self.cache is not None:
            self.cache.clear()
        await self._clock.async_sleep(seconds_to_wait(await self._longest()))

    async def _longest(self) -> timedelta | None:
        own = timedelta(0) if self.cache is None else self.cache.duration
        if not self._has_register:
            return own
        try:
            in_use = await self._register.read()
        except Exception as error:  # noqa: BLE001 - the change is committed, so wait for the longest possible lease
            what = "could not read the longest lease; waiting for the allowed maximum"
            log_failure(logging.WARNING, what, error)
            return None
        # Rule 7: at least its own, whether the register lists it or not.
        return max(own, *(lease.duration for lease in in_use)) if in_use else own
