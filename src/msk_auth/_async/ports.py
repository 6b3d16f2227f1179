"""Calls the store, the look-ups, the hooks and the clock of the application for the operations on keys.

Every exception other than a :class:`~msk_auth.errors.Problem` becomes :class:`~msk_auth.errors.StoreUnavailable`: fail closed. This
happens only here, so that no operation can forget it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast

from msk_auth._failures import log_failure, unavailable_because
from msk_auth.clock import Clock
from msk_auth.core.errors import Problem
from msk_auth.core.events import Event, KeyEvent
from msk_auth.core.model import ApiKey, KeyLimits, Owner, Principal, UserT, freeze_permissions
from msk_auth.core.store import KeyChange

from .leases import Leases
from .primitives import MaybeAwaitable, result_of
from .store import AsyncKeyStore
from .verification import AsyncLookUps, AsyncVerifier

T = TypeVar("T")
P = ParamSpec("P")


async def _fail_closed(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await function(*args, **kwargs)
    except Problem:
        raise
    except Exception as error:
        raise unavailable_because(error) from error


class _FailsClosed:
    """An object whose methods raise only problems."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return partial(_fail_closed, getattr(self._inner, name))


def _failing_closed(inner: T) -> T:
    return cast("T", _FailsClosed(inner))


class AsyncPorts(Generic[UserT]):
    """The application's parts that the operations on keys call.

    Attributes:
        store: The store.
        look_ups: See :class:`AsyncLookUps`.
        verifier: See :class:`AsyncVerifier`.
        leases: See :class:`Leases`.
    """

    def __init__(
        self,
        store: AsyncKeyStore,
        look_ups: AsyncLookUps[UserT],
        verifier: AsyncVerifier,
        leases: Leases[UserT],
        clock: Clock,
        *,
        key_limits: KeyLimits | Callable[[], Awaitable[KeyLimits]],
        may_act_for: Callable[[Principal[UserT], Owner[UserT]], Awaitable[Iterable[str] | None]]
        | None,
        on_event: Callable[[Event], MaybeAwaitable[None]] | None,
    ) -> None:
        self.store: AsyncKeyStore = _failing_closed(store)
        self.look_ups: AsyncLookUps[UserT] = _failing_closed(look_ups)
        self.verifier: AsyncVerifier = _failing_closed(verifier)
        self.leases: Leases[UserT] = _failing_closed(leases)
        self._clock = clock
        self._key_limits = key_limits
        self._may_act_for = may_act_for
        self._on_event = on_event

    def now(self) -> datetime:
        """The current time."""
        try:
            return self._clock.now()
        except Exception as error:
            raise unavailable_because(error) from error

    async def key_limits(self) -> KeyLimits:
        limits = self._key_limits
        return limits if isinstance(limits, KeyLimits) else await _fail_closed(limits)

    async def may_act_for(
        self, principal: Principal[UserT], owner: Owner[UserT]
    ) -> frozenset[str] | None:
        return await _fail_closed(self._permissions_for, principal, owner)

    async def revoke_all(
        self, records: Sequence[ApiKey], at: datetime, change: KeyChange
    ) -> list[ApiKey | None]:
        """Revoke keys with a single wait. The result is None for a deleted key, which is revoked already.

        Revoked keys are included: the call that revoked them may still wait for leases to end, and this call must
        not return earlier.
        """
        revoked = [
            await self.store.revoke(record.id, owner_id=record.owner_id, at=at, change=change)
            for record in records
        ]
        if records:
            await self.leases.await_expiry()
        return revoked

    async def emit(self, event: Event) -> None:
        """Call the hook `on_event`."""
        if self._on_event is None:
            return
        try:
            await result_of(self._on_event(event))
        except Exception as error:  # noqa: BLE001 - a hook never breaks a request
            action = f" {event.action!r}" if isinstance(event, KeyEvent) else ""
            what = f"the on_event hook failed on {type(event).__name__}{action}"
            log_failure(logging.ERROR, what, error)

    async def _permissions_for(
        self, principal: Principal[UserT], owner: Owner[UserT]
    ) -> frozenset[str] | None:
        ask = self._may_act_for
        given = None if ask is None else await ask(principal, owner)
        # A value of another type refuses the operation.
        return None if given is None else freeze_permissions(given, "may_act_for")
