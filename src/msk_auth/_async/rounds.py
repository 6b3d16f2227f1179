"""One round of verifications of all watches of an event loop: its look-ups, and its results."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msk_auth._failures import log_failure
from msk_auth._sync.verdict import Watched
from msk_auth.clock import Clock
from msk_auth.core.authentication import Rules
from msk_auth.core.errors import StoreUnavailable
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT

T = TypeVar("T")
NameT = TypeVar("NameT", bound=Hashable)

Record: TypeAlias = tuple[str, Hashable]
"""What is looked up: its kind and its id."""


class AwaitedReads(Protocol):
    """The look-ups of a round: those of `AsyncLookUps`.

    Attributes:
        keys_at_once: How many keys one call of :meth:`find_keys` may look up.
    """

    keys_at_once: int

    def find_keys(self, key_ids: Sequence[str]) -> Awaitable[Sequence[ApiKey | None]]: ...
    def find_session(self, session_id: str, /) -> Awaitable[Session | None]: ...
    def find_owner(self, owner_id: str, /) -> Awaitable[Owner[Any] | None]: ...
    def find_external_owner(
        self, identity: ExternalIdentity, /
    ) -> Awaitable[Owner[Any] | None]: ...


class LookUp(NamedTuple):
    """One look-up of a round.

    Attributes:
        of: The records that it reads.
        read: Makes the look-up; takes the ports, and returns an awaitable of the result.
        note: Takes the result.
    """

    of: Sequence[Record]
    read: Callable[[AwaitedReads], Awaitable[object]]
    note: Callable[[Any], None]


class Round(Generic[UserT]):
    """One round.

    Args:
        rules: As the authenticator has them.
        watched: The watches to verify. Those whose turn is the longest ago come first, because a round may be too
            short for all.
        clock: Where the time comes from.
    """

    def __init__(self, rules: Rules, watched: Iterable[Watched[UserT]], clock: Clock) -> None:
        self._rules = rules
        self._watched = sorted(
            (each for each in watched if each.refusal is None),
            # Of those that had their turn in the same round, the ones that it did not verify come last: their look-ups
            # may hang again.
            key=lambda each: (each.turn_at, -each.verified_at),
        )
        self._clock = clock
        # Before the first read.
        self._began = clock.monotonic()
        self._read = _Snapshot()
        self._had_time: set[Record] = set()
        self._failed = False

    def look_ups(self, keys_at_once: int) -> list[LookUp]:
        """The look-ups of this round, each once.

        Many keys are read at once, so all of them come first: even a round that is too short for all owners finds every
        revoked key. The look-ups of one watch stay together otherwise.

        Args:
            keys_at_once: How many keys one look-up may read.
        """
        listed: set[Record] = set()
        look_ups: list[LookUp] = []

        def is_new(kind: str, name: Hashable) -> bool:
            count = len(listed)
            listed.add((kind, name))
            return len(listed) > count

        def list_keys(principals: Iterable[Principal[UserT]]) -> None:
            key_ids = [each.key_id for each in principals if each.key_id is not None]
            new = [key_id for key_id in key_ids if is_new("key", key_id)]
            look_ups.extend(
                self._keys(new[n : n + keys_at_once]) for n in range(0, len(new), keys_at_once)
            )

        principals = [each.principal for each in self._watched]
        if keys_at_once > 1:
            list_keys(principals)
        for each in principals:
            list_keys([each])
            session_id = each.session_id if self._rules.checks_sessions else None
            if session_id is not None and is_new("session", session_id):
                look_ups.append(self._session(session_id))
            if each.identity is not None:
                if is_new("identity", each.identity):
                    look_ups.append(self._external_owner(each.identity))
            elif is_new("owner", each.owner.id):
                look_ups.append(self._owner(each.owner.id))
        return look_ups

    def has_time(self, look_up: LookUp) -> None:
        """Note that a look-up begins early in this round: if it is not answered, the fault is its own."""
        self._had_time.update(look_up.of)

    def failed(self, error: Exception) -> None:
        """Note that a look-up failed: this round does not verify the watches that depend on it."""
        if not self._failed:
            # Once in a round: in an outage all look-ups fail for the same reason.
            log_failure(logging.WARNING, "could not verify open connections", error)
        self._failed = True

    def settle(self, interval: float) -> None:
        """End every watch whose access has ended.

        Args:
            interval: After how many seconds the next round ends at the latest.
        """
        now, monotonic = self._clock.now(), self._clock.monotonic()
        for each in self._watched:
            try:
                refusal = each.verdict(self._rules, self._read, now)
            except Exception as error:  # noqa: BLE001 - after any error this watch is not verified
                if not isinstance(error, _NotRead):
                    self.failed(error)
                elif error.record in self._had_time:
                    each.turn_at = self._began
                if not each.is_overdue(monotonic, interval):
                    continue
                refusal = StoreUnavailable()
            if refusal is None:
                each.turn_at = self._began
                each.note_verified(self._began)
            elif each.refusal is None:
                each.end(refusal)

    def _keys(self, key_ids: Sequence[str]) -> LookUp:
        def note(found: Iterable[ApiKey | None]) -> None:
            records = {record.id: record for record in found if record is not None}
            self._read.keys.update((key_id, records.get(key_id)) for key_id in key_ids)

        def read(ports: AwaitedReads) -> Awaitable[object]:
            return ports.find_keys(key_ids)

        return LookUp([("key", key_id) for key_id in key_ids], read, note)

    def _session(self, session_id: str) -> LookUp:
        note = partial(self._read.sessions.__setitem__, session_id)

        def read(ports: AwaitedReads) -> Awaitable[object]:
            return ports.find_session(session_id)

        return LookUp([("session", session_id)], read, note)

    def _owner(self, owner_id: str) -> LookUp:
        note = partial(self._read.owners.__setitem__, owner_id)

        def read(ports: AwaitedReads) -> Awaitable[object]:
            return ports.find_owner(owner_id)

        return LookUp([("owner", owner_id)], read, note)

    def _external_owner(self, identity: ExternalIdentity) -> LookUp:
        note = partial(self._read.external_owners.__setitem__, identity)

        def read(ports: AwaitedReads) -> Awaitable[object]:
            return ports.find_external_owner(identity)

        return LookUp([("identity", identity)], read, note)


class _NotRead(Exception):
    """The look-up failed, took too long or did not begin.

    Args:
        record: What should have been read.
    """

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.record = record


class _Snapshot:
    """The results of a round's look-ups."""

    def __init__(self) -> None:
        self.keys: dict[str, ApiKey | None] = {}
        self.sessions: dict[str, Session | None] = {}
        self.owners: dict[str, Owner[Any] | None] = {}
        self.external_owners: dict[ExternalIdentity, Owner[Any] | None] = {}

    def find_key(self, key_id: str, /) -> ApiKey | None:
        return _get("key", self.keys, key_id)

    def find_session(self, session_id: str) -> Session | None:
        return _get("session", self.sessions, session_id)

    def find_owner(self, owner_id: str) -> Owner[Any] | None:
        return _get("owner", self.owners, owner_id)

    def find_external_owner(self, identity: ExternalIdentity) -> Owner[Any] | None:
        return _get("identity", self.external_owners, identity)


def _get(kind: str, table: dict[NameT, T], name: NameT) -> T:
    if name not in table:
        raise _NotRead((kind, name))
    return table[name]
