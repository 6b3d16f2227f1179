"""A backup may spell the UUIDs of owners in another way: their keys still belong to them, on every store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL
from tests.cases import case, refused_with
from tests.stores.support import engine_on, sqlite_url

from msk_auth import Authenticator, KeyLimits, KeyStatus, Owner, Principal, local_principal
from msk_auth.errors import KeyLimitReached, KeyNotFound
from msk_auth.events import KeyEvent
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore
from msk_auth.testing import FrozenClock

SPELLED = "0190a6e4-1b7c-7def-8abc-0123456789ab"
STORED = SPELLED.replace("-", "")
OTHER = "0190a6e4-1b7c-7def-8abc-0123456789ac"


class Site:
    """An application with the usual spelling of ids, on the keys of one with another.

    Args:
        store: Of its keys.
        stored: How the owner of its one key is spelled.
    """

    def __init__(self, store: Any, stored: str) -> None:
        self.clock = FrozenClock()
        self.now = self._on(store, lambda _: Owner(SPELLED, {"read"}, "Ann"))
        self.before = self._on(store, lambda owner_id: Owner(owner_id, {"read"}, "Ann"))
        self.key = self.before.create_key(self.person(stored), name="from before")

    def _on(self, store: Any, find_owner: Any) -> Authenticator[str]:
        return Authenticator(
            store,
            find_owner=find_owner,
            key_limits=lambda: KeyLimits(max_active=1),
            clock=self.clock,
        )

    def person(self, owner_id: str) -> Principal[str]:
        owner = Owner(owner_id, {"read"}, "Ann")
        return local_principal(owner, at=self.clock.now(), interactive=True)


@pytest.fixture(params=[STORED, SPELLED.upper(), STORED.upper()])
def stored(request: pytest.FixtureRequest) -> str:
    spelling: str = request.param
    return spelling


@pytest.fixture(params=["memory", "sqlite", "postgres", "mariadb"])
def site(request: pytest.FixtureRequest, stored: str, tmp_path: Path) -> Iterator[Site]:
    if request.param == "memory":
        yield Site(MemoryKeyStore(), stored)
        return
    with ExitStack() as stack:
        url = (
            sqlite_url(tmp_path)
            if request.param == "sqlite"
            else request.getfixturevalue(f"{request.param}_url")
        )
        store = SQLAlchemyKeyStore(stack.enter_context(engine_on(url)))
        stack.callback(store.close)
        yield Site(store, stored)


def test_its_owner_finds_edits_and_revokes_a_key(site: Site) -> None:
    ann = site.person(SPELLED)
    [listed] = site.now.list_keys(ann).items
    assert listed.id == site.now.get_key(ann, site.key.record.id).id == site.key.record.id
    assert site.now.update_key(ann, listed.id, name="found again").name == "found again"
    assert site.now.revoke_key(ann, listed.id).status(site.clock.now()) is KeyStatus.REVOKED


def test_it_counts_against_the_limit_of_its_owner(site: Site) -> None:
    ann = site.person(SPELLED)
    with pytest.raises(KeyLimitReached):
        site.now.create_key(ann, name="one too many")
    site.now.revoke_key(ann, site.key.record.id)
    assert site.now.create_key(ann, name="another").record.owner_id == SPELLED


@pytest.mark.parametrize("other", [STORED, SPELLED.upper()])
def test_two_keys_that_are_made_at_once_count_against_one_limit(url: URL, other: str) -> None:
    refused: list[KeyLimitReached] = []

    def create_another() -> None:
        try:
            site.now.create_key(site.person(other), name="another one")
        except KeyLimitReached as problem:
            refused.append(problem)

    another = threading.Thread(target=create_another)

    def create_at_once(_connection: object, event: KeyEvent) -> None:
        if event.record.name == "one":
            another.start()
            # It waits for this transaction. Without that it would be done by now.
            another.join(0.5)

    with (
        engine_on(url) as engine,
        closing(SQLAlchemyKeyStore(engine, on_change=create_at_once)) as store,
    ):
        site = Site(store, OTHER)
        site.now.create_key(site.person(SPELLED), name="one")
        another.join(60)
        assert len(refused) == 1
        assert len(site.now.list_keys(site.person(SPELLED)).items) == 1


def test_forgetting_its_owner_revokes_it(site: Site) -> None:
    assert site.now.forget_owner(SPELLED) == 1
    with refused_with("key_revoked"):
        site.now.authenticate([f"Bearer {site.key.value.reveal()}"])


def test_another_owner_does_not_find_it(site: Site) -> None:
    for stranger in (OTHER, OTHER.replace("-", ""), f"{SPELLED} ", SPELLED[:-1]):
        ben = site.person(stranger)
        with case(stranger):
            assert list(site.before.list_keys(ben).items) == []
            assert site.before.forget_owner(stranger) == 0
            for method in (site.before.get_key, site.before.revoke_key):
                with pytest.raises(KeyNotFound):
                    method(ben, site.key.record.id)


# To a collation these are the owner's own spellings, for some with the length of another one.
@pytest.mark.parametrize("stored", [f"{SPELLED} ", f"{STORED} ", f"{STORED}    "])
def test_an_owner_does_not_find_the_key_of_one_whose_id_ends_in_spaces(site: Site) -> None:
    ann = site.person(SPELLED)
    assert list(site.now.list_keys(ann).items) == []
    assert site.now.forget_owner(SPELLED) == 0
    assert site.now.create_key(ann, name="within the limit").record.owner_id == SPELLED
