"""Signed reports: which signatures count, when keys are fetched, and what is revoked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case, refused_with
from tests.contract.adapter import START
from tests.forked import in_child
from tests.leaks.support import (
    Labels,
    Reporter,
    World,
    async_receiver_of,
    match,
    other_kinds,
    receiver_of,
    report,
)

from msk_auth import AsyncAuthenticator, Authenticator, KeyFormat
from msk_auth._leak_reports import (
    FETCH_PAUSE,
    KEYS_MAX_AGE,
    read_keys,
    read_signature,
)
from msk_auth.errors import Forbidden, StoreUnavailable
from msk_auth.events import KeyEvent, LeakLocation
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import FrozenClock

SECOND = timedelta(seconds=1)
GITHUB = Reporter("k1", "k2")


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with closing(World(request.param)) as world:
        world.fetches = [GITHUB.document()]
        yield world


def send(world: World, body: bytes, identifier: str = "k1") -> Labels:
    return world.receive(body, identifier, GITHUB.sign(body, identifier))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_leaked_key_is_revoked_and_its_event_has_the_location(world: World) -> None:
    key = world.key
    unknown = KeyFormat().generate().reveal()
    place = f"https://github.com/o/r/blob/1/{key}.env?token={key}#L1"
    labels = send(world, report(match(key, place), match(unknown), match("no key")))
    assert labels == [
        {"token_hash": sha256(key), "token_type": "example_api_key", "label": "true_positive"},
        {"token_hash": sha256(unknown), "token_type": "example_api_key", "label": "false_positive"},
        {
            "token_hash": sha256("no key"),
            "token_type": "example_api_key",
            "label": "false_positive",
        },
    ]
    assert world.record.revoked_at == START
    assert world.events == [
        KeyEvent(
            "leaked",
            START,
            world.record,
            location=LeakLocation("github", "commit", "https://github.com/o/r/blob/1/***.env"),
        )
    ]
    assert key not in repr((labels, world.events))


def test_a_report_that_comes_again_does_no_more(world: World) -> None:
    body = report(match(world.key))
    first = send(world, body)
    world.clock.advance(SECOND)
    assert send(world, body) == first
    assert [event.record.revoked_at for event in world.events] == [START, START]  # type: ignore[union-attr]
    assert world.fetched == 1


def changed(text: str) -> str:
    """A signature with one bit changed in the middle."""
    raw = bytearray(base64.b64decode(text))
    raw[20] ^= 1
    return base64.b64encode(raw).decode()


BODY = report(match("no key"))
GOOD = GITHUB.sign(BODY, "k1")
FORGED = {
    "another key's": ("k1", GITHUB.sign(BODY, "k2")),
    "of a foreign key": ("k1", Reporter("k1").sign(BODY, "k1")),
    "of another body": ("k1", GITHUB.sign(BODY + b" ", "k1")),
    "changed": ("k1", changed(GOOD)),
    "cut": ("k1", GOOD[:-8]),
    "with more": ("k1", GOOD + "AAAA"),
    "without padding": ("k1", GOOD.rstrip("=") + "!"),
    "url-safe": ("k1", "-_" + GOOD[2:]),
    "empty": ("k1", ""),
    "long": ("k1", "A" * 10_000),
    "not ASCII": ("k1", "é" * 96),
    "missing": ("k1", None),
    "no identifier": (None, GOOD),
    "empty identifier": ("", GOOD),
    "unknown identifier": ("k3", GOOD),
    "two identifiers": ("k1,k1", GOOD),
    "long identifier": ("k" * 129, GOOD),
    "identifier with a line break": ("k1\n", GOOD),
    "zeros": ("k1", base64.b64encode(bytes.fromhex("3006020100020100")).decode()),
}


def test_a_report_that_is_not_signed_is_refused(world: World) -> None:
    """ASVS 5.0, 4.1.5: a message is checked by its signature, and nothing is done before."""
    body = report(match(world.key))
    for name, (identifier, signature) in FORGED.items():
        with case(name):
            with refused_with("signature_invalid") as refused:
                world.receive(BODY, identifier, signature)
            assert (refused.value.status, refused.value.code) == (403, "signature_invalid")
            assert refused.value.challenge() is None
            with refused_with("signature_invalid"):
                world.receive(body, identifier, signature)
            assert world.record.revoked_at is None
            assert world.events == []


@given(st.text(max_size=200), st.text(max_size=250))
def test_headers_are_read_or_refused(identifier: str, signature: str) -> None:
    try:
        name, made = read_signature(identifier, signature)
    except Forbidden:
        return
    assert name == identifier
    assert base64.b64encode(made).decode() == signature


def test_only_keys_on_p256_are_taken() -> None:
    assert read_keys(GITHUB.document(**other_kinds())).keys() == {"k1", "k2"}


BAD_LISTS = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"\xff",
    b'{"public_keys": {}}',
    b'{"public_keys": []}',
    b'{"public_keys": [1, null, {}, {"key_identifier": 1, "key": 2}]}',
    b"[" * 100_000,
    b" " * 300_000,
]


def test_a_list_that_holds_no_key_is_none() -> None:
    for document in BAD_LISTS:
        with case(document[:24]), pytest.raises(ValueError, match=r"."):
            read_keys(document)


@given(st.binary(max_size=200))
def test_any_list_is_read_or_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_keys(document)


# When keys are fetched.


def test_keys_are_fetched_once_for_a_day(world: World) -> None:
    for _ in range(3):
        send(world, BODY)
        send(world, BODY, "k2")
    assert world.fetched == 1
    world.clock.advance(timedelta(seconds=KEYS_MAX_AGE - 1))
    send(world, BODY)
    assert world.fetched == 1
    world.clock.advance(SECOND)
    send(world, BODY)
    assert world.fetched == 2


def test_a_key_that_is_taken_back_ends_within_a_day(world: World) -> None:
    world.fetches = [GITHUB.document(), Reporter("k9").document()]
    send(world, BODY)
    world.clock.advance(timedelta(seconds=KEYS_MAX_AGE))
    with refused_with("signature_invalid"):
        send(world, BODY)
    assert world.fetched == 2


def test_an_unknown_name_fetches_once_in_a_while(world: World) -> None:
    """A client that invents key ids must not cause many requests to GitHub."""
    for number in range(50):
        with refused_with("signature_invalid"):
            world.receive(BODY, f"made-up-{number}", GOOD)
    assert world.fetched == 1
    # And takes nothing from those whose key is known.
    assert len(send(world, BODY)) == 1
    world.clock.advance(timedelta(seconds=FETCH_PAUSE))
    with refused_with("signature_invalid"):
        world.receive(BODY, "made-up", GOOD)
    assert world.fetched == 2


def test_a_key_that_is_new_is_found_by_fetching(world: World) -> None:
    old = Reporter("k0")
    world.fetches = [old.document(), GITHUB.document()]
    world.receive(BODY, "k0", old.sign(BODY, "k0"))
    world.clock.advance(timedelta(seconds=FETCH_PAUSE))
    assert len(send(world, BODY)) == 1
    assert world.fetched == 2


@pytest.mark.parametrize("failure", [ConnectionError("gone"), TimeoutError(), b"<html>", b"{}"])
def test_without_keys_nothing_is_accepted_and_nothing_refused(
    world: World, failure: bytes | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world.fetches = [failure, GITHUB.document()]
    with refused_with("signing_keys_unavailable") as refused:
        send(world, BODY)
    assert (refused.value.status, refused.value.retry_after) == (503, 120)
    world.clock.advance(10 * SECOND)
    with refused_with("signing_keys_unavailable") as again:
        send(world, BODY)
    assert again.value.retry_after == 110
    assert world.fetched == 1
    assert len(caplog.records) == 1
    world.clock.advance(110 * SECOND)
    assert len(send(world, BODY)) == 1


def test_old_keys_are_not_used_when_new_ones_cannot_be_fetched(world: World) -> None:
    world.fetches = [GITHUB.document(), ConnectionError("gone")]
    send(world, BODY)
    world.clock.advance(timedelta(seconds=KEYS_MAX_AGE))
    with refused_with("signing_keys_unavailable"):
        send(world, BODY)


def test_a_cancelled_fetch_does_not_delay_the_next_one(world: World) -> None:
    world.fetches = [KeyboardInterrupt(), GITHUB.document()]
    with pytest.raises(KeyboardInterrupt):
        send(world, BODY)
    assert len(send(world, BODY)) == 1


def test_reports_that_come_together_share_one_fetch(world: World) -> None:
    answers = world.at_once([lambda: world.start(BODY, "k1", GOOD) for _ in range(8)])
    assert [len(answer) for answer in answers] == [1] * 8
    assert world.fetched == 1


def test_a_failing_store_is_not_reported_as_success(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(world.keys), "revoke", lambda *_args, **_more: 1 / 0)
    with pytest.raises(StoreUnavailable):
        send(world, report(match(world.key)))
    assert world.events == []


def test_a_forked_child_does_not_wait_for_a_fetch_of_its_parents() -> None:
    auth = Authenticator(MemoryKeyStore(), find_owner=lambda _: None)
    fetching, forked = threading.Event(), threading.Event()

    def fetch(_url: str) -> bytes:
        fetching.set()
        assert forked.wait(30)
        return GITHUB.document()

    receive = receiver_of(auth, fetch)

    def receive_in_child() -> str:
        with refused_with("signing_keys_unavailable") as refused:
            receive(BODY, "k1", GOOD)
        return refused.value.code

    with ThreadPoolExecutor() as threads:
        of_parent = threads.submit(receive, BODY, "k1", GOOD)
        assert fetching.wait(30)
        assert in_child(receive_in_child) == "signing_keys_unavailable"
        forked.set()
        assert len(of_parent.result()) == 1


def test_one_receiver_serves_several_event_loops() -> None:
    async def none(_: str) -> None:
        return None

    async def fetch(_url: str) -> bytes:
        fetches.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return GITHUB.document()

    async def receive_three() -> int:
        clock.advance(timedelta(seconds=KEYS_MAX_AGE))
        answers = await asyncio.gather(*(receive(BODY, "k1", GOOD) for _ in range(3)))
        return sum(map(len, answers))

    clock, fetches = FrozenClock(), list[object]()
    auth = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=none, clock=clock)
    receive = async_receiver_of(auth, fetch)
    assert [asyncio.run(receive_three()) for _ in range(2)] == [3, 3]
    assert len(fetches) == 2
