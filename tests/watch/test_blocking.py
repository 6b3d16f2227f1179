"""What a thread keeps open ends when a new request would be refused (G2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.cases import code_of, refused_with
from tests.watch.site import ENDS, SECOND, Change, Site

from msk_auth import (
    Authenticator,
    Owner,
    require,
    require_interactive,
)
from msk_auth._sync.watch import Watch
from msk_auth.errors import ConfigurationError, Problem, StoreUnavailable
from msk_auth.stores.memory import MemoryKeyStore


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize(
    ("kind", "change", "code"),
    [(kind, change, code) for kind, _, change, code in ENDS],
    ids=[f"{kind} {name}" for kind, name, _, _ in ENDS],
)
def test_access_ends_when_a_new_request_would_be_refused(
    site: Site, kind: str, change: Change, code: str
) -> None:
    principal = site.admitted(kind)
    watch = site.blocking.watch(principal)
    watch.check()
    change(site, principal)
    site.clock.advance(SECOND)
    with pytest.raises(Problem) as raised:
        watch.check()
    assert raised.value.code == code
    assert watch.refusal is raised.value


def test_it_is_over_for_good(site: Site) -> None:
    watch = site.blocking.watch(site.login())
    site.change_owner(disabled=True)
    site.clock.advance(SECOND)
    with pytest.raises(Problem, match="ended"):
        watch.check()
    site.change_owner(disabled=False)
    site.clock.advance(SECOND)
    with pytest.raises(Problem, match="ended"):
        watch.check()


def test_access_lasts_with_the_permissions_that_the_policy_names(site: Site) -> None:
    watch = site.blocking.watch(site.key(), require("tasks:read"))
    site.change_owner(permissions=frozenset({"tasks:read", "more"}))
    site.clock.advance(SECOND)
    watch.check()
    site.change_owner(permissions=frozenset({"tasks:run", "more"}))
    site.clock.advance(SECOND)
    with pytest.raises(Problem, match="tasks:read"):
        watch.check()


def test_a_login_is_accepted_up_to_the_maximum_age_of_the_policy(site: Site) -> None:
    watch = site.blocking.watch(site.login(), require_interactive(max_age=timedelta(minutes=15)))
    site.clock.advance(timedelta(minutes=15))
    watch.check()
    site.clock.advance(SECOND)
    with pytest.raises(Problem, match="recent login"):
        watch.check()


def test_a_stream_ends_before_the_item_that_comes_too_late(site: Site) -> None:
    principal = site.key()
    closed = []

    def source() -> Iterator[str]:
        try:
            yield "first"
            site.revoke(principal)
            site.clock.advance(SECOND)
            yield "second"
        finally:
            closed.append(True)

    watch = site.blocking.watch(principal)
    assert list(watch.stream(source())) == ["first"]
    assert code_of(watch.refusal) == "key_revoked"
    assert closed == [True]


def test_a_watch_of_a_key_that_was_revoked_before_ends_at_once(site: Site) -> None:
    principal = site.key()
    site.revoke(principal)
    watch = site.blocking.watch(principal)
    assert list(watch.stream(["first"])) == []
    assert code_of(watch.refusal) == "key_revoked"
    with refused_with("key_revoked"):
        site.blocking.watch(principal).check()


def test_an_outage_counts_from_the_beginning(site: Site) -> None:
    watch = site.blocking.watch(site.key())
    site.broken = OSError("down")
    watch.check()
    site.clock.advance(4 * SECOND)
    watch.check()
    site.clock.advance(SECOND)
    with pytest.raises(StoreUnavailable):
        watch.check()


def test_a_stream_gives_all_that_there_is(site: Site) -> None:
    watch = site.blocking.watch(site.key())
    assert list(watch.stream(["first", "second"])) == ["first", "second"]
    assert watch.refusal is None


def test_a_watch_reads_once_in_an_interval_in_an_outage_too(site: Site) -> None:
    watch = site.blocking.watch(site.key())
    for broken in (None, OSError("down"), None):
        site.reads.clear()
        site.broken = broken
        for _ in range(3):
            watch.check()
        assert set(site.reads.values()) == {1}
        site.clock.advance(SECOND)


def test_an_outage_ends_it_when_five_seconds_went_by(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    watch = site.blocking.watch(site.key())
    site.broken = OSError("down")
    for _ in range(4):
        site.clock.advance(SECOND)
        watch.check()
    site.broken = None
    site.clock.advance(SECOND)
    watch.check()
    site.broken = OSError("down")
    for _ in range(4):
        site.clock.advance(SECOND)
        watch.check()
    site.clock.advance(SECOND)
    with pytest.raises(StoreUnavailable):
        watch.check()
    # One line for each look-up that failed.
    assert len(caplog.records) == 9
    assert "could not verify open connections" in caplog.text


class Hanging:
    """Lets the look-up of an owner hang until :meth:`end`."""

    def __init__(self, site: Site, owner_id: str) -> None:
        self._hangs, self._ends = threading.Event(), threading.Event()
        find = site.find_owner

        def find_owner(asked: str) -> Owner[str] | None:
            found = find(asked)
            if asked == owner_id and not self._ends.is_set():
                self._hangs.set()
                assert self._ends.wait(60)
            return found

        site.blocking._look_ups.read_owner = find_owner

    def begin(self, watch: Watch[str]) -> None:
        self._thread = threading.Thread(target=watch.check)
        self._thread.start()
        assert self._hangs.wait(60)

    def end(self) -> None:
        self._ends.set()
        self._thread.join(60)


def test_a_look_up_that_hangs_holds_up_only_what_depends_on_it(site: Site) -> None:
    of_bob, of_ann = (site.blocking.watch(site.key(name)) for name in ("bob", "ann"))
    hanging = Hanging(site, "bob")
    site.clock.advance(SECOND)
    hanging.begin(of_bob)
    try:
        of_ann.check()
        site.change_owner(disabled=True)
        site.clock.advance(SECOND)
        with refused_with("owner_disabled"):
            of_ann.check()
    finally:
        hanging.end()


@pytest.mark.parametrize("interval", [timedelta(0), -SECOND, timedelta(seconds=1.001)])
def test_an_interval_that_cannot_keep_the_promise_is_refused(interval: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="watch_interval"):
        Authenticator(MemoryKeyStore(), find_owner=lambda _: None, watch_interval=interval)
