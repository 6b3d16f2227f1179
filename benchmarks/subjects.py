"""What the measurements are about: an owner, authenticators, and databases of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, make_url
from tests.databases import postgres_database

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    KeyHasher,
    Owner,
    PepperRing,
    Principal,
    SystemClock,
    TokenProfile,
    local_principal,
)
from msk_auth.stores import AsyncKeyStore, KeyStore
from msk_auth.stores.sqlalchemy import prepare_sqlite
from msk_auth.stores.sqlalchemy.migrations import upgrade

PEPPER = b"a pepper of at least 32 bytes...."
OWNER: Owner[str] = Owner("ada", frozenset({"tasks:read"}), "ada")
LONG_LEASE = timedelta(seconds=5)


def find_owner(_owner_id: str) -> Owner[str]:
    """The application's look-up, at no cost: what is measured is the library's part."""
    return OWNER


async def find_owner_async(_owner_id: str) -> Owner[str]:
    """As `find_owner`."""
    return OWNER


def hasher(pepper_id: str = "a") -> KeyHasher:
    """With a pepper, as in production. With another id, the digests of the first one verify no more."""
    return KeyHasher(PepperRing({pepper_id: PEPPER}, current=pepper_id))


def authenticator(
    store: KeyStore,
    *,
    tokens: Sequence[TokenProfile] = (),
    lease: timedelta | None = None,
    pepper_id: str = "a",
) -> Authenticator[str]:
    """One that blocks."""
    return Authenticator(
        store, find_owner=find_owner, hasher=hasher(pepper_id), tokens=tokens, lease=lease
    )


def async_authenticator(
    store: AsyncKeyStore,
    *,
    tokens: Sequence[TokenProfile] = (),
    lease: timedelta | None = None,
    pepper_id: str = "a",
) -> AsyncAuthenticator[str]:
    """One that awaits."""
    return AsyncAuthenticator(
        store, find_owner=find_owner_async, hasher=hasher(pepper_id), tokens=tokens, lease=lease
    )


def interactive() -> Principal[str]:
    """Who may make keys."""
    return local_principal(OWNER, at=SystemClock().now(), interactive=True)


@contextmanager
def sqlite_url() -> Iterator[URL]:
    """A SQLite database in a temporary folder, with the library's tables."""
    with tempfile.TemporaryDirectory() as folder:
        url = make_url(f"sqlite:///{Path(folder) / 'keys.db'}")
        with engine_of(url) as engine:
            upgrade(engine)
        yield url


@contextmanager
def postgres_url() -> Iterator[URL | None]:
    """As `sqlite_url`, on PostgreSQL; None where there is no server."""
    with _optional_postgres() as url:
        if url is not None:
            with engine_of(url) as engine:
                upgrade(engine)
        yield url


@contextmanager
def engine_of(url: URL) -> Iterator[Engine]:
    """A blocking engine, disposed of afterwards."""
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _optional_postgres() -> Iterator[URL | None]:
    made = postgres_database()
    try:
        url = made.__enter__()
    except pytest.skip.Exception:
        yield None
        return
    try:
        yield url
    finally:
        made.__exit__(None, None, None)
