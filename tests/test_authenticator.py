"""The two drivers: what a failing store, look-up or hook does, and how uses of keys are written."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from tests.cases import case, refused_with
from tests.core.support import NOW, SECOND, SECRET, FrozenClock, MakeWorld, World, token
from tests.forked import in_child

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    KeyHasher,
    Owner,
    PepperRing,
    require_interactive,
)
from msk_auth._sync import leases
from msk_auth.errors import ConfigurationError, Problem, StoreUnavailable
from msk_auth.events import CredentialUsed, KeyEvent, Refusal
from msk_auth.integrations._asgi import OffLoopAuthenticator
from msk_auth.leases import seconds_to_wait
from msk_auth.stores import RecordedLease
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore

MINUTE = timedelta(minutes=1)
ON_A_LOOP = pytest.mark.anyio


# Fail closed (guarantee G5; ASVS 5.0, 16.5.2 and 16.5.3): an error is never an answer about the credential.

ERRORS = [
    ConnectionError("gone"),
    TimeoutError("slow"),
    OSError(28, "No space left on device"),
    RuntimeError("secret detail"),
    KeyError("k"),
    AssertionError(),
    MemoryError(),
    RecursionError(),
    StopIteration("a value"),
    StopIteration(None),
    StopAsyncIteration("a value"),
    ExceptionGroup("several", [ValueError("x")]),
    ConfigurationError("a set-up that cannot be safe"),
]


PLACES = ["store", "owner of a key", "owner of a token", "session"]


def place(world: World, where: str, error: BaseException) -> str:
    """Let something fail on the way of a credential; returns the credential."""
    key = world.create().value.reveal()
    world.forget_calls()
    match where:
        case "store":
            world.store.fail(error)
        case "owner of a key" | "owner of a token":
            world.owners["ann"] = error
        case "session":
            world.sessions["s1"] = error
    return key if where in {"store", "owner of a key"} else token()


@pytest.mark.parametrize("where", PLACES)
def test_whatever_fails_is_unavailable(
    make_world: MakeWorld, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    for error in ERRORS:
        with case(error):
            world = make_world()
            credential = place(world, where, error)
            caplog.clear()
            with pytest.raises(StoreUnavailable) as refused:
                world.enter(credential)
            assert (refused.value.status, refused.value.retry_after) == (503, 5)
            assert refused.value.challenge() is None
            assert refused.value.detail == StoreUnavailable.default_detail
            assert world.events == [Refusal(NOW, "store_unavailable", None)]
            (logged,) = [record for record in caplog.records if record.name == "msk_auth"]
            assert logged.levelno == logging.ERROR
            # An outage would log the same traceback for every request.
            assert (logged.exc_info is None) == isinstance(error, OSError)
            world.store.fails = {}
            world.call("flush")
            assert "touch" not in world.store.calls


@pytest.mark.parametrize("where", PLACES)
def test_what_ends_the_process_or_the_task_passes_through(
    make_world: MakeWorld, where: str
) -> None:
    for error in (KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), GeneratorExit()):
        with case(error):
            world = make_world()
            credential = place(world, where, error)
            with pytest.raises(type(error)) as passed:
                world.enter(credential)
            if not isinstance(error, asyncio.CancelledError):
                assert passed.value is error
            assert world.events == []


OTHER_TYPES = [0, 1, True, "", "record", b"", [], {}, {"id": "x", "digest": "y"}, 1j, Owner]


@pytest.mark.parametrize("where", PLACES)
def test_a_result_of_another_type_is_refused(make_world: MakeWorld, where: str) -> None:
    for answer in OTHER_TYPES:
        with case(answer):
            world = make_world()
            credential = place(world, where, RuntimeError())
            world.store.fails = {}
            world.store.answers = {"find": answer} if where == "store" else {}
            for table in (world.owners, world.sessions):
                for name, value in table.items():
                    if isinstance(value, RuntimeError):
                        table[name] = answer
            with pytest.raises(Problem) as refused:
                world.enter(credential)
            assert refused.value.status in {401, 503}
            assert len(world.events) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": None},
        {"digest": b"sha256:"},
        {"expires_at": "2030-01-01"},
        {"expires_at": NOW.replace(tzinfo=None)},
    ],
    ids=repr,
)
def test_a_record_with_members_of_other_types_is_refused(
    world: World, changes: dict[str, Any]
) -> None:
    created = world.create()
    world.store.put(replace(created.record, **changes))
    with pytest.raises(StoreUnavailable):
        world.enter(created.value.reveal())


def test_an_answer_of_the_application_is_not_changed(world: World) -> None:
    class Overloaded(Problem):
        status, code, title = 503, "overloaded", "Too much to do"

    error = Overloaded("Later.")
    credential = place(world, "owner of a key", error)
    with pytest.raises(Overloaded) as refused:
        world.enter(credential)
    assert refused.value is error
    assert world.events == [Refusal(NOW, "overloaded", None)]


# The hook: called for every event, and without influence on any answer.


@pytest.mark.parametrize("error", [RuntimeError("hook"), StopIteration(), TimeoutError()])
def test_a_hook_that_fails_changes_nothing(
    make_world: MakeWorld, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def hook(event: object) -> None:
        raise error

    world = make_world(on_event=hook)
    created = world.create()
    assert world.enter(created.value.reveal()).key_id == created.record.id
    world.store.answers["find"] = None
    with refused_with("key_unknown"):
        world.enter(created.value.reveal())
    failures = [record.getMessage() for record in caplog.records if record.name == "msk_auth"]
    assert [failure.partition(": ") for failure in failures] == [
        (f"the on_event hook failed on {event}", ": ", failures[0].partition(": ")[2])
        for event in ("KeyEvent 'created'", "CredentialUsed", "Refusal")
    ]
    assert type(error).__name__ in failures[0]


def test_no_event_holds_a_secret(world: World) -> None:
    created = world.create()
    world.enter(created.value.reveal())
    successor = world.call("rotate_key", world.login(), created.record.id)
    with pytest.raises(Problem):
        world.enter(created.value.reveal())
    world.call("revoke_key", world.login(), successor.record.id)
    world.enter(token())
    shown = repr(world.events)
    for secret in (created.value.reveal(), successor.value.reveal(), token()):
        assert secret[17:] not in shown
    assert len(world.events) == 6


@ON_A_LOOP
async def test_an_async_hook_is_awaited_and_its_failure_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[object] = []

    async def hook(event: object) -> None:
        await asyncio.sleep(0)
        seen.append(event)
        if len(seen) == 3:
            raise RuntimeError("hook")

    ann = Owner("ann", frozenset({"read"}), "Ann")
    world = World("sync")
    auth = AsyncAuthenticator(
        AsyncMemoryKeyStore(), find_owner=_owner(ann), on_event=hook, clock=world.clock
    )
    created = await auth.create_key(world.login(), name="ci")
    principal = await auth.authenticate([f"Bearer {created.value.reveal()}"])
    assert (await auth.revoke_key(world.login(), created.record.id)).revoked_at == NOW
    assert seen[:2] == [
        KeyEvent("created", NOW, created.record, world.login()),
        CredentialUsed(NOW, principal),
    ]
    assert "the on_event hook failed on KeyEvent 'revoked'" in caplog.text


def _owner(owner: Owner[str]) -> Callable[[str], Any]:
    async def find_owner(owner_id: str) -> Owner[str] | None:
        return owner if owner_id == owner.id else None

    return find_owner


# Authorising.


def test_authorising_is_the_policys_check_at_this_moment(world: World) -> None:
    login = world.enter(token())
    policy = require_interactive("tasks:run", max_age=MINUTE)
    world.clock.advance(MINUTE)
    assert world.auth.authorize(login, policy) is None
    world.clock.advance(SECOND)
    with refused_with("login_too_old"):
        world.auth.authorize(login, policy)


# Uses of keys: collected in memory, written in batches, never inside the decision.


def test_a_flush_writes_each_key_once_with_its_last_use(world: World) -> None:
    first, second = world.create(), world.create()
    world.forget_calls()
    for _ in range(5):
        world.clock.advance(SECOND)
        world.enter(first.value.reveal())
    world.enter(second.value.reveal())
    assert set(world.store.calls) == {"find"}
    world.call("flush")
    ((batch,), _) = world.store.arguments[-1]
    assert batch == {first.record.id: NOW + 5 * SECOND, second.record.id: NOW + 5 * SECOND}
    assert world.store.get(first.record.id).last_used_at == NOW + 5 * SECOND
    world.forget_calls()
    world.call("flush")
    assert world.store.calls == []


def test_a_flush_that_fails_is_logged_and_tried_again_with_the_newest(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    used, other = world.create(), world.create()
    world.enter(used.value.reveal())
    world.enter(other.value.reveal())
    world.store.fails = {"touch": ConnectionError("gone")}
    assert world.call("flush") is None
    assert "could not write when keys were last used" in caplog.text
    world.clock.advance(SECOND)
    world.enter(used.value.reveal())
    world.call("flush")
    world.store.fails = {}
    world.call("flush")
    ((batch,), _) = world.store.arguments[-1]
    assert batch == {used.record.id: NOW + SECOND, other.record.id: NOW}
    assert world.store.get(used.record.id).last_used_at == NOW + SECOND


def test_an_upgrade_that_fails_is_tried_again(make_world: MakeWorld) -> None:
    world = make_world(hasher=KeyHasher(PepperRing({"1": SECRET}, current="1")))
    created = world.create()
    plain = KeyHasher().digest(created.value.reveal())
    world.store.put(replace(created.record, digest=plain))
    world.enter(created.value.reveal())
    world.store.fails = {"replace_digest": ConnectionError("gone")}
    world.call("flush")
    assert world.store.get(created.record.id).digest == plain
    world.store.fails = {}
    world.call("flush")
    assert world.store.get(created.record.id).digest == created.record.digest


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), asyncio.CancelledError()], ids=["interrupt", "cancellation"]
)
def test_a_flush_that_is_interrupted_loses_nothing(
    make_world: MakeWorld, error: BaseException
) -> None:
    world = make_world()
    created = world.create()
    world.enter(created.value.reveal())
    world.store.fails = {"touch": error}
    with pytest.raises(type(error)):
        world.call("flush")
    world.store.fails = {}
    world.call("flush")
    assert world.store.get(created.record.id).last_used_at == NOW


def test_a_blocking_authenticator_flushes_when_a_minute_is_over(world: World) -> None:
    key = world.create().value.reveal()
    world.enter(key)
    world.clock.advance(MINUTE - SECOND)
    world.auth.flush_if_due()
    assert "touch" not in world.store.calls
    world.clock.advance(SECOND)
    world.auth.flush_if_due()
    assert world.store.calls.count("touch") == 1
    world.enter(key)
    world.auth.flush_if_due()
    assert world.store.calls.count("touch") == 1
    world.clock.advance(MINUTE)
    world.auth.flush_if_due()
    assert world.store.calls.count("touch") == 2


def test_a_flush_that_failed_waits_for_the_next_minute(world: World) -> None:
    world.enter(world.create().value.reveal())
    world.store.fails = {"touch": ConnectionError()}
    for _ in range(3):
        world.clock.advance(MINUTE)
        world.auth.flush_if_due()
        world.auth.flush_if_due()
    assert world.store.calls.count("touch") == 3


def test_closing_a_blocking_authenticator_flushes(world: World) -> None:
    key = world.create().value.reveal()
    with world.auth as auth:
        assert auth is world.auth
        world.enter(key)
    assert world.store.calls.count("touch") == 1
    world.enter(key)
    with pytest.raises(ZeroDivisionError), world.auth:
        _ = 1 / 0
    assert world.store.calls.count("touch") == 2


def test_many_threads_lose_no_use() -> None:
    world = World("sync", on_event=None)
    created = [world.create() for _ in range(20)]
    start = threading.Barrier(8)

    def use(_: int) -> None:
        start.wait()
        for key in created:
            for _ in range(5):
                world.enter(key.value.reveal())
            world.auth.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    world.auth.flush()
    for key in created:
        assert world.store.get(key.record.id).last_used_at == NOW


# Leases (design, section 6): what was verified is used again for a moment, and a change that ends access waits for its end.
# That this is exact is shown in `tests/lease/`.

LEASE = timedelta(milliseconds=250)


def test_within_its_lease_a_verification_is_used_again(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    key = world.create().value.reveal()
    world.forget_calls()
    first = world.enter(key)
    assert world.store.calls == ["recorded_leases", "record_lease", "find"]
    assert [each.duration for each in world.store.inner.recorded_leases()] == [LEASE]
    world.clock.advance(LEASE - timedelta(microseconds=1))
    assert world.enter(key) is first
    assert world.store.calls == ["recorded_leases", "record_lease", "find"]
    assert world.events == [
        CredentialUsed(NOW, first),
        CredentialUsed(world.clock.moment, first),
    ]
    world.clock.advance(timedelta(microseconds=1))
    assert world.enter(key) is not first
    assert world.store.calls == [
        "recorded_leases",
        "record_lease",
        "find",
        "recorded_leases",
        "find",
    ]


def test_the_principal_of_a_leased_credential_is_cached(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE, on_event=None)
    cached = world.auth.cached_principal
    for credential in (world.create().value.reveal(), token()):
        header = f"Bearer {credential}"
        assert cached([header]) is None
        # An entry is found under any spelling of its header. Only `authenticate` reads other spellings.
        principal = world.call("authenticate", [f"bearer   {credential}"])
        assert world.enter(credential) is principal
        assert cached([header]) is cached([header.encode()]) is principal
        for other in ([f"{header}x"], [header] * 2, [f"bearer   {credential}"]):
            assert cached(other) is None
    world.clock.advance(LEASE)
    assert cached([header]) is None


def test_all_spellings_of_a_header_share_one_entry(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msk_auth.leases.MAX_ENTRIES", 2)
    world = make_world(lease=LEASE)
    other = world.create().value.reveal()
    first = world.enter(other)
    for credential in (world.create().value.reveal(), token()):
        principal = world.enter(credential)
        world.forget_calls()
        for number in range(200):
            scheme = "".join(
                letter.upper() if number >> place & 1 else letter.lower()
                for place, letter in enumerate("bearer")
            )
            header = f"{scheme}{' ' * (1 + number)}{credential}{' ' * (number % 3)}"
            sent = header.encode() if number % 2 else header
            assert world.call("authenticate", [sent]) is principal
        assert world.store.calls == world.asked_owners == []
        assert len(world.auth._cache._entries) == 2
    assert world.enter(other) is not first


class Forwards:
    """Authenticates in a way of its own."""

    def authenticate(self, authorization: Any, *more: Any) -> Any:
        return super().authenticate(authorization, *more)  # type: ignore[misc]


@pytest.mark.parametrize(
    "options",
    [{"on_event": None}, {"lease": LEASE}, {"lease": LEASE, "on_event": None, "mixin": Forwards}],
    ids=["without a lease", "with a hook", "in another way"],
)
def test_no_principal_is_cached_without_a_lease_with_a_hook_or_with_an_own_authenticate(
    make_world: MakeWorld, options: dict[str, Any]
) -> None:
    world = make_world(**options)
    key = world.create().value.reveal()
    assert world.enter(key).owner.id == "ann"
    assert world.auth.cached_principal is None


def test_refusals_are_never_used_again(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    created = world.create()
    ann = world.owners["ann"]
    world.owners["ann"] = replace(ann, disabled=True)
    for _ in range(2):
        with refused_with("owner_disabled"):
            world.enter(created.value.reveal())
    world.owners["ann"] = ann
    assert world.enter(created.value.reveal()).key_id == created.record.id


@pytest.mark.parametrize("method", ["revoke_key", "delete_key", "rotate_key", "expire_key"])
def test_a_change_that_ends_access_clears_the_cache_and_waits(
    make_world: MakeWorld, method: str
) -> None:
    world = make_world(lease=LEASE)
    created = world.create()
    world.enter(created.value.reveal())
    world.forget_calls()
    ends = {"at": NOW + LEASE / 2} if method == "expire_key" else {}
    world.call(method, world.login(), created.record.id, **ends)
    # The longest lease is read after the commit.
    assert world.store.calls[-2:] == [method.removesuffix("_key"), "recorded_leases"]
    (slept,) = world.clock.slept
    assert slept > LEASE.total_seconds()
    # The frozen clock slept without moving, and no lease has ended since: this process's own copy is gone.
    world.clock.advance(LEASE / 2)
    with refused_with("key_expired" if ends else "key_revoked"):
        world.enter(created.value.reveal())


def test_a_change_that_ends_no_access_waits_for_nothing(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    created = world.create()
    world.enter(created.value.reveal())
    world.call("update_key", world.login(), created.record.id, name="edited")
    assert world.clock.slept == []


@pytest.mark.parametrize(
    ("own", "recorded", "covered"),
    [(None, [], 0), (None, [3], 3), (2, [], 2), (2, [1], 2), (2, [3, 1], 3), (2, [1, 4], 4)],
)
def test_the_longest_lease_of_any_process_is_waited_for(
    make_world: MakeWorld, own: int | None, recorded: list[int], covered: int
) -> None:
    world = make_world(lease=None if own is None else timedelta(seconds=own))
    for seconds in recorded:
        lease = RecordedLease(timedelta(seconds=seconds), f"h{seconds}", 1)
        world.store.inner.record_lease(lease)
    world.call("await_lease_expiry")
    assert world.clock.slept == [seconds_to_wait(timedelta(seconds=covered))]


def test_an_application_waits_for_leases_after_it_ended_access(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    world.enter(token())
    world.owners["ann"] = replace(world.owners["ann"], disabled=True)
    world.call("await_lease_expiry")
    assert len(world.clock.slept) == 1
    with refused_with("token_revoked"):
        world.enter(token())


SHORT = RecordedLease(timedelta(milliseconds=50), "short", 1)


def test_an_entry_that_cannot_be_removed_is_not_waited_for(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    world.store.inner.record_lease(SHORT)
    for _ in range(3):
        world.call("await_lease_expiry")
        assert world.clock.slept[-1] > 0
        world.clock.advance(70 * SECOND)
    world.store.fails = {"forget_lease": ConnectionError("read only")}
    world.call("await_lease_expiry")
    assert world.clock.slept[-1] == 0
    assert "could not remove a lease that is not in use" in caplog.text


def test_where_the_longest_lease_is_not_known_the_longest_allowed_is_waited_for(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(lease=LEASE)
    error = ValueError("no table")
    world.store.fails = {"recorded_leases": error}
    created = world.create()
    assert world.call("revoke_key", world.login(), created.record.id).revoked_at == NOW
    assert world.clock.slept[0] > 5
    (logged,) = caplog.records
    assert "could not read the longest lease" in logged.getMessage()
    assert logged.levelno == logging.WARNING
    assert logged.exc_info is not None
    assert logged.exc_info[1] is error


def test_a_clock_that_fails_is_a_503(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    created = world.create()

    def fail(*_: object) -> Any:
        raise OSError("no such clock")

    for name in ("sleep", "async_sleep"):
        monkeypatch.setattr(world.clock, name, fail)
    revoke = ["revoke_key", world.login(), created.record.id]
    for operation in (revoke, ["await_lease_expiry"]):
        with pytest.raises(StoreUnavailable):
            world.call(*operation)
    monkeypatch.setattr(world.clock, "now", fail)
    for operation in (revoke, ["authenticate", [f"Bearer {created.value.reveal()}"]]):
        with pytest.raises(StoreUnavailable):
            world.call(*operation)


@pytest.mark.parametrize("step", ["recorded_leases", "record_lease"])
def test_a_lease_that_cannot_be_recorded_is_not_used(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    world = make_world(lease=LEASE)
    key = world.create().value.reveal()
    error = ValueError("no table")
    world.store.fails = {step: error}
    world.enter(key)
    world.enter(key)
    assert world.store.calls.count("find") == 2
    (logged,) = caplog.records
    assert "could not record the lease" in logged.getMessage()
    assert logged.levelno == logging.WARNING
    assert logged.exc_info is not None
    assert logged.exc_info[1] is error
    # The register is not asked again for a second: no request should wait for it in vain.
    assert world.store.calls.count(step) == 1
    world.store.fails = {}
    world.clock.advance(SECOND - timedelta(microseconds=1))
    world.enter(key)
    assert world.store.calls.count("find") == 3
    world.clock.advance(timedelta(microseconds=1))
    world.enter(key)
    world.enter(key)
    assert world.store.calls.count("find") == 4


@pytest.mark.parametrize("headers", [[], ["Bearer x"] * 2, ["Bearer " + "x" * 9000], ["é"]])
def test_what_could_never_be_accepted_takes_no_place(
    make_world: MakeWorld, headers: list[str]
) -> None:
    world = make_world(lease=LEASE)
    with pytest.raises(Problem):
        world.call("authenticate", headers)
    assert world.store.calls == []


class Proxy:
    """A store in front of another one, as for metrics: what it has is not what its class has."""

    def __init__(self, store: object, **hidden: object) -> None:
        self._store = store
        vars(self).update(hidden)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Measured(MemoryKeyStore):
    """A store that adds to one."""


@pytest.mark.parametrize("store", [Proxy(MemoryKeyStore()), Measured(), Proxy(Measured())])
def test_a_store_behind_a_proxy_can_record_leases(store: Any) -> None:
    auth: Authenticator[str] = Authenticator(
        store, find_owner=World("sync").owners.get, lease=LEASE, clock=FrozenClock()
    )
    created = auth.create_key(World("sync").login(), name="ci")
    header = [f"Bearer {created.value.reveal()}"]
    assert auth.authenticate(header) is auth.authenticate(header)


@ON_A_LOOP
async def test_a_proxy_shares_round_trips_as_the_store_behind_it_does() -> None:
    class Batching(AsyncMemoryKeyStore):
        batches = 0

        async def find(self, key_id: str) -> Any:
            await asyncio.sleep(0)
            return await super().find(key_id)

        async def find_many(self, key_ids: Any) -> Any:
            self.batches += 1
            return [await self.find(key_id) for key_id in key_ids]

    for hidden in ({}, {"find_many": None}, {"find_many": "no method"}):
        store = Batching()
        proxy: Any = Proxy(store, **hidden)
        auth: AsyncAuthenticator[str] = AsyncAuthenticator(
            proxy, find_owner=_owner(World("sync").owners["ann"])
        )
        created = await auth.create_key(World("sync").login(), name="ci")
        header = [f"Bearer {created.value.reveal()}"]
        await asyncio.gather(*(auth.authenticate(header) for _ in range(10)))
        assert (store.batches > 0) == (not hidden)


@ON_A_LOOP
@pytest.mark.usefixtures("no_wait_limit")
@pytest.mark.parametrize("networks", [None, ["203.0.113.0/24"]])
async def test_many_requests_with_one_credential_read_once(networks: list[str] | None) -> None:
    here = Awaiting(lease=LEASE)
    # The address of each request is checked after the outcome is shared.
    keys = [await here.create(networks=networks) for _ in range(2)]
    find, reads = here.store.find, []

    async def slow_find(key_id: str) -> Any:
        reads.append(key_id)
        await asyncio.sleep(0.01)
        return await find(key_id)

    here.store.find = slow_find  # type: ignore[method-assign]
    await asyncio.gather(*(here.use(key, address="203.0.113.7") for key in keys * 50))
    assert reads == [key.record.id for key in keys]
    with pytest.raises(Problem):
        await here.auth.authenticate(["Bearer x"])
    # What is waited for is forgotten when it is done, also where it failed.
    assert flights(here.auth) == {}


class SlowToAnswer(MemoryKeyStore):
    """A store whose reads wait until a test releases them, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.is_reading = threading.Event()
        self.may_answer = threading.Event()
        self.fails_first = False

    def find(self, key_id: str) -> Any:
        self.reads.append(key_id)
        first = len(self.reads) == 1
        self.is_reading.set()
        assert self.may_answer.wait(60)
        if first and self.fails_first:
            raise ConnectionError("lost")
        return super().find(key_id)


