"""A small world for an adapter under test: people, credentials of every kind, and a store that can be broken."""

from __future__ import annotations

import re
import string
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    Authenticator,
    KeyFormat,
    Owner,
    Principal,
    Session,
    SigningKey,
    TokenProfile,
    local_principal,
)
from msk_auth.errors import NotFound
from msk_auth.events import Event
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import FrozenClock

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
MAX_AGE = timedelta(minutes=15)

SIGNING_KEY = SigningKey("test", "HS256", b"a secret of at least thirty-two bytes")
FOREIGN_KEY = SigningKey("test", "HS256", b"another secret of thirty-two bytes and more")


def checksum(text: str) -> str:
    """The last six characters of a key that begins with this text: its CRC-32 in base62."""
    number, digits = zlib.crc32(text.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits = (string.digits + string.ascii_uppercase + string.ascii_lowercase)[digit] + digits
    return digits


class Surprise(Exception):
    """An error that no handler expects. Its message must not reach the client."""


@dataclass(frozen=True)
class User:
    """The application's own class of users."""

    name: str


def describe(principal: Principal[User]) -> dict[str, Any]:
    """What the routes of the application answer with, as JSON."""
    return {
        "owner": principal.owner.id,
        "name": principal.user.name,
        "kind": principal.kind.value,
        "permissions": sorted(principal.permissions),
    }


class TaskNotFound(NotFound):
    """An answer of the application's own."""

    code = "task_not_found"
    title = "The task was not found"


PEOPLE = {
    "alice": Owner("alice", frozenset({"tasks:read", "tasks:run"}), User("Alice")),
    "bob": Owner("bob", frozenset({"tasks:read"}), User("Bob")),
    "dora": Owner("dora", frozenset({"tasks:read"}), User("Dora"), disabled=True),
    # A service account: no person, and Alice may act for it.
    "org:acme": Owner("org:acme", frozenset({"tasks:read", "tasks:run"}), User("Acme")),
    "root": Owner("root", frozenset({"admin:config", "tasks:read"}), User("Root")),
}
# Owned keys and logged in once, and is gone since.
GONE = Owner("gone", frozenset({"tasks:read"}), User("Gone"))


class _BreakableMemory(MemoryKeyStore):
    def __init__(self) -> None:
        super().__init__()
        self.broken: BaseException | None = None
        self.reads: int = 0

    def find(self, key_id: str) -> ApiKey | None:
        self.reads += 1
        if self.broken is not None:
            raise self.broken
        return super().find(key_id)

    def snapshot(self) -> Callable[[], None]:
        """A function that brings back what is kept now."""
        kept = dict(self._records)

        def restore() -> None:
            with self._lock:
                # The same dictionary: a `BreakableStore` has it too.
                self._records.clear()
                self._records.update(kept)
                self.broken, self.reads = None, 0

        return restore


class BreakableStore(AsyncMemoryKeyStore):
    """A memory store whose reads fail while `broken` holds an exception, and which counts them.

    Attributes:
        blocking: The same keys for a blocking authenticator; breaks and counts together with this one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocking: _BreakableMemory = _BreakableMemory()
        # The two stores are one: the same keys and the same locks.
        shared = ("_records", "_leases", "_lock", "_lease_lock")
        vars(self).update({name: vars(self.blocking)[name] for name in shared})

    async def find(self, key_id: str) -> ApiKey | None:
        return self.blocking.find(key_id)

    @property
    def broken(self) -> BaseException | None:
        """What every read raises; None means that reads work."""
        return self.blocking.broken

    @broken.setter
    def broken(self, error: BaseException | None) -> None:
        self.blocking.broken = error

    @property
    def reads(self) -> int:
        """How many times a key was looked for."""
        return self.blocking.reads

    @reads.setter
    def reads(self, count: int) -> None:
        self.blocking.reads = count


@dataclass
class World:
    """Everything a case may name, and the authenticators that know it.

    Attributes:
        clock: Stands at `START`.
        store: Where the keys are.
        authenticator: For an asynchronous adapter.
        blocking: The same for an adapter that blocks, on the same keys.
        events: The events of the authenticators.
        names: The credentials and ids that cases name.
    """

    clock: FrozenClock
    store: BreakableStore
    authenticator: AsyncAuthenticator[User]
    blocking: Authenticator[User]
    events: list[Event] = field(default_factory=list[Event])
    names: dict[str, str] = field(default_factory=dict[str, str])
    restore: Callable[[], None] = field(default=lambda: None, repr=False)

    def reset(self) -> None:
        """Bring back the keys of the beginning, mend the store and forget the events."""
        self.restore()
        self.events.clear()

    def fill(self, text: str) -> bytes:
        """The text as bytes, `<name>` replaced by the credential or the id of that name."""
        return fill(text, self.names)

    def bearer(self, name: str) -> list[tuple[bytes, bytes]]:
        """The headers that present a credential."""
        return [(b"authorization", b"Bearer " + self.names[name].encode())]


def fill(text: str, names: Mapping[str, str]) -> bytes:
    """The text as bytes, each `<name>` replaced by its value."""
    return re.sub(r"<([a-z_]+)>", lambda match: names[match[1]], text).encode("latin-1")


def _token_profile(key: SigningKey = SIGNING_KEY) -> TokenProfile:
    return TokenProfile(issuer="https://tasks.test", audience="tasks", keys=[key])


def make_world(*, lease: timedelta | None = None) -> World:
    """A fresh world in which it is `START`.

    Args:
        lease: For how long a verification may be reused. With one the authenticators have no
            `on_event`, so that they may use the lease wherever they can.
    """
    clock = FrozenClock(START)
    store = BreakableStore()
    profile = _token_profile()
    events: list[Event] = []
    people = {**PEOPLE, "gone": GONE}

    def find_owner(owner_id: str) -> Owner[User] | None:
        return people.get(owner_id)

    def find_session(session_id: str) -> Session | None:
        owner_id, _, state = session_id.partition("-")
        return Session(session_id, owner_id, ended_at=START if state == "ended" else None)

    def may_act_for(principal: Principal[User], owner: Owner[User]) -> frozenset[str] | None:
        acts = principal.owner.id == "alice" and owner.id == "org:acme"
        return frozenset({"tasks:read"}) if acts else None

    async def may_act_for_async(
        principal: Principal[User], owner: Owner[User]
    ) -> frozenset[str] | None:
        return may_act_for(principal, owner)

    async def find_owner_async(owner_id: str) -> Owner[User] | None:
        return find_owner(owner_id)

    async def find_session_async(session_id: str) -> Session | None:
        return find_session(session_id)

    authenticator = AsyncAuthenticator(
        store,
        find_owner=find_owner_async,
        tokens=profile,
        find_session=find_session_async,
        may_act_for=may_act_for_async,
        on_event=events.append if lease is None else None,
        clock=clock,
        lease=lease,
        # The loop's own time, which does not stand still.
        watch_interval=timedelta(milliseconds=5),
    )
    blocking = Authenticator(
        store.blocking,
        find_owner=find_owner,
        tokens=profile,
        find_session=find_session,
        may_act_for=may_act_for,
        on_event=events.append if lease is None else None,
        clock=clock,
        lease=lease,
    )
    world = World(clock, store, authenticator, blocking, events)
    _make_keys(world)
    _make_tokens(world, profile)
    del people["gone"]
    world.restore = store.blocking.snapshot()
    world.reset()
    return world


def _make_keys(world: World) -> None:
    def make(name: str, owner: Owner[User], **more: Any) -> None:
        principal = local_principal(owner, at=START, interactive=True)
        created = world.blocking.create_key(principal, name=name, **more)
        world.names[name] = created.value.reveal()
        world.names[f"{name}_id"] = created.record.id

    alice = PEOPLE["alice"]
    make("key", alice)
    make("key_read", alice, scopes=["tasks:read"])
    make("key_nothing", alice, scopes=[])
    make("key_bound", alice, resources=["task:42"])
    # No client of a test has such an address (RFC 3849).
    make("key_elsewhere", alice, networks=["2001:db8:77::/48"])
    make("key_expired", alice, lifetime=timedelta(days=1))
    make("key_revoked", alice)
    make("key_bob", PEOPLE["bob"])
    make("key_disabled", PEOPLE["dora"])
    make("key_orphan", GONE)
    acme = PEOPLE["org:acme"]
    make("key_acme", acme, scopes=["tasks:read"])
    make("key_acme_run", acme, scopes=["tasks:read", "tasks:run"])
    make("key_admin", PEOPLE["root"])
    # In the store itself: an authenticator with a lease would wait its length out, and it is `START` still.
    stored = world.store.blocking
    stored.revoke(world.names["key_revoked_id"], owner_id=alice.id, at=START)
    stored.expire(world.names["key_expired_id"], owner_id=alice.id, at=START)
    fresh = KeyFormat().generate()
    world.names["key_unknown"] = fresh.reveal()
    world.names["id_unknown"] = fresh.id
    world.names["key_wrong"] = _with_secret_of(fresh.reveal(), world.names["key"])
    world.names["key_typo"] = world.names["key"][:-7] + "~" + world.names["key"][-6:]
    world.names["key_checksum"] = world.names["key"][:-6] + "000000"


def _with_secret_of(other: str, key: str) -> str:
    """The key's id with the other's secret, and the checksum that this takes."""
    body = key[:17] + other[17:-6]
    return body + checksum(body)


def _make_tokens(world: World, profile: TokenProfile) -> None:
    def issue(subject: str, *, by: TokenProfile = profile, **more: Any) -> str:
        more = {"now": START, "lifetime": HOUR, "session_id": f"{subject}-open", **more}
        return by.issue(subject=subject, **more)

    long_ago = START - 3 * HOUR
    world.names |= {
        "jwt": issue("alice"),
        "jwt_bob": issue("bob"),
        "jwt_admin": issue("root"),
        "jwt_admin_old": issue("root", authenticated_at=START - MAX_AGE - timedelta(seconds=1)),
        "jwt_old": issue("alice", authenticated_at=START - MAX_AGE - timedelta(seconds=1)),
        "jwt_just": issue("alice", authenticated_at=START - MAX_AGE),
        "jwt_expired": issue("alice", now=long_ago),
        "jwt_ended": issue("alice", session_id="alice-ended"),
        "jwt_of_another": issue("alice", session_id="bob-open"),
        "jwt_disabled": issue("dora"),
        "jwt_gone": issue("gone"),
        "jwt_forged": issue("alice", by=_token_profile(FOREIGN_KEY)),
        "jwt_without_session": issue("alice", session_id=None),
    }
