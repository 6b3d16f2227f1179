"""What keys did: counted in memory, written in batches, never inside a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from tests.core.support import NOW, SECOND, ScriptedStore, World
from tests.forked import in_child

import msk_auth._async.activity
import msk_auth._sync.activity
from msk_auth import (
    ActivitySettings,
    AdminKeys,
    AsyncAdminKeys,
    AsyncAuthenticator,
    Authenticator,
    CredentialKind,
    DailyRequests,
    KeyActivity,
    LastRequest,
    Owner,
    Principal,
    require,
    require_interactive,
)
from msk_auth.authenticator import activity as collecting
from msk_auth.core.activity import entry_to_keep, key_of
from msk_auth.core.policy import any_credential
from msk_auth.errors import (
    AddressNotAllowed,
    ConfigurationError,
    InteractiveRequired,
    KeyExpired,
    KeyMalformed,
    KeyNotFound,
    KeyRevoked,
    KeyUnknown,
    LoginTooOld,
    OwnerDisabled,
    PermissionDenied,
    Problem,
    StoreUnavailable,
    TokenExpired,
)
from msk_auth.flows import run_awaiting, run_blocking
from msk_auth.http import admission
from msk_auth.stores import ActivityEntry
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore

MakeWorld = Callable[..., World]
DAY = timedelta(days=1)
TODAY = NOW.date()
HALVES = (msk_auth._async.activity, msk_auth._sync.activity)
EVERYTHING = ActivitySettings(addresses=True, user_agents=True)


@pytest.fixture(autouse=True)
def _store_of_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"record_activity", "activity", "delete_activity", "list_all"}
    monkeypatch.setattr(ScriptedStore, "METHODS", ScriptedStore.METHODS | more)


class Site:
    """An application behind an adapter, without the adapter."""

    def __init__(self, make_world: MakeWorld, activity: object = EVERYTHING, **options: Any):
        self.world = make_world(activity=activity, **options)
        self.created = self.world.create(scopes=["tasks:read"])
        self.key_id = self.created.record.id

    def request(
        self,
        *policies: Any,
        memory: dict[str, Any] | None = None,
        route: str | None = "GET /tasks",
        **options: Any,
    ) -> Problem | None:
        """A request with the key that passes some guards; the problem of the one that refuses it."""
        memory = {} if memory is None else memory
        for policy in policies or (require("tasks:read"),):
            flow = admission.admit(
                memory,
                self.world.auth,
                (f"Bearer {self.created.value.reveal()}",),
                policy,
                **{
                    "address": "203.0.113.7",
                    "describe": lambda _memory: (route, "curl/8.5"),
                    **options,
                },
            )
            try:
                if self.world._runner is None:
                    run_blocking(flow, self.world.auth)
                else:
                    self.world._runner.run(run_awaiting(flow, self.world.auth))
            except Problem as problem:
                return problem
        return None

    def flush(self) -> None:
        self.world.call("flush")

    def found(self) -> KeyActivity:
        """What is stored."""
        found = self.world.store.inner.activity(self.key_id, since=None)
        assert isinstance(found, KeyActivity)
        return found

    def counts(self) -> list[tuple[int, int]]:
        """The accepted and the refused requests of each day, when everything is written."""
        self.flush()
        return [(accepted, refused) for _, accepted, refused in self.found().days]

    def writes(self) -> list[list[ActivityEntry]]:
        calls = zip(self.world.store.calls, self.world.store.arguments, strict=True)
        return [arguments[0][0] for name, arguments in calls if name == "record_activity"]


@pytest.fixture
def site(make_world: MakeWorld) -> Site:
    return Site(make_world)


# What is counted.


def test_a_request_is_counted_as_what_became_of_it(site: Site) -> None:
    assert site.request() is None
    assert site.request() is None
    assert isinstance(site.request(require("tasks:run")), PermissionDenied)
    assert isinstance(site.request(require_interactive()), InteractiveRequired)
    assert site.counts() == [(2, 2)]


def test_a_request_counts_once_however_many_guards_it_passes(site: Site) -> None:
    assert site.request(any_credential(), require("tasks:read"), require("tasks:read")) is None
    assert site.counts() == [(1, 0)]


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("route", [None, "GET /tasks"])
def test_a_request_that_a_later_guard_refuses_is_a_refused_one(
    site: Site, is_flushed: bool, route: str | None
) -> None:
    memory: dict[str, Any] = {}
    assert site.request(any_credential(), memory=memory, route=route) is None
    if is_flushed:
        assert site.counts() == [(1, 0)]
    # Also after midnight: it is the same request.
    site.world.clock.advance(DAY)
    assert site.request(require("tasks:run"), memory=memory) is not None
    assert site.request(require("tasks:run"), memory=memory) is not None
    assert site.counts() == [(0, 1)]
    assert site.found().days[0].day == TODAY
    last = site.found().last
    assert last is not None
    assert (last.at, last.route) == (NOW + DAY, "GET /tasks")


def test_a_refused_request_stays_refused(site: Site) -> None:
    memory: dict[str, Any] = {}
    assert site.request(require("tasks:run"), memory=memory) is not None
    assert site.request(require("tasks:read"), memory=memory) is None
    assert site.counts() == [(0, 1)]


def test_the_route_is_the_one_that_a_later_guard_knows(site: Site) -> None:
    memory: dict[str, Any] = {}
    assert site.request(memory=memory, route=None) is None
    assert site.request(memory=memory, route="GET /tasks/{id}") is None
    assert site.counts() == [(1, 0)]
    assert site.found().last == LastRequest(NOW, "GET /tasks/{id}", "203.0.113.7", "curl/8.5")


def test_what_an_open_connection_verifies_afresh_is_no_request(site: Site) -> None:
    memory: dict[str, Any] = {}
    assert site.request(memory=memory, afresh=True) is None
    site.world.call("revoke_key", site.world.login(), site.key_id)
    for _ in range(3):
        assert isinstance(site.request(memory=memory, afresh=True), KeyRevoked)
    assert site.counts() == [(1, 0)]


def test_another_authenticator_of_the_same_request_counts_for_itself(site: Site) -> None:
    memory: dict[str, Any] = {}
    assert site.request(memory=memory) is None
    outer = site.world.auth.activity
    inner = site.world.auth.activity = collecting.ActivityLog(EVERYTHING)
    assert site.request(memory=memory) is None
    for log in (outer, inner):
        assert [count.accepted for count in log._counts.values()] == [1]


def test_another_key_in_the_same_request_counts_for_itself(site: Site) -> None:
    memory: dict[str, Any] = {}
    assert site.request(memory=memory) is None
    first, site.created = site.key_id, site.world.create()
    site.key_id = site.created.record.id
    assert site.request(memory=memory) is None
    assert site.counts() == [(1, 0)]
    site.key_id = first
    assert site.counts() == [(1, 0)]


def test_requests_are_counted_under_a_lease(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    registers = {"recorded_leases", "record_lease", "forget_lease"}
    monkeypatch.setattr(
        "tests.core.support.LeasingStore.METHODS", ScriptedStore.METHODS | registers
    )
    site = Site(make_world, lease=SECOND, on_event=None)
    site.world.forget_calls()
    for _ in range(3):
        assert site.request() is None
    assert isinstance(site.request(require("tasks:run")), PermissionDenied)
    assert site.world.store.calls.count("find") == 1
    assert site.counts() == [(3, 1)]


def refuse_by_revoking(site: Site) -> None:
    site.world.call("revoke_key", site.world.login(), site.key_id)


def refuse_by_expiry(site: Site) -> None:
    site.world.call("expire_key", site.world.login(), site.key_id, at=site.world.clock.moment)


def refuse_by_disabling(site: Site) -> None:
    site.world.owners["ann"] = Owner("ann", frozenset(), "Ann", disabled=True)


def refuse_by_networks(site: Site) -> None:
    site.world.call("update_key", site.world.login(), site.key_id, networks=["198.51.100.0/24"])


@pytest.mark.parametrize(
    "refuse", [refuse_by_revoking, refuse_by_expiry, refuse_by_disabling, refuse_by_networks]
)
def test_a_key_that_does_not_work_counts_as_refused(
    site: Site, refuse: Callable[[Site], None]
) -> None:
    refuse(site)
    assert site.request() is not None
    assert site.counts() == [(0, 1)]
    assert site.found().last == LastRequest(NOW, "GET /tasks", "203.0.113.7", "curl/8.5")


def test_a_stranger_writes_nothing_for_an_id_that_they_guess(site: Site) -> None:
    other = site.world.create().record.digest
    site.world.store.put(replace(site.created.record, digest=other))
    assert isinstance(site.request(), KeyUnknown)
    site.world.store.inner._records.clear()
    assert isinstance(site.request(), KeyUnknown)
    assert site.counts() == []
    assert site.found() == KeyActivity()


def test_an_outage_is_not_counted(site: Site) -> None:
    site.world.store.fails = {"find": ConnectionError("gone")}
    assert isinstance(site.request(), StoreUnavailable)
    site.world.store.fails = {}
    assert site.counts() == []


@pytest.mark.parametrize(
    ("found", "key_id"),
    [
        (KeyRevoked(key_id="k"), "k"),
        (KeyExpired(key_id="k"), "k"),
        (OwnerDisabled(key_id="k"), "k"),
        (OwnerDisabled(), None),
        (AddressNotAllowed(key_id="k"), "k"),
        (KeyUnknown(key_id="k"), None),
        (KeyMalformed(), None),
        (TokenExpired(), None),
        (StoreUnavailable(), None),
        (
            Principal(Owner("a", frozenset(), ""), CredentialKind.API_KEY, frozenset(), NOW, "k"),
            "k",
        ),
        (
            Principal(Owner("a", frozenset(), ""), CredentialKind.INTERACTIVE, frozenset(), NOW),
            None,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_key_is_known_only_where_its_secret_was_right(
    found: Principal[Any] | Problem, key_id: str | None
) -> None:
    assert key_of(found) == key_id


def test_without_the_setting_nothing_is_counted_and_nothing_described(
    make_world: MakeWorld,
) -> None:
    site = Site(make_world, activity=None)

    def describe(_memory: object) -> tuple[None, None]:
        raise AssertionError("it is described although nothing is counted")

    assert site.request(describe=describe) is None
    site.world.forget_calls()
    site.flush()
    assert site.world.store.calls == ["touch"]
    with pytest.raises(ConfigurationError, match="activity=ActivitySettings"):
        site.world.call("key_activity", site.world.login(), site.key_id)


# What is written, and when.


def test_a_request_waits_for_nothing_that_is_counted(site: Site) -> None:
    site.world.forget_calls()
    site.world.store.arguments.clear()
    for _ in range(5):
        assert site.request() is None
    assert set(site.world.store.calls) == {"find"}
    site.flush()
    site.flush()
    ((entry,),) = site.writes()
    last = LastRequest(NOW, "GET /tasks", "203.0.113.7", "curl/8.5")
    assert entry == ActivityEntry(site.key_id, TODAY, 5, 0, last)


def test_each_day_is_counted_by_itself(site: Site) -> None:
    site.world.clock.advance(timedelta(hours=12) - timedelta(microseconds=1))
    assert site.request() is None
    site.world.clock.advance(timedelta(microseconds=1))
    assert site.request() is None
    assert site.request(require("tasks:run")) is not None
    site.flush()
    assert site.found().days == (
        DailyRequests(TODAY, 1, 0),
        DailyRequests(TODAY + DAY, 1, 1),
    )
    assert [entry.day for entry in site.writes()[0]] == [TODAY, TODAY + DAY]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (ActivitySettings(), (None, None)),
        (ActivitySettings(addresses=True), ("203.0.113.7", None)),
        (ActivitySettings(user_agents=True), (None, "curl/8.5")),
        (EVERYTHING, ("203.0.113.7", "curl/8.5")),
    ],
)
def test_address_and_agent_are_kept_only_if_the_application_says_so(
    make_world: MakeWorld, settings: ActivitySettings, kept: tuple[str | None, str | None]
) -> None:
    site = Site(make_world, activity=settings)
    assert site.request() is None
    site.flush()
    ((entry,),) = site.writes()
    assert (entry.last.address, entry.last.user_agent) == kept
    assert entry.last.route == "GET /tasks"


def test_a_change_of_the_settings_counts_from_the_next_flush(make_world: MakeWorld) -> None:
    settings = [EVERYTHING, ActivitySettings(), ConnectionError("gone"), EVERYTHING]

    def read() -> ActivitySettings:
        now = settings.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    async def read_later() -> ActivitySettings:
        return read()

    drivers = {"sync": read, "async": read_later}
    driver = make_world().driver
    site = Site(make_world, activity=drivers[driver])
    for address in ("203.0.113.7", None, None, "203.0.113.7"):
        assert site.request() is None
        site.flush()
        if len(settings) != 1:
            assert [entry.last.address for entry in site.writes()[-1]] == [address]
    # What could not be written without the settings is written later.
    assert site.found().days == (DailyRequests(TODAY, 4, 0),)


def test_a_flush_without_anything_to_write_does_not_ask_for_the_settings(
    make_world: MakeWorld,
) -> None:
    asked: list[None] = []

    def read() -> ActivitySettings:
        asked.append(None)
        return EVERYTHING

    async def read_later() -> ActivitySettings:
        return read()

    driver = make_world().driver
    site = Site(make_world, activity={"sync": read, "async": read_later}[driver])
    for _ in range(3):
        site.flush()
    # Once, for how long to keep what is there.
    assert len(asked) == 1
    assert site.request() is None
    site.flush()
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (None, None),
        ("", ""),
        ("curl/8.5", "curl/8.5"),
        ("a\x00b\nc\x7f\u202e\ud800", "a\ufffdb\ufffdc\ufffd\ufffd\ufffd"),
        ("é 你好 \U0001f5dd", "é 你好 \U0001f5dd"),
        ("x" * 201, "x" * 200),
    ],
)
def test_texts_are_kept_in_a_form_that_every_database_takes(
    sent: str | None, kept: str | None
) -> None:
    entry = ActivityEntry("k", TODAY, 1, 2, LastRequest(NOW, sent, sent, sent))
    expected = ActivityEntry("k", TODAY, 1, 2, LastRequest(NOW, kept, kept, kept))
    assert entry_to_keep(entry, EVERYTHING) == expected


def test_a_long_user_agent_does_not_stay_in_memory(site: Site) -> None:
    assert site.request(describe=lambda _memory: (None, "x" * 60_000)) is None
    (count,) = site.world.auth.activity._counts.values()
    assert count.user_agent == "x" * 200


def test_a_flush_that_fails_is_logged_and_tried_again(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert site.request() is None
    site.world.store.fails = {"record_activity": ConnectionError("gone")}
    site.flush()
    assert "could not write what keys did" in caplog.text
    assert site.request(require("tasks:run")) is not None
    site.flush()
    site.world.clock.advance(DAY)
    assert site.request() is None
    site.flush()
    site.world.store.fails = {}
    assert site.counts() == [(1, 1), (1, 0)]
    assert site.counts() == [(1, 1), (1, 0)]


def test_what_a_failed_flush_has_written_is_not_written_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for half in HALVES:
        monkeypatch.setattr(half, "ACTIVITY_BATCH", 2)
    log = site.world.auth.activity
    for number in reversed(range(5)):
        log.count(f"k{number}", NOW, is_accepted=True, route=None, address=None, user_agent=None)
    written: list[list[str]] = []

    def record(entries: list[ActivityEntry]) -> None:
        if len(written) == 1:
            written.append([])
            raise ConnectionError("gone")
        written.append([entry.key_id for entry in entries])

    monkeypatch.setattr(site.world.store.inner, "record_activity", record)
    site.flush()
    site.flush()
    assert written == [["k0", "k1"], [], ["k2", "k3"], ["k4"]]


def test_what_is_counted_while_a_flush_fails_is_added(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.world.auth.activity

    def count(*, is_accepted: bool, route: str) -> None:
        log.count(
            site.key_id, NOW, is_accepted=is_accepted, route=route, address=None, user_agent=None
        )

    def count_and_fail(_entries: list[ActivityEntry]) -> None:
        count(is_accepted=True, route="later")
        count(is_accepted=False, route="last")
        raise ConnectionError("gone")

    count(is_accepted=True, route="first")
    count(is_accepted=False, route="second")
    with monkeypatch.context() as patch:
        patch.setattr(site.world.store.inner, "record_activity", count_and_fail)
        site.flush()
    assert site.counts() == [(2, 2)]
    assert site.found().last == LastRequest(NOW, "last")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), asyncio.CancelledError()], ids=["interrupt", "cancellation"]
)
def test_a_flush_that_is_interrupted_loses_no_count(site: Site, error: BaseException) -> None:
    assert site.request() is None
    site.world.store.fails = {"record_activity": error}
    with pytest.raises(type(error)):
        site.flush()
    site.world.store.fails = {}
    assert site.counts() == [(1, 0)]


def test_a_forked_child_counts_for_itself() -> None:
    auth = Authenticator(MemoryKeyStore(), find_owner=lambda _: None, activity=ActivitySettings())
    log = auth.activity
    assert log is not None
    log.count("k", NOW, is_accepted=True, route=None, address=None, user_agent=None)
    with log._lock:
        assert in_child(lambda: len(log._counts)) == 0
    assert len(log._counts) == 1


# Retention.


def recorded_days(site: Site, *days: date) -> None:
    last = LastRequest(NOW)
    site.world.store.inner.record_activity(
        [ActivityEntry(site.key_id, day, 1, 0, last) for day in days]
    )


def test_what_is_older_than_it_is_kept_is_deleted_once_a_day(make_world: MakeWorld) -> None:
    site = Site(make_world, activity=ActivitySettings(keep_days=2))
    recorded_days(site, TODAY - 3 * DAY, TODAY - 2 * DAY, TODAY - DAY)
    site.flush()
    assert [each.day for each in site.found().days] == [TODAY - 2 * DAY, TODAY - DAY]
    site.world.forget_calls()
    log = site.world.auth.activity
    log.count("another", NOW, is_accepted=True, route=None, address=None, user_agent=None)
    site.flush()
    assert "record_activity" in site.world.store.calls
    assert "delete_activity" not in site.world.store.calls
    site.world.clock.advance(DAY)
    site.flush()
    assert [each.day for each in site.found().days] == [TODAY - DAY]
    assert site.found().last == LastRequest(NOW)
    site.world.clock.advance(2 * DAY)
    site.flush()
    assert site.found() == KeyActivity()


def test_a_flush_deletes_a_part_and_the_next_one_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for half in HALVES:
        monkeypatch.setattr(half, "DELETED_AT_ONCE", 2)
        monkeypatch.setattr(half, "MAX_DELETIONS", 3)
    recorded_days(site, *(TODAY - (100 + number) * DAY for number in range(7)))
    left = []
    for _ in range(3):
        site.flush()
        left.append(len(site.found().days))
    assert left == [1, 0, 0]
    # The last request is of today.
    assert site.found().last == LastRequest(NOW)


def test_a_deletion_that_fails_is_tried_again_and_loses_no_count(site: Site) -> None:
    recorded_days(site, TODAY - 200 * DAY)
    site.world.store.fails = {"delete_activity": ConnectionError("gone")}
    assert site.request() is None
    site.flush()
    site.world.store.fails = {}
    assert site.counts() == [(1, 0)]


@pytest.mark.parametrize("days", [0, -1, 3_651])
def test_a_time_that_cannot_be_kept_is_refused(days: int) -> None:
    with pytest.raises(ConfigurationError, match="keep_days"):
        ActivitySettings(keep_days=days)
    assert ActivitySettings(keep_days=3_650).keep_days == 3_650
    assert ActivitySettings(keep_days=1).keep_days == 1


# Reading.


def test_a_person_reads_what_their_key_did(site: Site) -> None:
    assert site.request() is None
    site.flush()
    site.world.clock.advance(DAY)
    assert site.request(require("tasks:run")) is not None
    site.flush()
    login = site.world.login()
    last = LastRequest(NOW + DAY, "GET /tasks", "203.0.113.7", "curl/8.5")
    days = (DailyRequests(TODAY, 1, 0), DailyRequests(TODAY + DAY, 0, 1))
    assert site.world.call("key_activity", login, site.key_id) == KeyActivity(days, last)
    recent = site.world.call("key_activity", login, site.key_id, since=TODAY + DAY)
    assert recent == KeyActivity(days[1:], last)


def test_it_is_read_by_its_owner_alone(site: Site) -> None:
    with pytest.raises(KeyNotFound):
        site.world.call("key_activity", site.world.login("bob"), site.key_id)
    with pytest.raises(KeyNotFound):
        site.world.call("key_activity", site.world.login(), "unknown")
    with pytest.raises(InteractiveRequired):
        site.world.call("key_activity", site.world.key_principal(), site.key_id)
    assert "activity" not in site.world.store.calls


def test_who_acts_for_an_owner_reads_what_their_keys_did(make_world: MakeWorld) -> None:
    site = Site(make_world, may_act_for=lambda *_: {"tasks:read"})
    site.created = site.world.create(on_behalf_of="bob")
    site.key_id = site.created.record.id
    assert site.request() is None
    site.flush()
    found = site.world.call("key_activity", site.world.login(), site.key_id, on_behalf_of="bob")
    assert found == site.found()
    assert found.days == (DailyRequests(TODAY, 1, 0),)
    ended = replace(site.world.login(), expires_at=NOW)
    with pytest.raises(TokenExpired):
        site.world.call("key_activity", ended, site.key_id, on_behalf_of="bob")


def admin_of(site: Site, max_age: timedelta | None = None) -> Callable[..., Any]:
    world = site.world
    kind: Any = AsyncAdminKeys if world.driver == "async" else AdminKeys
    keys = kind(world.auth, "keys:admin", max_age=max_age)

    def read(principal: Principal[Any], key_id: str, **options: Any) -> Any:
        found = keys.key_activity(principal, key_id, **options)
        return found if world._runner is None else world._runner.run(found)

    return read


def test_an_administrator_reads_what_any_key_did(site: Site) -> None:
    assert site.request() is None
    site.flush()
    site.world.call("delete_key", site.world.login(), site.key_id)
    site.world.owners["root"] = Owner("root", {"keys:admin"}, "Root")
    read, root = admin_of(site), site.world.login("root")
    assert read(root, site.key_id) == site.found()
    assert read(root, site.key_id, since=TODAY + DAY).days == ()
    for unknown in ("unknown", "AAAAAAAAAAAA", "\x00"):
        with pytest.raises(KeyNotFound):
            read(root, unknown)
    site.world.forget_calls()
    with pytest.raises(KeyNotFound):
        read(root, "\x00")
    assert site.world.store.calls == []
    with pytest.raises(PermissionDenied):
        read(site.world.login(), site.key_id)


def test_an_administrator_whose_login_is_too_old_reads_nothing(site: Site) -> None:
    site.world.owners["root"] = Owner("root", {"keys:admin"}, "Root")
    old = replace(site.world.login("root"), authenticated_at=NOW - 2 * DAY)
    site.world.forget_calls()
    with pytest.raises(LoginTooOld):
        admin_of(site, max_age=DAY)(old, site.key_id)
    assert site.world.store.calls == []


def test_an_administrator_reads_nothing_where_nothing_is_counted(make_world: MakeWorld) -> None:
    site = Site(make_world, activity=None)
    site.world.owners["root"] = Owner("root", {"keys:admin"}, "Root")
    with pytest.raises(ConfigurationError, match="does not count"):
        admin_of(site)(site.world.login("root"), site.key_id)


# At start.


class Bare:
    """A store of another library: the required methods only, and one of the three."""

    def __init__(self, inner: Any) -> None:
        for name in ScriptedStore.METHODS - {"record_activity", "delete_activity", "list_all"}:
            setattr(self, name, getattr(inner, name))


def test_a_store_that_keeps_no_activity_is_refused_at_start() -> None:
    def find_owner(_owner_id: str) -> None: ...
    async def find_owner_later(_owner_id: str) -> None: ...

    lacks = r"Bare cannot keep what keys did. Add record_activity, delete_activity to it"
    blocking: Any = Bare(MemoryKeyStore())
    awaiting: Any = Bare(AsyncMemoryKeyStore())
    with pytest.raises(ConfigurationError, match=lacks):
        Authenticator(blocking, find_owner=find_owner, activity=ActivitySettings())
    with pytest.raises(ConfigurationError, match=lacks):
        AsyncAuthenticator(awaiting, find_owner=find_owner_later, activity=ActivitySettings())
    Authenticator(blocking, find_owner=find_owner)


def test_a_function_of_the_other_kind_is_refused_at_start() -> None:
    async def read_later() -> ActivitySettings:
        raise NotImplementedError

    def read() -> ActivitySettings:
        raise NotImplementedError

    wrong: Any = read_later
    with pytest.raises(ConfigurationError, match="activity is async"):
        Authenticator(MemoryKeyStore(), find_owner=lambda _: None, activity=wrong)

    async def find_owner(_owner_id: str) -> None: ...

    wrong = read
    with pytest.raises(ConfigurationError, match="activity is not async"):
        AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner, activity=wrong)
