"""Set-ups that cannot work are refused while the application starts, in words (ASVS 5.0, section 13.2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    ConfigurationError,
    KeyRing,
    SigningKey,
    TokenProfile,
    require,
    require_interactive,
)
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore


def nobody(_owner_id: str) -> Any:
    return None


@pytest.mark.parametrize("store", [MemoryKeyStore, None, "postgresql://u:hunter2@h/d", object()])
@pytest.mark.parametrize("authenticator", [Authenticator, AsyncAuthenticator])
def test_a_store_that_is_none(authenticator: Any, store: Any) -> None:
    with pytest.raises(ConfigurationError, match="no key store") as refused:
        authenticator(store, find_owner=nobody)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("find_owner", [None, "users", 5])
def test_owners_that_cannot_be_looked_up(find_owner: Any) -> None:
    with pytest.raises(ConfigurationError, match="find_owner must be a function"):
        Authenticator(MemoryKeyStore(), find_owner=find_owner)
    with pytest.raises(ConfigurationError, match="find_owner must be a function"):
        AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)


def test_an_async_store_in_a_blocking_authenticator() -> None:
    store: Any = AsyncMemoryKeyStore()
    with pytest.raises(ConfigurationError, match=r"store\.find is async"):
        Authenticator(store, find_owner=nobody)


@pytest.mark.parametrize("wrong", [["tasks:read"], nobody, None, 5])
@pytest.mark.parametrize("guard", [require, require_interactive])
def test_permissions_that_are_none(guard: Any, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a permission"):
        guard(wrong)


def test_an_age_without_a_unit() -> None:
    seconds: Any = 300
    with pytest.raises(ConfigurationError, match="such as timedelta"):
        require_interactive(max_age=seconds)


def test_a_token_of_a_time_without_a_zone() -> None:
    profile = TokenProfile(
        issuer="i", audience="a", keys=KeyRing([SigningKey.generate("k", "HS256")])
    )
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    naive = now.replace(tzinfo=None)
    lifetime = timedelta(hours=1)
    with pytest.raises(ValueError, match="time zone"):
        profile.issue(subject="u", now=naive, lifetime=lifetime)
    with pytest.raises(ValueError, match="time zone"):
        profile.issue(subject="u", now=now, authenticated_at=naive, lifetime=lifetime)
