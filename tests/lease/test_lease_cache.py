"""How the cache finds an entry: by a hash that proves nothing, and then by one that does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from msk_auth import Owner, Principal, local_principal
from msk_auth import leases as module
from msk_auth.leases import LeaseCache
from msk_auth.testing import FrozenClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class SharesItsSlot(bytes):
    """A header value whose hash is that of all others of this kind."""

    def __hash__(self) -> int:
        return 1


class TextThatSharesItsSlot(str):
    """The same as text."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1


def a_cache() -> LeaseCache[str]:
    return LeaseCache(timedelta(seconds=1), clock=FrozenClock(NOW))


def principal(name: str) -> Principal[str]:
    return local_principal(Owner(name, frozenset(), name), at=NOW, interactive=True)


def fill(
    cache: LeaseCache[str],
    header: str | bytes,
    name: str,
    *,
    began: float,
    has_spellings: bool = False,
) -> None:
    fingerprint = cache.fingerprint(header)
    cache.fill(fingerprint, began, principal(name), None, has_spellings=has_spellings)


def found(cache: LeaseCache[str], header: str | bytes) -> str | None:
    principal = cache.find([header])
    return None if principal is None else principal.user


def test_headers_that_share_a_slot_are_never_taken_for_each_other() -> None:
    cache, began = a_cache(), FrozenClock(NOW).monotonic()
    fill(cache, SharesItsSlot(b"Bearer one"), "ada", began=began)
    assert found(cache, SharesItsSlot(b"Bearer one")) == "ada"
    assert found(cache, SharesItsSlot(b"Bearer two")) is None
    assert found(cache, TextThatSharesItsSlot("Bearer öne")) is None


def test_garbage_is_not_digested() -> None:
    cache = a_cache()
    fill(cache, b"Bearer one", "ada", began=FrozenClock(NOW).monotonic())
    # Nothing can be digested with it.
    cache._secret = None  # type: ignore[assignment]
    assert found(cache, b"Bearer garbage") is None
    with pytest.raises(TypeError):
        found(cache, b"Bearer one")


@pytest.mark.parametrize("header", ["Bearer \udcff", "Bearer é", "Bearer \U0001f511"])
def test_an_id_that_cannot_exist_is_not_found(header: str) -> None:
    cache, began = a_cache(), FrozenClock(NOW).monotonic()
    fill(cache, SharesItsSlot(b"Bearer one"), "ada", began=began)
    assert found(cache, TextThatSharesItsSlot(header)) is None


# Credentials that may have several spellings.


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_whatever_is_filled_evicted_and_cleared(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Compared with a list that is searched through."""
    monkeypatch.setattr(module, "_MAX_SPELLINGS", 3)
    monkeypatch.setattr(module, "MAX_ENTRIES", 8)
    random, cache = Random(seed), a_cache()
    listed: list[tuple[str, str, bool]] = []
    # Two of the headers share their slot: the later one has it.
    headers = [f"Bearer {number}" for number in range(12)]
    headers += [TextThatSharesItsSlot("Bearer a"), TextThatSharesItsSlot("Bearer b")]
    for step in range(400):
        if random.random() < 0.01:
            random.choice([cache.clear, cache._renew])()
            listed.clear()
        header, name, has_spellings = (
            random.choice(headers),
            random.choice(["ada", "bob"]),
            random.random() < 0.7,
        )
        fill(cache, header, name, began=step / 1000, has_spellings=has_spellings)
        listed = [each for each in listed if hash(each[0]) != hash(header)]
        own = [each for each in listed if each[1:] == (name, True)]
        if has_spellings and len(own) == 3:
            listed.remove(own[0])
        if len(listed) == 8:
            del listed[0]
        listed.append((header, name, has_spellings))
        assert [*cache._entries] == [hash(header) for header, _, _ in listed]
        assert [found(cache, header) for header in headers] == [
            {header: name for header, name, _ in listed}.get(header) for header in headers
        ]
        # What was removed is not counted any more, and an owner without logins is not kept.
        assert {owner_id: [*slots] for owner_id, slots in cache._spellings.items()} == {
            owner_id: [hash(each[0]) for each in listed if each[1:] == (owner_id, True)]
            for owner_id in {each[1] for each in listed if each[2]}
        }
