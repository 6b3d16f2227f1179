"""What the store holds instead of a key (design, section 3; ASVS 5.0, 6.5.2 and 11.4)."""

from __future__ import annotations

import hashlib
import hmac
import random
import re
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case
from tests.core.support import OTHER_SECRET, SECRET, functions_called

from msk_auth import KeyFormat, KeyHasher, PepperRing
from msk_auth.errors import ConfigurationError

KEY = KeyFormat().generate().reveal()
OTHER = KeyFormat().generate().reveal()
OLD, NEW = SECRET, OTHER_SECRET

PLAIN = KeyHasher()
PEPPERED_OLD = KeyHasher(PepperRing({"2025": OLD}, current="2025"))
BOTH = KeyHasher(PepperRing({"2025": OLD, "2026": NEW}, current="2026"))
RETIRED = KeyHasher(PepperRing({"2026": NEW}, current="2026"))
STRICT = KeyHasher(PepperRing({"2026": NEW}, current="2026"), accept_unpeppered=False)


class FakeSlow:
    """A slow scheme that is quick, and counts."""

    def __init__(self) -> None:
        self.verified = 0

    def recognises(self, encoded: str) -> bool:
        return encoded.startswith("$slow$")

    def verify(self, key: str, encoded: str) -> bool:
        self.verified += 1
        return encoded == f"$slow${key[::-1]}"


def test_without_a_pepper_a_digest_is_sha256_of_the_whole_key_in_its_own_domain() -> None:
    expected = hashlib.sha256(b"msk_auth/api-key/v1\x00" + KEY.encode()).hexdigest()
    assert PLAIN.digest(KEY) == f"sha256:{expected}"


def test_with_a_pepper_a_digest_is_hmac_sha256_and_names_the_current_pepper() -> None:
    expected = hmac.new(NEW, b"msk_auth/api-key/v1\x00" + KEY.encode(), "sha256").hexdigest()
    assert BOTH.digest(KEY) == f"hmac-sha256:2026:{expected}"


def test_a_hasher_with_a_ring_uses_it_and_accepts_digests_from_before() -> None:
    hasher = KeyHasher(PepperRing({"2026": NEW}, current="2026"))
    assert hasher.digest(KEY) == BOTH.digest(KEY)
    assert hasher.verify(KEY, PLAIN.digest(KEY)) is True


# Which digests verify under which configuration, and whether they are then replaced.
TABLE = [
    # configuration, stored, verifies, needs_rehash
    (PLAIN, PLAIN.digest(KEY), True, False),
    (PLAIN, BOTH.digest(KEY), False, True),  # without its ring no peppered digest is accepted
    (PEPPERED_OLD, PLAIN.digest(KEY), True, True),
    (PEPPERED_OLD, PEPPERED_OLD.digest(KEY), True, False),
    (PEPPERED_OLD, BOTH.digest(KEY), False, True),  # a pepper that is not known here yet
    (BOTH, PEPPERED_OLD.digest(KEY), True, True),
    (BOTH, BOTH.digest(KEY), True, False),
    (RETIRED, PEPPERED_OLD.digest(KEY), False, True),
    (RETIRED, BOTH.digest(KEY), True, False),
    (STRICT, PLAIN.digest(KEY), False, True),
    (STRICT, BOTH.digest(KEY), True, False),
]


@pytest.mark.parametrize(("hasher", "stored", "verifies", "needs_rehash"), TABLE)
def test_configuration_and_stored_digest_decide(
    hasher: KeyHasher, stored: str, verifies: bool, needs_rehash: bool
) -> None:
    assert hasher.verify(KEY, stored) is verifies
    assert hasher.verify(OTHER, stored) is False
    assert hasher.needs_rehash(stored) is needs_rehash
    assert hasher.is_slow(stored) is False


def test_without_a_ring_only_unpeppered_digests_are_accepted() -> None:
    hasher = KeyHasher(accept_unpeppered=False)
    assert hasher.verify(KEY, hasher.digest(KEY)) is True
    assert hasher.verify(KEY, hasher.decoy) is False


