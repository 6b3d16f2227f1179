"""The library's migrations: they make exactly `api_key_table`, once, beside whatever else there is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, Engine, MetaData, create_engine, event, inspect, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.databases import mysql_database, postgres_database
from tests.stores.support import begin_deferred, begin_nothing, prepared, sqlite_url, untouched

from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table, migrations
from msk_auth.stores.sqlalchemy.migrations import VERSION_TABLE, upgrade
from msk_auth.testing._store_contract import NOW, make_record

NEWEST = max(path.name[:4] for path in Path(migrations.__file__).parent.glob("versions/0*.py"))


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[URL]:
    """A database without a table."""
    match request.param:
        case "sqlite":
            yield sqlite_url(tmp_path)
        case "postgres":
            with postgres_database() as url:
                yield url
        case _:
            with mysql_database() as url:
                yield url


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


def differences(engine: Engine) -> list[Any]:
    """What alembic would change to get from the database to the table of the library."""
    metadata = MetaData()
    api_key_table(metadata)

    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "table" or name in metadata.tables

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": is_ours})
        return list(compare_metadata(context, metadata))


def test_the_migrated_schema_is_the_table_of_the_library(engine: Engine) -> None:
    assert len(differences(engine)) == 5  # two tables, three indexes
    upgrade(engine)
    assert differences(engine) == []


def test_a_database_with_data_keeps_all_of_it(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('the application''s')"))
    upgrade(engine)
    store = SQLAlchemyKeyStore(engine)
    record = make_record("k")
    store.insert(record, max_active=1, now=NOW)
    upgrade(engine)
    assert store.find("k") == record
    store.close()
    with engine.connect() as connection:
        versions = connection.execute(text("SELECT version_num FROM alembic_version")).scalars()
        assert versions.all() == ["the application's"]


def test_keys_of_the_first_version_have_nothing_that_later_versions_added(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade_to = migrations.command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(migrations.command, "upgrade", lambda config, _: upgrade_to(config, "0001"))
        upgrade(engine)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO msk_auth_api_keys (id, name, owner_id, digest, created_at)"
                " VALUES ('old', 'ci', 'ann', 'sha256:00', 0)"
            )
        )
    upgrade(engine)
    assert differences(engine) == []
    store = SQLAlchemyKeyStore(engine)
    found = store.find("old")
    assert found is not None
    assert (found.name, found.description, found.labels) == ("ci", None, frozenset())
    assert (found.networks, found.announced_days) == (None, None)
    labels = frozenset({"env:prod"})
    assert store.update("old", owner_id="ann", fields={"labels": labels}) == replace(
        found, labels=labels
    )
    store.close()


def test_processes_that_start_together_migrate_once(url: URL) -> None:
    def start(_number: int) -> None:
        engine = create_engine(url)
        upgrade(engine)
        engine.dispose()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(start, range(6)))
    engine = create_engine(url)
    assert differences(engine) == []
    engine.dispose()


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
def test_a_process_that_waits_on_mariadb_sees_the_migration(engine: Engine, url: URL) -> None:
    seen: list[str] = []
    other = create_engine(url)

    @event.listens_for(engine, "before_cursor_execute")
    def look(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "RELEASE_LOCK" in statement:
            with other.connect() as connection:
                versions = text(f"SELECT version_num FROM {VERSION_TABLE}")
                seen.extend(connection.execute(versions).scalars())

    upgrade(engine)
    assert seen == [NEWEST]
    other.dispose()


@pytest.mark.parametrize("way", [prepared, untouched, begin_deferred, begin_nothing])
def test_a_migration_of_sqlite_that_fails_leaves_nothing_behind(tmp_path: Path, way: Any) -> None:
    engine = create_engine(sqlite_url(tmp_path))
    way(engine)
    with engine.begin() as connection:
        # The last step will find its name taken.
        connection.execute(text("CREATE TABLE msk_auth_api_keys_registers (x INTEGER)"))
    with pytest.raises(Exception, match="already exists"):
        upgrade(engine)
    assert inspect(engine).get_table_names() == ["msk_auth_api_keys_registers"]
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE msk_auth_api_keys_registers"))
    upgrade(engine)
    assert differences(engine) == []
    engine.dispose()


def test_a_process_does_not_wait_for_another_one_for_ever(
    mariadb_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_MAX_WAIT_SECONDS", 0)
    engine = create_engine(mariadb_url)
    with engine.connect() as other:
        assert other.scalar(text(f"SELECT GET_LOCK('{VERSION_TABLE}', 60)")) == 1
        with pytest.raises(TimeoutError):
            upgrade(engine)
    engine.dispose()


@pytest.mark.anyio
async def test_an_asynchronous_application_migrates_through_run_sync(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    engine = create_async_engine(url.set(drivername="sqlite+aiosqlite"))
    async with engine.connect() as connection:
        await connection.run_sync(upgrade)
    await engine.dispose()
    sync = create_engine(url)
    assert differences(sync) == []
    sync.dispose()


def test_a_folder_with_a_percent_sign_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "100%s"
    odd.symlink_to(Path(upgrade.__globals__["__file__"]).parent)
    monkeypatch.setitem(upgrade.__globals__, "_FOLDER", odd)
    engine = create_engine(sqlite_url(tmp_path))
    upgrade(engine)
    assert differences(engine) == []
    engine.dispose()