def waiting_threads(auth: Authenticator[str]) -> Callable[[], int]:
    """How many threads wait for another one's verification."""
    return lambda: sum(len(finished._cond._waiters) for finished in flights(auth).values())


def flights(auth: Any) -> dict[Any, Any]:
    table: dict[Any, Any] = auth._leases._single_flight._flights
    return table


@pytest.fixture
def no_wait_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request gives up waiting for another one, however slow the machine is."""
    monkeypatch.setattr(leases, "MAX_WAIT_SECONDS", 60)


@pytest.mark.usefixtures("no_wait_limit")
@pytest.mark.parametrize("fails", [False, True])
def test_threads_with_one_credential_read_once_and_each_for_itself_after_a_failure(
    fails: bool,
) -> None:
    store = SlowToAnswer()
    store.fails_first = fails
    # A lease would end while threads wait on a loaded machine.
    auth = Authenticator(
        store, find_owner=World("sync").owners.get, lease=LEASE, clock=FrozenClock()
    )
    created = auth.create_key(World("sync").login(), name="ci")
    header = [f"Bearer {created.value.reveal()}"]

    def use() -> str:
        try:
            return str(auth.authenticate(header).key_id)
        except StoreUnavailable:
            return "unavailable"

    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(use)
        assert store.is_reading.wait(60)
        others = [threads.submit(use) for _ in range(7)]
        waiting = waiting_threads(auth)
        deadline = threading.Event()
        while waiting() < 7:
            assert not deadline.wait(0.002)
        store.may_answer.set()
        results = [future.result(60) for future in (first, *others)]
    key_id = created.record.id
    assert results == ["unavailable" if fails else key_id] + [key_id] * 7
    assert len(store.reads) > 1 if fails else len(store.reads) == 1
    assert flights(auth) == {}


# The async driver's own: its flusher, cancellation, slow digests off the loop.


class Awaiting:
    """An async authenticator that is used from within a running loop."""

    def __init__(self, **options: Any) -> None:
        self.world = World("sync")
        self.store = AsyncMemoryKeyStore()
        self.auth: AsyncAuthenticator[str] = AsyncAuthenticator(
            self.store,
            find_owner=_owner(self.world.owners["ann"]),
            clock=self.world.clock,
            **options,
        )

    async def create(self, **options: Any) -> Any:
        return await self.auth.create_key(self.world.login(), name="ci", **options)

    async def use(self, created: Any, **options: Any) -> None:
        await self.auth.authenticate([f"Bearer {created.value.reveal()}"], **options)

    async def last_used_at(self, created: Any) -> object:
        record = await self.store.find(created.record.id)
        assert record is not None
        return record.last_used_at


@ON_A_LOOP
async def test_an_open_authenticator_flushes_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Awaiting()
    created = await here.create()
    minutes: asyncio.Queue[None] = asyncio.Queue()
    sleep, waited = asyncio.sleep, []

    async def wait_for_a_minute(seconds: float) -> None:
        waited.append(seconds)
        await minutes.get()

    async with here.auth:
        monkeypatch.setattr(asyncio, "sleep", wait_for_a_minute)
        await here.use(created)
        for _ in range(3):
            await sleep(0)
        assert await here.last_used_at(created) is None
        minutes.put_nowait(None)
        for _ in range(10):
            await sleep(0)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        assert await here.last_used_at(created) == NOW
    assert waited[0] == 60


@ON_A_LOOP
async def test_closing_an_async_authenticator_flushes_and_leaves_no_task() -> None:
    here = Awaiting()
    created = await here.create()
    before = asyncio.all_tasks()
    async with here.auth as auth:
        assert auth is here.auth
        assert len(asyncio.all_tasks() - before) == 1
        await here.use(created)
    assert await here.last_used_at(created) == NOW
    assert asyncio.all_tasks() <= before


def test_an_authenticator_cannot_be_opened_on_another_event_loop_than_asyncio_s() -> None:
    async def find_owner(owner_id: str) -> Owner[str]:
        return Owner(owner_id, frozenset(), owner_id)

    auth = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)
    opening = auth.__aenter__()
    # As trio runs it: no loop of asyncio is there.
    with pytest.raises(ConfigurationError, match="needs asyncio, and this event loop is another"):
        opening.send(None)
    assert not auth.is_open


@ON_A_LOOP
async def test_an_authenticator_that_is_opened_twice_has_one_flusher() -> None:
    here = Awaiting()
    before = asyncio.all_tasks()
    async with here.auth, here.auth:
        assert len(asyncio.all_tasks() - before) == 1
    assert asyncio.all_tasks() <= before
    async with here.auth:
        assert len(asyncio.all_tasks() - before) == 1


def make_awaited(kind: str) -> AsyncAuthenticator[str]:
    ann = Owner("ann", frozenset({"run"}), "Ann")
    if kind == "async":
        return AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=_owner(ann))
    blocking = Authenticator(MemoryKeyStore(), find_owner=lambda _: ann)
    return OffLoopAuthenticator(blocking)


async def flushers_here() -> int:
    return sum(task.get_name() == "msk_auth flush" for task in asyncio.all_tasks())


@pytest.mark.parametrize("kind", ["async", "off the loop"])
def test_each_event_loop_opens_and_closes_an_authenticator_for_itself(kind: str) -> None:
    auth = make_awaited(kind)

    def close(loop: BlockingPortal) -> None:
        # With a limit: what waits for a task of another loop waits for good.
        loop.start_task_soon(auth.__aexit__, None, None, None).result(60)

    with start_blocking_portal() as one, start_blocking_portal() as two:
        one.call(auth.__aenter__)
        two.call(auth.__aenter__)
        assert (one.call(flushers_here), two.call(flushers_here)) == (1, 1)
        close(two)
        assert (one.call(flushers_here), two.call(flushers_here)) == (1, 0)
        assert auth.is_open
        close(one)
        assert (one.call(flushers_here), two.call(flushers_here)) == (0, 0)
        assert not auth.is_open


@ON_A_LOOP
@pytest.mark.parametrize("kind", ["async", "off the loop"])
async def test_a_forked_child_opens_and_closes_what_its_parent_has_open(kind: str) -> None:
    auth = make_awaited(kind)

    async def use() -> list[tuple[bool, int]]:
        seen = [(auth.is_open, await flushers_here())]
        async with auth:
            seen.append((auth.is_open, await flushers_here()))
        return [*seen, (auth.is_open, await flushers_here())]

    async with auth:
        assert in_child(lambda: asyncio.run(use())) == [(False, 0), (True, 1), (False, 0)]
        assert (auth.is_open, await flushers_here()) == (True, 1)
    assert (auth.is_open, await flushers_here()) == (False, 0)


@ON_A_LOOP
async def test_an_authenticator_closed_in_the_middle_of_a_flush_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Awaiting()
    created = await here.create()
    writing = asyncio.Event()
    touch = here.store.touch

    async def stuck(last_used: Any) -> None:
        writing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(here.store, "touch", stuck)
    monkeypatch.setattr("msk_auth._async.primitives.FLUSH_SECONDS", 0.001)
    async with here.auth:
        await here.use(created)
        await writing.wait()
        monkeypatch.setattr(here.store, "touch", touch)
    assert await here.last_used_at(created) == NOW


@ON_A_LOOP
async def test_closing_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Awaiting()
    created = await here.create()

    async def stuck(last_used: Any) -> None:
        await asyncio.Event().wait()

    with anyio.move_on_after(0.05) as scope:
        async with here.auth:
            await here.use(created)
            monkeypatch.setattr(here.store, "touch", stuck)
    assert scope.cancelled_caught


@ON_A_LOOP
async def test_a_request_that_is_cancelled_ends_at_once_and_reports_nothing() -> None:
    events: list[object] = []
    here = Awaiting(on_event=events.append)
    created = await here.create()
    events.clear()
    here.store.find = lambda _: asyncio.Event().wait()  # type: ignore[method-assign, assignment]
    with anyio.move_on_after(0.02) as scope:
        await here.use(created)
    assert scope.cancelled_caught
    assert events == []


@ON_A_LOOP
async def test_a_slow_digest_leaves_the_loop_free_and_is_bounded() -> None:
    at_once, most, release = 0, 0, threading.Event()
    lock = threading.Lock()

    class Slow:
        def recognises(self, encoded: str) -> bool:
            return encoded == "$slow$"

        def verify(self, key: str, encoded: str) -> bool:
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            release.wait(60)
            with lock:
                at_once -= 1
            return True

    here = Awaiting(hasher=KeyHasher(slow=Slow()))
    created = await here.create()
    await here.store.replace_digest(created.record.id, old=created.record.digest, new="$slow$")
    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(here.use, created)
        with anyio.fail_after(60):
            while at_once < 2:  # noqa: ASYNC110 - threads set it
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert at_once == 2
        release.set()
    assert most == 2
