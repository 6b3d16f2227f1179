"""The slow digest for imported keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from argon2.exceptions import VerificationError
from tests.cases import refused_with

from msk_auth import (
    ApiKey,
    Authenticator,
    KeyFormat,
    KeyHasher,
    Owner,
    argon2,
)
from msk_auth.argon2 import Argon2Digest
from msk_auth.stores.memory import MemoryKeyStore

KEY = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"
CHEAP = Argon2Digest("cheap")


@pytest.fixture
def out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """No digest can be verified."""

    def fail(*_args: Any) -> bool:
        raise VerificationError("Memory allocation error")

    monkeypatch.setattr(argon2.PasswordHasher, "verify", fail)


def test_a_digest_verifies_its_own_key_and_no_other() -> None:
    encoded = CHEAP.digest(KEY)
    assert CHEAP.verify(KEY, encoded) is True
    assert CHEAP.verify(KEY[:-1] + "P", encoded) is False
    assert CHEAP.verify("", encoded) is False


def test_two_digests_of_a_key_differ() -> None:
    assert CHEAP.digest(KEY) != CHEAP.digest(KEY)


def test_the_default_costs_what_owasp_recommends() -> None:
    encoded = Argon2Digest().digest(KEY)
    assert encoded.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    # Whatever the profile of the verifier is.
    assert CHEAP.verify(KEY, encoded) is True


def test_a_digest_of_other_software_verifies() -> None:
    # A vector of the reference implementation's own tests (phc-winner-argon2, test.c, version 19).
    encoded = (
        "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
    )
    assert CHEAP.verify("password", encoded) is True
    assert CHEAP.verify("Password", encoded) is False


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        ("$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$x", True),
        ("$argon2id$", True),
        ("$argon2i$v=19$m=8,t=1,p=1$c29tZXNhbHQ$x", False),
        ("sha256:ab", False),
        ("", False),
    ],
)
def test_it_recognises_its_own_scheme(encoded: str, expected: bool) -> None:
    assert CHEAP.recognises(encoded) is expected


def changed(**parts: str) -> str:
    m, t, p, salt, digest = (
        parts.get(name, default)
        for name, default in [
            ("m", "8"),
            ("t", "1"),
            ("p", "1"),
            ("salt", "c29tZXNhbHQ"),
            ("digest", "A" * 43),
        ]
    )
    return f"$argon2id$v=19$m={m},t={t},p={p}${salt}${digest}"


@pytest.mark.parametrize(
    "encoded",
    [
        "$argon2id$",
        changed().replace("v=19", "v=16"),
        changed().replace("argon2id", "argon2d"),
        changed(m="-1"),
        changed(m="8.0"),
        changed(m="4294967295"),
        changed(m="262145"),
        changed(t="17"),
        changed(p="17"),
        changed(salt="*"),
        changed(digest=""),
        changed(digest="A" * 87),
        changed() + "\n",
        changed() + "$extra",
    ],
)
def test_what_is_malformed_or_demands_too_much_is_refused_without_hashing(
    encoded: str, out_of_memory: None
) -> None:
    assert CHEAP.verify(KEY, encoded) is False


def test_lack_of_memory_is_not_a_refusal(out_of_memory: None) -> None:
    with pytest.raises(VerificationError):
        CHEAP.verify(KEY, CHEAP.digest(KEY))


def test_an_imported_key_authenticates_and_keeps_its_slow_digest() -> None:
    store = MemoryKeyStore()
    created_at = datetime(2026, 1, 1, tzinfo=UTC)
    encoded = CHEAP.digest(KEY)
    key_id = KeyFormat().parse(KEY).id
    store.insert(
        ApiKey(key_id, "imported", "ann", encoded, None, created_at),
        max_active=None,
        now=created_at,
    )
    authenticator = Authenticator(
        store,
        find_owner=lambda owner_id: Owner(owner_id, frozenset({"read"}), user=owner_id),
        hasher=KeyHasher(slow=CHEAP),
    )
    assert authenticator.authenticate([f"Bearer {KEY}"]).user == "ann"
    authenticator.flush()
    found = store.find(key_id)
    assert found is not None
    assert found.digest == encoded
    other = "msk_AAAAAAAAAAAA_0000000000000000000000000000000700iItp"
    with refused_with("key_unknown"):
        authenticator.authenticate([f"Bearer {other}"])
