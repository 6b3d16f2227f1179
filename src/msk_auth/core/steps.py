"""The steps of the flows, one function for each kind of I/O.

A flow yields a step: a function that `ports` calls with itself. It sends the result back into the flow, or throws the error
of the step. Under `Authenticator` a step returns the result, under `AsyncAuthenticator` an awaitable of it. The `repr` of a
step does not show its arguments, since some contain a key.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import date, datetime
from typing import Any, Protocol, TypeAlias, TypeVar

from .activity import ActivityEntry, KeyActivity
from .events import Event
from .fields import KeyUpdate
from .model import (
    ApiKey,
    ExpiryQuery,
    KeyLimits,
    KeyQuery,
    Owner,
    Principal,
)
from .store import KeyChange

T = TypeVar("T")


class StorePort(Protocol):
    """A `KeyStore` or an `AsyncKeyStore`, seen without the difference between the two."""

    def insert(
        self, record: ApiKey, *, max_active: int | None, now: datetime, change: KeyChange
    ) -> Any: ...
    def list(self, query: KeyQuery) -> Any: ...
    def list_all(self, *, after: tuple[str, datetime, str] | None, limit: int) -> Any: ...
    def list_expiring(self, query: ExpiryQuery) -> Any: ...
    def announce_expiry(self, key_id: str, *, days: int, change: KeyChange) -> Any: ...
    def revoke(self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange) -> Any: ...
    def delete(self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange) -> Any: ...
    def expire(self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange) -> Any: ...
    def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
        change: KeyChange,
    ) -> Any: ...
    def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange
    ) -> Any: ...
    def record_activity(self, entries: Sequence[ActivityEntry]) -> Any: ...
    def activity(self, key_id: str, *, since: date | None) -> Any: ...
    def delete_activity(self, *, before: date, limit: int) -> Any: ...


class Ports(Protocol):
    """The store, the look-ups and the clock, as a flow reaches them."""

    @property
    def store(self) -> StorePort: ...
    def find_key(self, key_id: str, /) -> Any: ...
    def find_owner(self, owner_id: str) -> Any: ...
    def may_act_for(self, principal: Principal[Any], owner: Owner[Any]) -> Any: ...
    def key_limits(self) -> Any: ...
    def verify_again(self, principal: Principal[Any], now: datetime) -> Any: ...
    def find_presented(self, credential: str) -> Any: ...
    def await_lease_expiry(self) -> Any: ...


Step: TypeAlias = Callable[[Ports], Any]
"""One look-up, write or wait."""

Flow: TypeAlias = Generator[Step, Any, T]
"""An operation: yields steps, receives their results, returns its own result."""


# Each function types its result, so that the type checker checks the flows throughout.


def find_key(key_id: str) -> Flow[ApiKey | None]:
    answer: ApiKey | None = yield lambda ports: ports.find_key(key_id)
    return answer


def find_owner(owner_id: str) -> Flow[Owner[Any] | None]:
    answer: Owner[Any] | None = yield lambda ports: ports.find_owner(owner_id)
    return answer


def verify_again(principal: Principal[Any], now: datetime) -> Flow[Principal[Any]]:
    answer: Principal[Any] = yield lambda ports: ports.verify_again(principal, now)
    return answer


def find_presented(credential: str) -> Flow[ApiKey]:
    answer: ApiKey = yield lambda ports: ports.find_presented(credential)
    return answer


def may_act_for(principal: Principal[Any], owner: Owner[Any]) -> Flow[frozenset[str] | None]:
    answer: frozenset[str] | None = yield lambda ports: ports.may_act_for(principal, owner)
    return answer


def find_key_limits() -> Flow[KeyLimits]:
    answer: KeyLimits = yield lambda ports: ports.key_limits()
    return answer


def list_keys(query: KeyQuery) -> Flow[Sequence[ApiKey]]:
    answer: Sequence[ApiKey] = yield lambda ports: ports.store.list(query)
    return answer


def list_all_keys(after: tuple[str, datetime, str] | None, limit: int) -> Flow[Sequence[ApiKey]]:
    # Only `AdminKeys` runs this, which has asked the store for the method.
    answer: Sequence[ApiKey] = yield lambda ports: ports.store.list_all(after=after, limit=limit)
    return answer


# An authenticator that has `activity` has asked the store for these three methods.


def record_activity(entries: Sequence[ActivityEntry]) -> Flow[None]:
    yield lambda ports: ports.store.record_activity(entries)


def find_activity(key_id: str, since: date | None) -> Flow[KeyActivity]:
    answer: KeyActivity = yield lambda ports: ports.store.activity(key_id, since=since)
    return answer


def delete_activity(before: date, limit: int) -> Flow[int]:
    answer: int = yield lambda ports: ports.store.delete_activity(before=before, limit=limit)
    return answer


def list_expiring(query: ExpiryQuery) -> Flow[Sequence[ApiKey]]:
    # Only `KeyExpiry` runs this and the next, which has asked the store for the methods.
    answer: Sequence[ApiKey] = yield lambda ports: ports.store.list_expiring(query)
    return answer


def announce_expiry(key_id: str, days: int, change: KeyChange) -> Flow[ApiKey | None]:
    answer: ApiKey | None = yield lambda ports: ports.store.announce_expiry(
        key_id, days=days, change=change
    )
    return answer


def emit(hook: Callable[[Event], Any], event: Event) -> Flow[None]:
    yield lambda _ports: hook(event)


def insert_key(
    record: ApiKey, max_active: int | None, now: datetime, change: KeyChange
) -> Flow[None]:
    yield lambda ports: ports.store.insert(record, max_active=max_active, now=now, change=change)


def update_key(
    key_id: str, owner_id: str, fields: KeyUpdate, change: KeyChange
) -> Flow[ApiKey | None]:
    answer: ApiKey | None = yield lambda ports: ports.store.update(
        key_id, owner_id=owner_id, fields=fields, change=change
    )
    if "networks" in fields:
        # Where it does not work from any more.
        yield _await_lease_expiry
    return answer


# What ends access commits first, and then waits until no process can still use what it read before. Each write carries
# what it means, for the hook that a store calls inside the write's transaction.


def revoke_key(key_id: str, owner_id: str, at: datetime, change: KeyChange) -> Flow[ApiKey | None]:
    return (yield from _end_access(_revocation(key_id, owner_id, at, change)))


def revoke_keys(
    records: Sequence[ApiKey], at: datetime, change: KeyChange
) -> Flow[list[ApiKey | None]]:
    """As :func:`revoke_key`, for many keys at the price of one wait."""
    answers: list[ApiKey | None] = []
    for record in records:
        revocation = _revocation(record.id, record.owner_id, at, change)
        answers.append((yield revocation))
    if records:
        yield _await_lease_expiry
    return answers


def delete_key(key_id: str, owner_id: str, at: datetime, change: KeyChange) -> Flow[ApiKey | None]:
    return (yield from _end_access(_deletion(key_id, owner_id, at, change)))


def delete_keys(
    records: Sequence[ApiKey], at: datetime, change_of: Callable[[ApiKey], KeyChange]
) -> Flow[list[ApiKey | None]]:
    """As :func:`delete_key`, for many keys and without the wait: :func:`await_lease_expiry` is to follow."""
    answers: list[ApiKey | None] = []
    for record in records:
        deletion = _deletion(record.id, record.owner_id, at, change_of(record))
        answers.append((yield deletion))
    return answers


def await_lease_expiry() -> Flow[None]:
    yield _await_lease_expiry


def expire_key(key_id: str, owner_id: str, at: datetime, change: KeyChange) -> Flow[ApiKey | None]:
    return (
        yield from _end_access(
            lambda ports: ports.store.expire(key_id, owner_id=owner_id, at=at, change=change)
        )
    )


def rotate_key(
    key_id: str,
    successor: ApiKey,
    ends_at: datetime,
    max_active: int | None,
    now: datetime,
    change: KeyChange,
) -> Flow[ApiKey | None]:
    return (
        yield from _end_access(
            lambda ports: ports.store.rotate(
                key_id,
                successor=successor,
                ends_at=ends_at,
                max_active=max_active,
                now=now,
                change=change,
            )
        )
    )


def _end_access(step: Step) -> Flow[ApiKey | None]:
    answer: ApiKey | None = yield step
    yield _await_lease_expiry
    return answer


def _revocation(key_id: str, owner_id: str, at: datetime, change: KeyChange) -> Step:
    return lambda ports: ports.store.revoke(key_id, owner_id=owner_id, at=at, change=change)


def _deletion(key_id: str, owner_id: str, at: datetime, change: KeyChange) -> Step:
    return lambda ports: ports.store.delete(key_id, owner_id=owner_id, at=at, change=change)


def _await_lease_expiry(ports: Ports) -> Any:
    return ports.await_lease_expiry()
