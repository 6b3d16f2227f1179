"""Which keys exist is not revealed: a look-up of an unknown id takes the same steps as one of a known id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL
from tests.cases import refused_with
from tests.contract.world import checksum
from tests.core.support import functions_called
from tests.stores.support import async_engine_on, engine_on, sqlite_url

from msk_auth import Authenticator, Owner, local_principal
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore, _sqlite, _table
from msk_auth.testing._store_contract import NOW, make_record

ADA = Owner("ada", frozenset({"tasks:read"}), "ada")


def key_with_id(key_id: str) -> str:
    body = f"msk_{key_id}_{'A' * 32}"
    return body + checksum(body)


def refuse(authenticator: Authenticator[str], key: str) -> Callable[[], None]:
    def work() -> None:
        with refused_with("key_unknown"):
            authenticator.authenticate([f"Bearer {key}"])

    return work


@pytest.mark.parametrize("short_way", [True, False], ids=["short way", "through SQLAlchemy"])
def test_an_unknown_id_and_a_wrong_secret_take_the_same_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, short_way: bool
) -> None:
    # Once a millisecond the file is looked at, whatever is looked for.
    monkeypatch.setattr(_sqlite, "BELIEF_SECONDS", 3600.0)
    with engine_on(sqlite_url(tmp_path)) as engine:
        store = SQLAlchemyKeyStore(engine)
        authenticator = Authenticator(store, find_owner=lambda _: ADA)
        owner = local_principal(ADA, at=NOW, interactive=True)
        ids = sorted(authenticator.create_key(owner, name="ci").record.id for _ in range(2))
        # Between the two, so that there is a key that comes next.
        unknown = key_with_id(ids[0][:-1] + chr(ord(ids[0][-1]) + 1))
        if unknown[4:16] == ids[1] or not unknown[15].isalnum():
            unknown = key_with_id("0" * 12)
        wrong = key_with_id(ids[1])
        if not short_way:
            store.close()
        for key in (wrong, unknown):
            refuse(authenticator, key)()
        steps = functions_called(refuse(authenticator, wrong))
        assert ("call", "verify") in steps
        assert ("call", "first_record") in steps
        assert functions_called(refuse(authenticator, unknown)) == steps
        present = functions_called(lambda: authenticator.revoke_presented_key(wrong))
        absent = functions_called(lambda: authenticator.revoke_presented_key(unknown))
        assert absent == present
        store.close()


def test_an_unknown_key_is_not_mistaken_for_the_next_one(url: URL) -> None:
    with engine_on(url) as engine:
        store = SQLAlchemyKeyStore(engine)
        unknown = ("000000000000", "MMMMMMMMMMMM", "zzzzzzzzzzzz")
        assert [store.find(key_id) for key_id in unknown] == [None] * 3  # of an empty table
        for each in ("Aaaaaaaaaaaa", "aAAAAAAAAAAA", "nnnnnnnnnnnn"):
            store.insert(make_record(each), max_active=None, now=NOW)
        for _ in range(2):
            for key_id in unknown:
                assert store.find(key_id) is store.find(key_id + "0") is None
            # Neither by another case nor by a beginning.
            assert store.find("aaaaaaaaaaaa") is store.find("aAAAAAAAAAA") is None
            found = store.find("aAAAAAAAAAAA")
            assert found is not None
            assert found.id == "aAAAAAAAAAAA"
            # And through SQLAlchemy.
            store.close()
        store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
async def test_as_many_records_are_made_whether_keys_exist_or_not(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    original = _table.read_record
    monkeypatch.setattr(_table, "read_record", lambda row: made.append(row) or original(row))
    engine = async_engine_on(url)
    store = AsyncSQLAlchemyKeyStore(engine)
    await store.insert(make_record("b" * 12), max_active=None, now=NOW)
    await store.find("b" * 12)  # opens the short way
    for key_id in ("b" * 12, "a" * 12, "c" * 12):
        made.clear()
        await store.find(key_id)
        assert len(made) == 1
    if engine.dialect.name == "postgresql":
        for key_ids in (["b" * 12], ["a" * 12], ["a" * 12, "b" * 12, "c" * 12]):
            made.clear()
            found = await store.find_many(key_ids)
            assert len(made) == len(key_ids)
            assert [record.id for record in found] == ["b" * 12] * ("b" * 12 in key_ids)
    await store.aclose()
    await engine.dispose()
