"""What one verification costs the processor, against the least work that could do it.

For a key that is: read the header, take the id out of the key, look a digest up in a dictionary, make the HMAC of the
key, compare the two in constant time. For a login token: take it apart, make the HMAC, compare, read the claims, look
at the time. What is compared with a database is in `authoritative`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from msk_auth import Authenticator, SigningKey, TokenProfile
from msk_auth.core.keys import checksum
from msk_auth.errors import Problem
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.tokens import AlgorithmName

from . import subjects
from .machine import describe
from .result import Column, Result
from .timing import Call, Scale, Work, rows, take_turns

ALGORITHMS: tuple[AlgorithmName, ...] = ("HS256", "ES256", "Ed25519", "RS256")
KEY, TOKEN, REFUSED = "API key", "Login token", "Refused"
LEAST_KEY = "least work for a key"
UNKNOWN_KEY = "unknown key"
LEAST_TOKEN = "least work for an HS256 token"


def accept(auth: Authenticator[str], credential: str) -> Call:
    """A verification that succeeds."""
    header = [f"Bearer {credential}".encode()]
    auth.authenticate(header)
    return lambda: auth.authenticate(header)


def refuse(auth: Authenticator[str], credential: str, code: str) -> Call:
    """A verification that fails, and with this code only."""
    header = [f"Bearer {credential}".encode()]

    def work() -> None:
        try:
            auth.authenticate(header)
        except Problem as problem:
            if problem.code == code:
                return
        raise AssertionError(f"this credential must be refused with {code}")

    work()
    return work


def least_for_a_key(credential: str) -> Call:
    """See the module."""
    header = f"Bearer {credential}".encode()
    digests = {credential[4:16]: hmac.digest(subjects.PEPPER, credential.encode(), "sha256")}

    def work() -> None:
        key = header.decode().split(" ")[1]
        digest = hmac.digest(subjects.PEPPER, key.encode(), "sha256")
        assert hmac.compare_digest(digest, digests[key[4:16]])

    return work


def least_for_a_token(secret: bytes, token: str) -> Call:
    """See the module."""
    header = f"Bearer {token}".encode()

    def work() -> None:
        signed, _, signature = header.decode().split(" ")[1].rpartition(".")
        digest = hmac.digest(secret, signed.encode(), "sha256")
        assert hmac.compare_digest(digest, _decode(signature))
        claims: dict[str, Any] = json.loads(_decode(signed.partition(".")[2]))
        assert claims["exp"] > time.time()

    return work


def bare_signature_check(key: SigningKey, token: str) -> Call:
    """The cryptography alone."""
    signed, _, signature = token.rpartition(".")
    message, raw = signed.encode(), _decode(signature)

    def work() -> None:
        assert key.verify(message, raw)

    return work


def works(runner: asyncio.Runner) -> Iterator[Work]:
    """Everything that is measured here, ready to be called."""
    store = MemoryKeyStore()
    keys = {name: SigningKey.generate("k", name) for name in ALGORITHMS}
    profiles = {
        name: TokenProfile(issuer=name, audience="a", keys=[key]) for name, key in keys.items()
    }
    plain = subjects.authenticator(store, tokens=tuple(profiles.values()))
    leased = subjects.authenticator(
        store, tokens=tuple(profiles.values()), lease=subjects.LONG_LEASE
    )
    now = plain.clock.now()
    tokens = {
        name: profile.issue(subject="ada", now=now, lifetime=timedelta(hours=1))
        for name, profile in profiles.items()
    }
    key = plain.create_key(subjects.interactive(), name="benchmark").value.reveal()
    header = [f"Bearer {key}".encode()]
    # The record again, in a store of the other kind.
    other_store = AsyncMemoryKeyStore()
    runner.run(other_store.insert(store.find(key[4:16]), max_active=None, now=now))  # type: ignore[arg-type]
    other = subjects.async_authenticator(other_store, lease=subjects.LONG_LEASE)

    unknown = plain.rules.key_format.generate().reveal()

    yield Work(KEY, LEAST_KEY, least_for_a_key(key))
    yield Work(KEY, "key, leased", accept(leased, key), LEAST_KEY, 0.45)
    yield Work(
        KEY,
        "key, leased, awaited",
        lambda: other.authenticate(header),
        LEAST_KEY,
        0.45,
        is_async=True,
    )
    yield Work(KEY, "key, read from memory", accept(plain, key), LEAST_KEY, 5.0)

    yield Work(TOKEN, LEAST_TOKEN, least_for_a_token(keys["HS256"].export(), tokens["HS256"]))
    for name, token in tokens.items():
        yield Work(TOKEN, f"{name}, leased", accept(leased, token), LEAST_TOKEN, 0.45)
    for name, token in tokens.items():
        reference = LEAST_TOKEN
        if name != "HS256":
            reference = f"{name}, signature check alone"
            yield Work(TOKEN, reference, bare_signature_check(keys[name], token))
        yield Work(TOKEN, f"{name}, first sight", accept(plain, token), reference)

    broken = key[:-1] + ("0" if key[-1] != "0" else "1")
    # Time must not tell a wrong secret from an unknown id.
    for what, credential, code, against, at_most in (
        ("malformed key", "msk_not_a_key", "key_malformed", LEAST_KEY, 1.0),
        ("wrong checksum", broken, "key_malformed", LEAST_KEY, 1.0),
        (UNKNOWN_KEY, unknown, "key_unknown", LEAST_KEY, None),
        ("wrong secret", _with_another_secret(key, plain), "key_unknown", UNKNOWN_KEY, 1.05),
        ("forged token", tokens["HS256"][:-4] + "AAAA", "token_invalid", LEAST_KEY, None),
    ):
        yield Work(REFUSED, what, refuse(leased, credential, code), against, at_most)


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("pyjwt", "cryptography")
    with asyncio.Runner() as runner:
        made = list(works(runner))
        samples = take_turns(
            made, rounds=scale.pick(2, 60), seconds=scale.pick(1, 80) / 10_000, runner=runner
        )
    return Result(
        name="verification",
        title="One verification, in process",
        method="Processor time of one call of `authenticate`, with everything in memory; blocking, except where it"
        " says awaited. A lease lasts 5 seconds here, so that nearly every call finds one.",
        columns=[Column("time", "Time", "µs"), Column("ratio", "Ratio")],
        rows=rows(made, samples),
        measured=measured,
    )


def _with_another_secret(key: str, auth: Authenticator[str]) -> str:
    """A key that is well-formed, has the id of this one, and another secret."""
    key_format = auth.rules.key_format
    body = key[:17] + key_format.generate().reveal()[17:49]
    return body + checksum(body)


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
