"""What a flow may ask of the outside: one small class for each kind of I/O.

A flow yields a step; a driver performs it against its ports and sends the result back. `perform`
returns the result itself under the sync driver and an awaitable of it under the async one.

Steps have no `repr` of their own: some hold a key. They are written by hand: each lives from a `yield` to the next,
and twelve dataclasses would take a tenth of the time in which the library is imported.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, TypeVar

from .model import ApiKey, KeyLimits, KeyQuery, Owner, Session

T = TypeVar("T")


class StorePort(Protocol):
    """A `KeyStore` or an `AsyncKeyStore`, seen without the difference between the two."""

    def insert(self, record: ApiKey, *, max_active: int | None, now: datetime) -> Any: ...
    def list(self, query: KeyQuery) -> Any: ...
    def revoke(self, key_id: str, *, owner_id: str, at: datetime) -> Any: ...
    def delete(self, key_id: str, *, owner_id: str, at: datetime) -> Any: ...
    def expire(self, key_id: str, *, owner_id: str, at: datetime) -> Any: ...
    def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
    ) -> Any: ...


class Ports(Protocol):
    """Everything outside that a flow can reach."""

    @property
    def store(self) -> StorePort: ...
    def find_key(self, key_id: str, /) -> Any: ...
    def find_owner(self, owner_id: str) -> Any: ...
    def find_session(self, session_id: str) -> Any: ...
    def key_limits(self) -> Any: ...
    def verify_slowly(self, key: str, encoded: str) -> Any: ...
    def wait_out_leases(self) -> Any: ...


class Step(Protocol):
    """One thing to do outside."""

    def perform(self, ports: Ports) -> Any: ...


Flow: TypeAlias = Generator[Step, Any, T]
"""An operation: yields steps, receives their results, returns what the operation is for."""


class FindKey:
    """Look up a record by its id."""

    __slots__ = ("key_id",)

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id

    def perform(self, ports: Ports) -> Any:
        return ports.find_key(self.key_id)


class FindOwner:
    """Look up an owner by its id."""

    __slots__ = ("owner_id",)

    def __init__(self, owner_id: str) -> None:
        self.owner_id = owner_id

    def perform(self, ports: Ports) -> Any:
        return ports.find_owner(self.owner_id)


class FindSession:
    """Look up a login session by its id."""

    __slots__ = ("session_id",)

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id

    def perform(self, ports: Ports) -> Any:
        return ports.find_session(self.session_id)


class FindKeyLimits:
    """Ask what new keys may be."""

    __slots__ = ()

    def perform(self, ports: Ports) -> Any:
        return ports.key_limits()


class VerifySlowly:
    """Compare a key with a digest that takes long to compute."""

    __slots__ = ("encoded", "key")

    def __init__(self, key: str, encoded: str) -> None:
        self.key = key
        self.encoded = encoded

    def perform(self, ports: Ports) -> Any:
        return ports.verify_slowly(self.key, self.encoded)


class InsertKey:
    """Store a new record."""

    __slots__ = ("max_active", "now", "record")

    def __init__(self, record: ApiKey, max_active: int | None, now: datetime) -> None:
        self.record = record
        self.max_active = max_active
        self.now = now

    def perform(self, ports: Ports) -> Any:
        return ports.store.insert(self.record, max_active=self.max_active, now=self.now)


class ListKeys:
    """Read a page of records."""

    __slots__ = ("query",)

    def __init__(self, query: KeyQuery) -> None:
        self.query = query

    def perform(self, ports: Ports) -> Any:
        return ports.store.list(self.query)


class RevokeKey:
    """Revoke a key of an owner."""

    __slots__ = ("at", "key_id", "owner_id")

    def __init__(self, key_id: str, owner_id: str, at: datetime) -> None:
        self.key_id = key_id
        self.owner_id = owner_id
        self.at = at

    def perform(self, ports: Ports) -> Any:
        return ports.store.revoke(self.key_id, owner_id=self.owner_id, at=self.at)


class DeleteKey:
    """Revoke a key of an owner and take it off the list."""

    __slots__ = ("at", "key_id", "owner_id")

    def __init__(self, key_id: str, owner_id: str, at: datetime) -> None:
        self.key_id = key_id
        self.owner_id = owner_id
        self.at = at

    def perform(self, ports: Ports) -> Any:
        return ports.store.delete(self.key_id, owner_id=self.owner_id, at=self.at)


class ExpireKey:
    """Bring the end of an owner's key forward."""

    __slots__ = ("at", "key_id", "owner_id")

    def __init__(self, key_id: str, owner_id: str, at: datetime) -> None:
        self.key_id = key_id
        self.owner_id = owner_id
        self.at = at

    def perform(self, ports: Ports) -> Any:
        return ports.store.expire(self.key_id, owner_id=self.owner_id, at=self.at)


class RotateKey:
    """Store a successor and end its predecessor, at once."""

    __slots__ = ("ends_at", "key_id", "max_active", "now", "successor")

    def __init__(
        self,
        key_id: str,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
    ) -> None:
        self.key_id = key_id
        self.successor = successor
        self.ends_at = ends_at
        self.max_active = max_active
        self.now = now

    def perform(self, ports: Ports) -> Any:
        return ports.store.rotate(
            self.key_id,
            successor=self.successor,
            ends_at=self.ends_at,
            max_active=self.max_active,
            now=self.now,
        )


class WaitOutLeases:
    """Wait until nobody can use what was read before."""

    __slots__ = ()

    def perform(self, ports: Ports) -> Any:
        return ports.wait_out_leases()


# Each of these asks for one thing and gives the answer its type, so that the flows are checked
# throughout.


def find_key(key_id: str) -> Flow[ApiKey | None]:
    answer: ApiKey | None = yield FindKey(key_id)
    return answer


def find_owner(owner_id: str) -> Flow[Owner[Any] | None]:
    answer: Owner[Any] | None = yield FindOwner(owner_id)
    return answer


def find_session(session_id: str) -> Flow[Session | None]:
    answer: Session | None = yield FindSession(session_id)
    return answer


def find_key_limits() -> Flow[KeyLimits]:
    answer: KeyLimits = yield FindKeyLimits()
    return answer


def verify_slowly(key: str, encoded: str) -> Flow[bool]:
    answer: bool = yield VerifySlowly(key, encoded)
    return answer


def list_keys(query: KeyQuery) -> Flow[Sequence[ApiKey]]:
    answer: Sequence[ApiKey] = yield ListKeys(query)
    return answer


def narrow_key(step: RevokeKey | DeleteKey | ExpireKey | RotateKey) -> Flow[ApiKey | None]:
    """Commit first, then wait until no process can still use what it read before."""
    answer: ApiKey | None = yield step
    yield WaitOutLeases()
    return answer


def narrow_keys(batch: Sequence[RevokeKey]) -> Flow[list[ApiKey | None]]:
    """As :func:`narrow_key`, for many keys at the price of one wait."""
    answers: list[ApiKey | None] = []
    for step in batch:
        answers.append((yield step))  # noqa: PERF401 - a comprehension cannot yield
    if batch:
        yield WaitOutLeases()
    return answers
