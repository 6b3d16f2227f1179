"""Keys of issuers, pinned and fetched: against a real server that rotates, removes, stalls, redirects and sends wrong documents."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import get_default_algorithms
from tests.cases import refused_with
from tests.core.support import SECOND, FrozenClock, b64
from tests.tokens.provider import DISCOVERY, Provider, drip, huge, public_jwk, send, serve
from tests.tokens.shapes import RSA_KEY

from msk_auth import AsyncAuthenticator, Authenticator, Owner, Principal
from msk_auth.core import tokens as core_tokens
from msk_auth.core.tokens import encode_segment
from msk_auth.errors import ConfigurationError
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.tokens import issuers, keysets
from msk_auth.tokens._fetch import MAX_DOCUMENT, FetchError, check_url, fetch_json
from msk_auth.tokens.keysets import FRESH_SECONDS, PAUSE_SECONDS, PinnedKeySet, RemoteKeySet

FETCH_SECONDS, WAIT_SECONDS = keysets._FETCH_SECONDS, core_tokens.PENDING_SECONDS
MESSAGE = b"message"
P256, P384, P521 = (
    ec.generate_private_key(c()) for c in (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
)
EDWARDS = ed25519.Ed25519PrivateKey.generate()


@contextmanager
def opened(keys: RemoteKeySet) -> Iterator[RemoteKeySet]:
    keys.open()
    try:
        yield keys
    finally:
        keys.close()


def jwk_of(key: Any, **more: object) -> dict[str, Any]:
    members = {**public_jwk(key), "kid": "k", "use": "sig", **more}
    return {name: value for name, value in members.items() if value is not None}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    # What a busy machine may take. Tests of a limit set their own.
    monkeypatch.setattr(keysets, "_FETCH_SECONDS", 60.0)
    monkeypatch.setattr(core_tokens, "PENDING_SECONDS", 60.0)
    with serve() as running:
        running.keys = [jwk_of(P256, alg="ES256")]
        yield running


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


@pytest.fixture
def keys(provider: Provider, clock: FrozenClock) -> Iterator[RemoteKeySet]:
    keys = RemoteKeySet(provider.url, clock=clock)
    first = keys._landed
    with opened(keys):
        # The set has its keys a moment before the fetch has ended, and a test would take that end for its own fetch's.
        first.result(60)
        yield keys


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """What one test fetches, the next one must not hear of."""
    yield
    for thread in threading.enumerate():
        if thread.name == "msk_auth keys":
            thread.join(60)
            assert not thread.is_alive(), "a key set was not closed"


def eventually(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def find(keys: Any, kid: str = "k") -> list[frozenset[str]]:
    """The algorithms of each key with an id; nothing is waited for."""
    assert keys.pending() is None
    return [{*key.schemes} for key in keys.find(kid)]


def pass_time(keys: RemoteKeySet, clock: FrozenClock, seconds: float) -> None:
    clock.advance(seconds * SECOND)
    keys._wake.set()


def refetch(keys: RemoteKeySet, clock: FrozenClock, seconds: float = 240) -> None:
    """Let time pass until the next fetch has ended."""
    landed = keys._landed
    pass_time(keys, clock, seconds)
    landed.result(60)


# What a set holds.

SIGNING: dict[str, tuple[dict[str, Any], set[str]]] = {
    "RSA without alg": (jwk_of(RSA_KEY), {*keysets._RSA}),
    "RSA without use": (jwk_of(RSA_KEY, use=None, alg="RS256"), {"RS256"}),
    "RSA for verifying": (jwk_of(RSA_KEY, key_ops=["verify"], alg="PS512"), {"PS512"}),
    "RSA with a certificate": (jwk_of(RSA_KEY, x5c=["MII"], x5t="AA", issuer="x"), {*keysets._RSA}),
    "P-256": (jwk_of(P256), {"ES256"}),
    "P-384": (jwk_of(P384, alg="ES384"), {"ES384"}),
    "P-521": (jwk_of(P521), {"ES512"}),
    "Ed25519": (jwk_of(EDWARDS), {"EdDSA", "Ed25519"}),
    "Ed25519 by its older name": (jwk_of(EDWARDS, alg="EdDSA"), {"EdDSA", "Ed25519"}),
    "Ed25519 by its newer name": (jwk_of(EDWARDS, alg="Ed25519"), {"EdDSA", "Ed25519"}),
}
OTHERS: dict[str, object] = {
    "for encryption": jwk_of(RSA_KEY, use="enc", alg="RSA-OAEP"),
    "for encryption with a signing alg": jwk_of(RSA_KEY, use="enc", alg="RS256"),
    "for wrapping": jwk_of(RSA_KEY, key_ops=["wrapKey"]),
    "key_ops that are no list": jwk_of(RSA_KEY, key_ops="verify"),
    "an alg of another type": jwk_of(RSA_KEY, alg="ES256"),
    "an alg of another curve": jwk_of(P384, alg="ES256"),
    "an unknown alg": jwk_of(RSA_KEY, alg="RSA1_5"),
    "an alg that is no text": jwk_of(RSA_KEY, alg=["RS256"]),
    "no alg at all": jwk_of(RSA_KEY, alg="none"),
    "a short RSA key": jwk_of(rsa.generate_private_key(public_exponent=65537, key_size=1024)),
    "a broken RSA key": {"kty": "RSA", "kid": "k", "n": "AA", "e": "!"},
    "an RSA key without members": {"kty": "RSA", "kid": "k"},
    "an EC key off its curve": jwk_of(P256, x=b64(b"\1" * 32)),
    "X25519": {"kty": "OKP", "crv": "X25519", "kid": "k", "x": b64(b"\1" * 32)},
    "Ed448": jwk_of(ed448.Ed448PrivateKey.generate()),
    "a secret": {"kty": "oct", "kid": "k", "k": "c2VjcmV0", "alg": "HS256"},
    "a private key": jwk_of(EDWARDS, d=b64(EDWARDS.private_bytes_raw())),
    "of a type of the future": {"kty": "AKP", "kid": "k", "alg": "ML-DSA-65", "pub": "AA"},
    "a type that is no text": {"kty": ["RSA"], "kid": "k"},
    "a curve that is no text": {"kty": "EC", "crv": {}, "kid": "k"},
    "no kid": jwk_of(RSA_KEY, kid=None),
    "a kid that is no text": jwk_of(RSA_KEY, kid=7),
    "an empty kid": jwk_of(RSA_KEY, kid=""),
    "a kid without end": jwk_of(RSA_KEY, kid="k" * 257),
    "no object": "k",
    "nothing": None,
}


@pytest.mark.parametrize("name", SIGNING)
def test_a_key_that_signs_is_found_among_others(name: str) -> None:
    jwk, algorithms = SIGNING[name]
    assert find(PinnedKeySet({"keys": [*OTHERS.values(), jwk]})) == [algorithms]


@pytest.mark.parametrize("name", OTHERS)
def test_what_signs_nothing_here_is_skipped_and_displaces_no_key_that_signs(name: str) -> None:
    many = [OTHERS[name]] * 1_000
    keys = PinnedKeySet({"keys": [*many, jwk_of(P256, kid="good")]})
    assert find(keys) == []
    assert find(keys, "good") == [{"ES256"}]
    with pytest.raises(ConfigurationError, match="has no key for verifying tokens"):
        PinnedKeySet({"keys": [OTHERS[name]]})


def test_no_key_of_a_long_set_is_lost() -> None:
    names = [f"k{number}" for number in range(1_000)]
    keys = PinnedKeySet({"keys": [jwk_of(P256, kid=name) for name in names]})
    assert [find(keys, name) for name in names] == [[{"ES256"}]] * 1_000


@pytest.mark.parametrize("jwks", [{}, {"keys": {}}, {"keys": None}, {"keys": []}])
def test_what_is_no_set_is_refused(jwks: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no key for verifying tokens"):
        PinnedKeySet(jwks)


def test_keys_that_share_an_id_are_all_tried_and_bounded() -> None:
    pair = PinnedKeySet({"keys": [jwk_of(P256), jwk_of(RSA_KEY)]})
    assert find(pair) == [{"ES256"}, {*keysets._RSA}]
    assert len(find(PinnedKeySet({"keys": [jwk_of(P256)] * 300}))) == 4


@pytest.mark.parametrize("kid", ["1234example=", "a/b+c==", "ключ", " ", "k" * 256])
def test_a_key_id_is_any_bounded_text(kid: str) -> None:
    assert find(PinnedKeySet({"keys": [jwk_of(P256, kid=kid)]}), kid) == [{"ES256"}]


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        *((RSA_KEY, name) for name in keysets._RSA),
        (P256, "ES256"),
        (P384, "ES384"),
        (P521, "ES512"),
        (EDWARDS, "EdDSA"),
    ],
    ids=[*keysets._RSA, "ES256", "ES384", "ES512", "EdDSA"],
)
def test_every_algorithm_verifies_and_no_other_name_does(key: Any, algorithm: str) -> None:
    (verifier,) = keysets.PinnedKeySet({"keys": [jwk_of(key)]}).find("k")
    signature = get_default_algorithms()[algorithm].sign(MESSAGE, key)
    assert verifier.verify(algorithm, MESSAGE, signature) is True
    assert verifier.verify(algorithm, MESSAGE + b"!", signature) is False
    for other in keysets.ALGORITHMS - {algorithm, "Ed25519"} | {"HS256", "none", ""}:
        assert verifier.verify(other, MESSAGE, signature) is False
    if algorithm == "EdDSA":
        assert verifier.verify("Ed25519", MESSAGE, signature) is True


# Rotation.


def test_the_keys_are_there_before_the_first_token(keys: RemoteKeySet, provider: Provider) -> None:
    assert find(keys) == [{"ES256"}]
    assert provider.requests == {DISCOVERY: 1, "/keys": 1}
    assert repr(keys) == f"<RemoteKeySet {provider.url!r}>"


def test_an_added_key_is_accepted_and_a_removed_one_refused_within_five_minutes(
    keys: RemoteKeySet, provider: Provider, clock: FrozenClock
) -> None:
    provider.keys = [jwk_of(RSA_KEY, kid="new", alg="RS256")]
    assert (find(keys), keys._wanted) == ([{"ES256"}], False)
    refetch(keys, clock)
    assert keysets.REFRESH_SECONDS + 2 * FETCH_SECONDS < FRESH_SECONDS == 300
    assert find(keys, "new") == [{"RS256"}]
    assert find(keys) == []


def test_no_request_waits_or_fetches_once_the_first_fetch_has_succeeded(
    keys: RemoteKeySet, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network call in the path of a request")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for n in range(1000):
        find(keys)
        find(keys, f"unknown {n}")
    assert provider.fetches == 1


def test_a_flood_of_unknown_key_ids_costs_one_fetch_in_an_interval(
    keys: RemoteKeySet, provider: Provider, clock: FrozenClock
) -> None:
    for minute in range(1, 4):
        landed = keys._landed
        for second in range(int(PAUSE_SECONDS)):
            for n in range(100):
                assert find(keys, f"unknown {minute} {second} {n}") == []
            pass_time(keys, clock, 1)
        landed.result(60)
        assert provider.fetches == 1 + minute
    eventually(lambda: not keys._wanted)


def test_an_unknown_key_id_makes_a_new_key_known_after_the_pause(
    keys: RemoteKeySet, provider: Provider, clock: FrozenClock
) -> None:
    provider.keys.append(jwk_of(RSA_KEY, kid="new"))
    assert find(keys, "new") == []
    refetch(keys, clock, PAUSE_SECONDS)
    assert find(keys, "new") == [{*keysets._RSA}]


# Outages.

FAILURES: dict[str, Callable[[Any], None]] = {
    "500": lambda request: send(request, {"keys": []}, 500),
    "404 with keys": lambda request: send(request, {"keys": [jwk_of(P256, kid="x")]}, 404),
    "redirect": lambda request: send(request, b"", 302, Location="/.well-known/other"),
    "redirect to a file": lambda request: send(request, b"", 301, Location="file:///etc/passwd"),
    "100 MB": huge,
    "drip": drip,
    "no JSON": lambda request: send(request, b"<html>"),
    "deep JSON": lambda request: send(request, b"[" * 100_000),
    "no object": lambda request: send(request, [1]),
    "no keys": lambda request: send(request, {"keys": []}),
    "only odd keys": lambda request: send(request, {"keys": list(OTHERS.values())}),
    "hung up": lambda request: request.connection.close(),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_last_good_set_serves_through_an_outage_of_a_stated_time(
    name: str,
    keys: RemoteKeySet,
    provider: Provider,
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if name == "drip":
        # All others end by themselves.
        monkeypatch.setattr(keysets, "_FETCH_SECONDS", 0.5)
    provider.answer = FAILURES[name]
    refetch(keys, clock)
    assert find(keys) == [{"ES256"}]
    assert any(provider.url in message for message in caplog.messages)
    # It is tried again every half minute, and all of the hour the set serves.
    refetch(keys, clock, PAUSE_SECONDS)
    clock.advance((FRESH_SECONDS + 3600 - 240 - PAUSE_SECONDS - 1) * SECOND)
    keys._state = keys._state._replace(tried_at=clock.monotonic() - 1)
    assert find(keys) == [{"ES256"}]
    clock.advance(2 * SECOND)
    assert keys.pending() is None
    with refused_with("signing_keys_unavailable") as refused:
        keys.find("k")
    assert (refused.value.status, refused.value.code) == (503, "signing_keys_unavailable")
    assert refused.value.retry_after is not None
    assert 1 <= refused.value.retry_after <= 5
    monkeypatch.undo()
    provider.answer = None
    monkeypatch.setattr(keysets, "_FETCH_SECONDS", 60.0)
    before = keys._state.fetched_at

    def is_fetched() -> bool:
        # A fetch that failed may still be under way.
        pass_time(keys, clock, PAUSE_SECONDS)
        return keys._state.fetched_at > before

    eventually(is_fetched)
    assert keys._state.keys is not None
    assert [{*key.schemes} for key in keys._state.keys.find("k")] == [{"ES256"}]


@pytest.mark.parametrize(
    "discovery",
    [
        {},
        {"issuer": "https://other.example", "jwks_uri": "https://other.example/keys"},
        {"issuer": None},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://keys.example/keys"},
        {"jwks_uri": "https://user:secret@keys.example/"},
        {"jwks_uri": ["https://keys.example"]},
    ],
    ids=repr,
)
def test_a_discovery_document_that_is_not_this_issuers_gives_no_keys(
    discovery: dict[str, Any], provider: Provider
) -> None:
    provider.discovery = {"issuer": provider.url, **discovery}
    with opened(RemoteKeySet(provider.url)) as keys:
        eventually(lambda: keys._state.tried_at > 0)
        assert keys.pending() is None
        with refused_with("signing_keys_unavailable"):
            keys.find("k")
    assert provider.fetches == 0


def test_a_fixed_uri_needs_no_discovery_and_headers_are_sent_along(provider: Provider) -> None:
    set_of_cluster = RemoteKeySet(
        "https://kubernetes.default.svc",
        jwks_uri=provider.url + "/keys",
        headers=lambda: {"Authorization": "Bearer pod"},
    )
    with opened(set_of_cluster) as keys:
        eventually(lambda: keys._state.keys is not None)
    assert provider.requests == {"/keys": 1}
    assert provider.headers[0]["Authorization"] == "Bearer pod"
    assert provider.headers[0]["Accept"] == "application/json"


def test_a_set_that_was_not_refreshed_in_time_is_not_used(
    keys: RemoteKeySet, provider: Provider, clock: FrozenClock
) -> None:
    # The process was suspended, so there was no attempt.
    clock.advance((FRESH_SECONDS + 1) * SECOND)
    provider.keys = [jwk_of(RSA_KEY, kid="new")]
    fetched = keys.pending()
    assert fetched is not None
    fetched.result(60)
    assert keys.find("k") == ()


def test_a_set_that_is_closed_while_it_fetches_says_nothing(
    keys: RemoteKeySet,
    provider: Provider,
    clock: FrozenClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked, closed = threading.Event(), threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.set()
        closed.wait(60)
        send(request, b"", 500)

    provider.answer = answer
    thread = keys._thread
    assert thread is not None
    pass_time(keys, clock, 240)
    assert asked.wait(60)
    keys.close()
    closed.set()
    thread.join(60)
    assert not thread.is_alive()
    assert caplog.messages == []


# Threads, loops and forks.


def issuer_token(issuer: str, kid: str = "k") -> str:
    now = int(time.time())
    claims = {"iss": issuer, "aud": "api", "sub": "u", "iat": now, "exp": now + 60}
    message = (
        f"{encode_segment({'alg': 'ES256', 'kid': kid, 'typ': 'at+jwt'})}.{encode_segment(claims)}"
    )
    signature = get_default_algorithms()["ES256"].sign(message.encode(), P256)
    return f"{message}.{b64(signature)}"


def owner(identity: Any) -> Owner[str]:
    return Owner(identity.subject, frozenset(), identity.issuer)


async def owner_later(identity: Any) -> Owner[str]:
    return owner(identity)


async def no_owner(_: str) -> None:
    return None


def blocking(url: str) -> Authenticator[str]:
    return Authenticator(
        MemoryKeyStore(),
        find_owner=lambda _: None,
        issuers=[issuers.ExternalIssuer(issuers.Provider.OIDC, url, audience="api", grants=None)],
        find_external_owner=owner,
    )


def key_set_of(authenticator: Any) -> RemoteKeySet:
    keys = authenticator.issuers[0].keys
    assert isinstance(keys, RemoteKeySet)
    return keys


def test_a_blocking_application_waits_for_the_first_fetch_only(provider: Provider) -> None:
    authenticator = blocking(provider.url)
    header = [f"Bearer {issuer_token(provider.url)}"]
    principals: list[Principal[str]] = []
    threads = [
        threading.Thread(target=lambda: principals.append(authenticator.authenticate(header)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [each.owner.id for each in principals] == ["u"] * 8
    assert provider.requests == {DISCOVERY: 1, "/keys": 1}
    key_set_of(authenticator).close()


def test_a_process_that_was_out_of_threads_fetches_later(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_to_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    authenticator = blocking(provider.url)
    header = [f"Bearer {issuer_token(provider.url)}"]
    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading.Thread, "start", refuse_to_start)
        for _ in range(2):
            with refused_with("store_unavailable"):
                authenticator.authenticate(header)
    assert authenticator.authenticate(header).owner.id == "u"
    key_set_of(authenticator).close()


def test_opening_an_authenticator_fetches_ahead_and_closing_ends_the_thread(
    provider: Provider,
) -> None:
    with blocking(provider.url) as authenticator:
        keys = key_set_of(authenticator)
        keys.open()
        eventually(lambda: keys._state.keys is not None)
        thread = keys._thread
        assert thread is not None
        assert thread.daemon
    eventually(lambda: not thread.is_alive())
    # It may be opened again.
    with authenticator:
        assert authenticator.authenticate([f"Bearer {issuer_token(provider.url)}"]).owner.id == "u"


def test_an_issuer_that_does_not_answer_is_503_within_five_seconds(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would go on for hours. That a request waits no longer than this is tested below.
    provider.answer = drip
    assert FETCH_SECONDS < WAIT_SECONDS < 5
    monkeypatch.setattr(keysets, "_FETCH_SECONDS", 0.5)
    authenticator = blocking(provider.url)
    header = [f"Bearer {issuer_token(provider.url)}"]
    for _ in range(3):
        with refused_with("signing_keys_unavailable"):
            authenticator.authenticate(header)
    # A busy machine may take the half second to find out where the keys are.
    assert provider.requests[DISCOVERY] == 1
    assert provider.fetches <= 1
    key_set_of(authenticator).close()


def test_a_request_does_not_wait_for_the_end_of_a_long_fetch(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def answer_late(request: BaseHTTPRequestHandler) -> None:
        released.wait(60)
        send(request, {"keys": provider.keys})

    provider.answer = answer_late
    monkeypatch.setattr(keysets, "_FETCH_SECONDS", 60)
    header = [f"Bearer {issuer_token(provider.url)}"]
    with blocking(provider.url) as authenticator:
        monkeypatch.setattr(core_tokens, "PENDING_SECONDS", 0.01)
        with refused_with("signing_keys_unavailable"):
            authenticator.authenticate(header)
        monkeypatch.setattr(core_tokens, "PENDING_SECONDS", 60)
        released.set()
        assert authenticator.authenticate(header).owner.id == "u"
    assert provider.fetches == 1


def test_one_set_serves_several_event_loops(provider: Provider) -> None:
    authenticator = AsyncAuthenticator(
        AsyncMemoryKeyStore(),
        find_owner=no_owner,
        issuers=[
            issuers.ExternalIssuer(issuers.Provider.OIDC, provider.url, audience="api", grants=None)
        ],
        find_external_owner=owner_later,
    )
    header = [f"Bearer {issuer_token(provider.url)}"]

    async def many() -> list[str]:
        found = await asyncio.gather(*(authenticator.authenticate(header) for _ in range(20)))
        return [each.owner.id for each in found]

    async def cancelled() -> None:
        task = asyncio.create_task(authenticator.authenticate(header))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancelled())
    results: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(many()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [["u"] * 20] * 3
    assert provider.fetches == 1

    async def opened() -> None:
        async with authenticator:
            assert (await authenticator.authenticate(header)).owner.id == "u"

    asyncio.run(opened())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_has_the_keys_and_a_thread_of_its_own(provider: Provider) -> None:
    from tests.forked import in_child

    with blocking(provider.url) as authenticator:
        keys = key_set_of(authenticator)
        eventually(lambda: keys._state.keys is not None)
        header = [f"Bearer {issuer_token(provider.url)}"]

        def child() -> None:
            assert keys._thread is None
            assert authenticator.authenticate(header).owner.id == "u"
            assert keys._thread is not None
            eventually(provider_was_asked_again)

        def provider_was_asked_again() -> bool:
            return keys._state.tried_at > before

        before = keys._state.tried_at
        in_child(child)
        eventually(lambda: provider.fetches == 2)
        assert authenticator.authenticate(header).owner.id == "u"


# Set-ups.


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example",
        "ftp://login.example",
        "file:///etc/passwd",
        "login.example",
        "https://",
        "https://user@login.example",
        "https://login.example/#x",
    ],
)
def test_an_issuer_that_is_no_https_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="Keys cannot be fetched"):
        RemoteKeySet(url)
    with pytest.raises(ConfigurationError, match="Keys cannot be fetched"):
        RemoteKeySet("kubernetes", jwks_uri=url)
    with pytest.raises(FetchError):
        fetch_json(url, seconds=1)


@pytest.mark.parametrize("url", ["https://login.example/", "http://localhost:1", "http://[::1]/x"])
def test_https_and_loopback_are_accepted(url: str) -> None:
    assert check_url(url) == url


def test_a_document_is_read_up_to_its_bound(provider: Provider) -> None:
    fits = b'{"x": "' + b" " * (MAX_DOCUMENT - 9) + b'"}'
    provider.answer = partial(send, value=fits)
    assert len(fetch_json(provider.url + "/keys", seconds=60)["x"]) == MAX_DOCUMENT - 9  # type: ignore[arg-type]
    provider.answer = partial(send, value=fits + b" ")
    with pytest.raises(FetchError, match="longer than"):
        fetch_json(provider.url + "/keys", seconds=60)


def test_a_server_without_tls_is_not_an_https_server(provider: Provider) -> None:
    with pytest.raises(FetchError, match="SSL"):
        fetch_json(provider.url.replace("http:", "https:"), seconds=60)
