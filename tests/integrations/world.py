"""A small world for the adapters: people, credentials of every kind, and a way to break the store."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from msk_auth import (
    AsyncAuthenticator,
    Event,
    KeyFormat,
    KeyLimits,
    KeyRing,
    NotFound,
    Owner,
    Principal,
    Session,
    SigningKey,
    TokenProfile,
    local_principal,
)
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.testing import FrozenClock

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
MAX_AGE = timedelta(minutes=15)

SIGNING_KEY = SigningKey("test", "HS256", b"a secret of at least thirty-two bytes")
FOREIGN_KEY = SigningKey("test", "HS256", b"another secret of thirty-two bytes and more")


class Surprise(Exception):
    """What no handler expects. Its message is nobody's business."""


@dataclass(frozen=True)
class User:
    """The application's own class of users."""

    name: str


def describe(principal: Principal[User]) -> dict[str, Any]:
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
    "root": Owner("root", frozenset({"admin:config", "tasks:read"}), User("Root")),
}
# Owned keys and logged in once, and is gone since.
GONE = Owner("gone", frozenset({"tasks:read"}), User("Gone"))


class BreakableStore(AsyncMemoryKeyStore):
    """A memory store whose reads fail while `broken` holds an exception, and which counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: BaseException | None = None
        self.reads = 0

    async def find(self, key_id: str) -> Any:
        self.reads += 1
        if self.broken is not None:
            raise self.broken
        return await super().find(key_id)


@dataclass
class World:
    """Everything a case may name, and the authenticator that knows it."""

    clock: FrozenClock
    store: BreakableStore
    authenticator: AsyncAuthenticator[User]
    events: list[Event] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> bytes:
        """The text as bytes, `<name>` replaced by the credential or the id of that name."""
        filled = re.sub(r"<([a-z_]+)>", lambda match: self.names[match[1]], text)
        return filled.encode("latin-1")

    def bearer(self, name: str) -> list[tuple[bytes, bytes]]:
        """The headers that present a credential."""
        return [(b"authorization", b"Bearer " + self.names[name].encode())]


def token_profile(key: SigningKey = SIGNING_KEY) -> TokenProfile:
    return TokenProfile(issuer="https://tasks.test", audience="tasks", keys=KeyRing([key]))


async def make_world(limits: KeyLimits | None = None) -> World:
    """A fresh world in which it is `START`."""
    clock = FrozenClock(START)
    store = BreakableStore()
    profile = token_profile()
    events: list[Event] = []
    people = {**PEOPLE, "gone": GONE}

    async def find_owner(owner_id: str) -> Owner[User] | None:
        return people.get(owner_id)

    async def find_session(session_id: str) -> Session | None:
        owner_id, _, state = session_id.partition("-")
        return Session(session_id, owner_id, ended_at=START if state == "ended" else None)

    authenticator = AsyncAuthenticator(
        store,
        find_owner=find_owner,
        tokens=profile,
        find_session=find_session,
        key_limits=limits or KeyLimits(),
        on_event=events.append,
        clock=clock,
    )
    world = World(clock, store, authenticator, events)
    await _make_keys(world)
    _make_tokens(world, profile)
    del people["gone"]
    events.clear()
    return world


async def _make_keys(world: World) -> None:
    async def make(name: str, owner: Owner[User], **more: Any) -> None:
        principal = local_principal(owner, at=START)
        created = await world.authenticator.create_key(principal, name=name, **more)
        world.names[name] = created.value.reveal()
        world.names[f"{name}_id"] = created.record.id

    alice = PEOPLE["alice"]
    await make("key", alice)
    await make("key_read", alice, scopes=["tasks:read"])
    await make("key_nothing", alice, scopes=[])
    await make("key_expired", alice, lifetime=timedelta(days=1))
    await make("key_revoked", alice)
    await make("key_bob", PEOPLE["bob"])
    await make("key_disabled", PEOPLE["dora"])
    await make("key_orphan", GONE)
    await make("key_admin", PEOPLE["root"])
    at_work = local_principal(alice, at=START)
    await world.authenticator.revoke_key(at_work, world.names["key_revoked_id"])
    await world.authenticator.expire_key(at_work, world.names["key_expired_id"], at=START)
    fresh = KeyFormat().generate()
    world.names["key_unknown"] = fresh.reveal()
    world.names["id_unknown"] = fresh.id
    world.names["key_wrong"] = with_secret_of(fresh.reveal(), world.names["key"])
    world.names["key_typo"] = world.names["key"][:-7] + "~" + world.names["key"][-6:]
    world.names["key_checksum"] = world.names["key"][:-6] + "000000"


def with_secret_of(other: str, key: str) -> str:
    """The key's id with the other's secret, and the checksum that this takes."""
    from msk_auth.core.keys import checksum

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
        "jwt_old": issue("alice", authenticated_at=START - MAX_AGE - timedelta(seconds=1)),
        "jwt_just": issue("alice", authenticated_at=START - MAX_AGE),
        "jwt_expired": issue("alice", now=long_ago),
        "jwt_ended": issue("alice", session_id="alice-ended"),
        "jwt_of_another": issue("alice", session_id="bob-open"),
        "jwt_disabled": issue("dora"),
        "jwt_gone": issue("gone"),
        "jwt_forged": issue("alice", by=token_profile(FOREIGN_KEY)),
        "jwt_without_session": issue("alice", session_id=None),
    }