OTHER_TEXTS = [
    "",
    ":",
    "::",
    "sha256",
    "sha256:",
    "SHA256:" + PLAIN.digest(KEY)[7:],
    "sha256:" + PLAIN.digest(KEY)[7:].upper(),
    PLAIN.digest(KEY) + " ",
    PLAIN.digest(KEY)[:-1],
    PLAIN.digest(KEY)[7:],
    "hmac-sha256:",
    "hmac-sha256::" + "0" * 64,
    "hmac-sha256:2026",
    "hmac-sha256:2026:",
    "hmac-sha256:2026:" + PLAIN.digest(KEY)[7:],
    "sha256:2026:" + BOTH.digest(KEY)[17:],
    "md5:" + hashlib.md5(KEY.encode()).hexdigest(),
    "plain:" + KEY,
    KEY,
    "$argon2id$v=19$m=19456,t=2,p=1$AAAA$AAAA",
    "sha256:é" + "0" * 63,
    "sha256:\x00",
    "sha256:\ud800",
    "hmac-sha256:\ud800:\ud800",
    "hmac-sha256:2026:\U0001f511",
]


@pytest.mark.parametrize("hasher", [PLAIN, BOTH, STRICT])
def test_any_other_stored_text_verifies_nothing_and_raises_nothing(hasher: KeyHasher) -> None:
    for stored in OTHER_TEXTS:
        with case(stored):
            assert hasher.verify(KEY, stored) is False


@given(st.text())
def test_no_stored_text_verifies_a_key(stored: str) -> None:
    for hasher in (PLAIN, BOTH):
        assert hasher.verify(KEY, stored) is False
        assert hasher.verify(KEY, f"hmac-sha256:2026:{stored}") is False
        assert hasher.verify(KEY, f"sha256:{stored}") is False


