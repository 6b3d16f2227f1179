"""How the cache finds an entry: by a hash that proves nothing, and then by one that does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from msk_auth import Owner, Principal, local_principal
from msk_auth.leases.cache import LeaseCache
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
    return LeaseCache(timedelta(seconds=1), clock=FrozenClock(NOW), max_entries=10)


def principal(name: str) -> Principal[str]:
    return local_principal(Owner(name, frozenset(), name), at=NOW, interactive=True)


def fill(cache: LeaseCache[str], header: str | bytes, name: str, *, began: float) -> None:
    cache.fill(cache.fingerprint(header), began, principal(name), None)


def found(cache: LeaseCache[str], header: str | bytes) -> str | None:
    principal = cache.find([header])
    return None if principal is None else principal.user


def test_headers_that_share_a_slot_are_never_taken_for_each_other() -> None:
    cache, began = a_cache(), FrozenClock(NOW).monotonic()
    fill(cache, SharesItsSlot(b"Bearer one"), "ada", began=began)
    assert found(cache, SharesItsSlot(b"Bearer one")) == "ada"
    assert found(cache, SharesItsSlot(b"Bearer two")) is None
    assert found(cache, TextThatSharesItsSlot("Bearer öne")) is None


def test_of_headers_that_share_a_slot_the_later_one_has_it() -> None:
    cache, began = a_cache(), FrozenClock(NOW).monotonic()
    fill(cache, SharesItsSlot(b"Bearer one"), "ada", began=began)
    fill(cache, SharesItsSlot(b"Bearer two"), "bob", began=began)
    assert found(cache, SharesItsSlot(b"Bearer one")) is None
    assert found(cache, SharesItsSlot(b"Bearer two")) == "bob"
    assert len(cache) == 1


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