@pytest.mark.parametrize("hasher", [PLAIN, BOTH])
@pytest.mark.parametrize("presented", [KEY, OTHER])
def test_digests_are_compared_in_constant_time(
    hasher: KeyHasher, presented: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    constant_time = hmac.compare_digest

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((first, second))
        return constant_time(first, second)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    stored = hasher.digest(KEY)
    assert hasher.verify(presented, stored) is (presented == KEY)
    computed = hasher.digest(presented).rpartition(":")[2].encode()
    assert compared == [(computed, stored.rpartition(":")[2].encode())]


def count_work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that every hash and every comparison is noted in."""
    work: list[str] = []

    def counted(owner: ModuleType, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: object) -> object:
            work.append(name)
            return original(*args)

        monkeypatch.setattr(owner, name, call)

    counted(hashlib, "sha256")
    counted(hmac, "digest")
    counted(hmac, "compare_digest")
    return work


WITHOUT_A_RING = ["sha256", "compare_digest"]
WITH_A_RING = ["sha256", "digest", "compare_digest"]


@pytest.mark.parametrize(
    ("hasher", "stored", "steps"),
    [
        (PLAIN, PLAIN.digest(OTHER), WITHOUT_A_RING),
        (PLAIN, BOTH.digest(OTHER), WITHOUT_A_RING),
        (PLAIN, "unknown:scheme", WITHOUT_A_RING),
        (BOTH, BOTH.digest(OTHER), WITH_A_RING),
        (BOTH, PEPPERED_OLD.digest(OTHER), WITH_A_RING),
        (BOTH, PLAIN.digest(OTHER), WITH_A_RING),
        (BOTH, "unknown:scheme", WITH_A_RING),
        (RETIRED, PEPPERED_OLD.digest(OTHER), WITH_A_RING),
        (STRICT, STRICT.digest(OTHER), WITH_A_RING),
        (STRICT, PLAIN.digest(OTHER), WITH_A_RING),
    ],
    ids=[
        "no ring",
        "no ring, peppered",
        "no ring, unknown scheme",
        "current pepper",
        "older pepper",
        "unpeppered",
        "unknown scheme",
        "retired pepper",
        "strict",
        "strict, unpeppered",
    ],
)
def test_an_unknown_key_costs_the_same_work_as_a_wrong_secret_of_any_scheme(
    hasher: KeyHasher, stored: str, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = count_work(monkeypatch)
    assert hasher.verify(KEY, stored) is False
    assert work == steps
    work.clear()
    assert hasher.verify(KEY, hasher.decoy) is False
    assert work == steps
    # And function by function, in the same order.
    wrong_secret = functions_called(lambda: hasher.verify(KEY, stored))
    assert functions_called(lambda: hasher.verify(KEY, hasher.decoy)) == wrong_secret


@pytest.mark.parametrize("length", [32, 64, 65, 127])
def test_a_pepper_of_any_length_verifies_and_takes_no_longer(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pepper = random.Random(length).randbytes(length)
    hasher = KeyHasher(PepperRing({"2025": pepper, "2026": NEW}, current="2026"))
    expected = hmac.new(pepper, b"msk_auth/api-key/v1\x00" + KEY.encode(), "sha256").hexdigest()
    assert hasher.verify(KEY, f"hmac-sha256:2025:{expected}") is True
    used: list[bytes] = []
    monkeypatch.setattr(hmac, "digest", lambda pepper, *_: used.append(pepper) or b"")
    hasher.verify(KEY, f"hmac-sha256:2025:{expected}")
    # HMAC hashes a key of more than 64 bytes, and takes longer.
    assert [len(key) <= 64 for key in used] == [True]


def test_a_digest_of_a_scheme_that_is_not_accepted_is_compared_and_verifies_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hmac, "compare_digest", lambda *_: True)
    for hasher in (PLAIN, RETIRED, STRICT):
        assert hasher.verify(KEY, hasher.digest(KEY)) is True
        for stored in ("", "unknown:scheme", "hmac-sha256:2025:", "hmac-sha256:"):
            assert hasher.verify(KEY, stored) is False
    assert PLAIN.verify(KEY, BOTH.digest(KEY)) is False
    assert STRICT.verify(KEY, PLAIN.digest(KEY)) is False


def test_the_decoy_verifies_no_key() -> None:
    for hasher in (PLAIN, BOTH):
        assert re.fullmatch(r"(sha256|hmac-sha256:2026):[0-9a-f]{64}", hasher.decoy)
        assert hasher.verify(KEY, hasher.decoy) is False


def test_a_slow_digest_is_recognised_verified_and_left_as_it_is() -> None:
    slow = FakeSlow()
    hasher = KeyHasher(PepperRing({"2026": NEW}, current="2026"), slow=slow)
    stored = f"$slow${KEY[::-1]}"
    assert hasher.is_slow(stored)
    assert not hasher.is_slow(hasher.digest(KEY))
    assert hasher.verify(KEY, stored) is True
    assert hasher.verify(OTHER, stored) is False
    assert hasher.needs_rehash(stored) is False
    assert slow.verified == 2
    assert hasher.verify(KEY, hasher.digest(KEY)) is True
    assert slow.verified == 2


def test_a_slow_digest_verifies_nothing_where_the_scheme_is_not_configured() -> None:
    assert PLAIN.verify(KEY, f"$slow${KEY[::-1]}") is False
    assert PLAIN.is_slow(f"$slow${KEY[::-1]}") is False


@pytest.mark.parametrize(
    ("peppers", "current", "message"),
    [
        ({}, "2026", r"'2026' is not in the ring: \[\]"),
        ({"2025": OLD}, "2026", r"'2026' is not in the ring: \['2025'\]"),
        ({"2026": b"n" * 31}, "2026", "has 31 bytes and needs 32"),
        ({"2026": b""}, "2026", "has 0 bytes"),
        ({"2025": OLD, "2026": b"n" * 32}, "2025", "The pepper '2026' has a pattern"),
        ({"": NEW}, "", "1 to 32 of"),
        ({"a:b": NEW}, "a:b", "1 to 32 of"),
        ({"a\n": NEW}, "a\n", "1 to 32 of"),
        ({"é": NEW}, "é", "1 to 32 of"),
        ({"a" * 33: NEW}, "a" * 33, "1 to 32 of"),
    ],
)
def test_a_pepper_ring_that_cannot_be_safe_is_refused_while_starting(
    peppers: dict[str, bytes], current: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PepperRing(peppers, current=current)


def test_a_pepper_ring_does_not_follow_later_changes_of_its_argument() -> None:
    peppers = {"2026": NEW}
    ring = PepperRing(peppers, current="2026")
    peppers["2026"] = OLD
    assert ring["2026"] == ring.get("2026") == NEW
    assert ring.get("2025") is None
    assert list(ring) == ["2026"]


def test_a_pepper_ring_shows_no_pepper() -> None:
    ring = PepperRing({"2026": NEW, "2025": OLD}, current="2026")
    assert repr(ring) == "<PepperRing ['2025', '2026'] current='2026'>"
