"""No operation looks at more rows than it is about: every statement that a store runs uses an index for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, text
from tests.cases import case
from tests.stores.support import engine_on, sqlite_url

from msk_auth import Authenticator, KeyStatus, Owner, Principal, local_principal
from msk_auth.core.administration import MAX_READS
from msk_auth.keys import KeyFilter
from msk_auth.stores import ExpiryQuery, KeyQuery, KeyStore
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore
from msk_auth.testing._store_contract import HOUR, NOW, OWNER, make_record, rotate

# One owner has half of the keys, in every state; the others have ten each.
FILL = """
INSERT INTO msk_auth_api_keys (id, name, owner_id, digest, created_at, expires_at, revoked_at, deleted_at)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20000)
SELECT 'f' || n, 'name', CASE WHEN n % 2 = 0 THEN 'owner-1' ELSE 'o' || (n / 20) END, 'digest', n,
    CASE WHEN n % 3 = 0 THEN n WHEN n % 3 = 1 THEN 9000000000000000 END,
    CASE WHEN n % 4 = 0 THEN n END, CASE WHEN n % 8 = 0 THEN n END
FROM numbers
"""


@dataclass(frozen=True)
class Step:
    """What the database does for a part of a statement."""

    what: str
    index: str | None
    detail: str


def sqlite_plan(engine: Engine, statement: str, parameters: Any) -> list[Step]:
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    steps: list[Step] = []
    for *_, detail in rows:
        words = detail.split()
        if words[0] in {"SCAN", "SEARCH"} and words[1].startswith("msk_auth"):
            index = words[words.index("INDEX") + 1] if "INDEX" in words else None
            steps.append(Step(words[0].lower(), index, detail))
        elif "B-TREE" in words:
            steps.append(Step("sort", None, detail))
    return steps


def postgres_plan(engine: Engine, statement: str, parameters: Any) -> list[Step]:
    with engine.connect() as connection:
        (tree,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).one()
    nodes = [json.loads(tree)[0]["Plan"] if isinstance(tree, str) else tree[0]["Plan"]]
    steps: list[Step] = []
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", [])
        kind = node["Node Type"]
        if "Scan" in kind and kind not in {"Subquery Scan", "Bitmap Heap Scan"}:
            index = node.get("Index Name")
            bound = "Index Cond" in node
            steps.append(Step("search" if index and bound else "scan", index, json.dumps(node)))
        elif "Sort" in kind:
            steps.append(Step("sort", None, json.dumps(node)))
    return steps


@dataclass
class Database:
    engine: Engine
    store: KeyStore
    plan: Callable[[Engine, str, Any], list[Step]]

    def statements_of(self, operation: Callable[[KeyStore], object]) -> list[tuple[str, Any]]:
        """The statements of an operation, with their parameters."""
        seen: list[tuple[str, Any]] = []

        def note(
            _connection: object, _cursor: object, statement: str, parameters: Any, *_rest: object
        ) -> None:
            seen.append((statement, parameters))

        event.listen(self.engine, "before_cursor_execute", note)
        operation(self.store)
        event.remove(self.engine, "before_cursor_execute", note)
        assert seen
        return seen

    def steps_of(self, operation: Callable[[KeyStore], object]) -> list[Step]:
        """The plans of all statements of an operation, taken after it ran."""
        return [
            step
            for statement, parameters in self.statements_of(operation)
            if statement.startswith(("SELECT", "UPDATE"))
            for step in self.plan(self.engine, statement, parameters)
        ]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    on_sqlite = request.param == "sqlite"
    url: URL = (
        sqlite_url(tmp_path_factory.mktemp("plans"))
        if on_sqlite
        else request.getfixturevalue("postgres_url")
    )
    with engine_on(url) as engine:
        with engine.begin() as connection:
            if not on_sqlite:
                # What other tests have deleted takes room in the indexes until it is vacuumed, and makes them dearer.
                connection.execute(text("TRUNCATE msk_auth_api_keys"))
            connection.execute(text(FILL))
            # SQLite runs as it comes, PostgreSQL with the statistics it gathers by itself.
            if not on_sqlite:
                connection.execute(text("ANALYZE msk_auth_api_keys"))
        store = SQLAlchemyKeyStore(engine)
        # Without its short way, so that the statement of `find` is seen too.
        store.close()
        yield Database(engine, store, sqlite_plan if on_sqlite else postgres_plan)


def administration(store: Any) -> tuple[Any, Principal[str]]:
    owner: Owner[str] = Owner("root", {"keys:admin"}, "root")
    admin = Authenticator(store, find_owner=lambda _id: owner).admin_keys("keys:admin")
    return admin, local_principal(owner, at=NOW, interactive=True)


def revoke_as_an_administrator(store: Any) -> object:
    admin, root = administration(store)
    return admin.revoke_keys(root, ["f10014", "f10018"])


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "find": lambda store: store.find("f10000"),
    "touch": lambda store: store.touch({"f10000": NOW}),
    "replace_digest": lambda store: store.replace_digest("f10000", old="digest", new="digest"),
    "revoke": lambda store: store.revoke("f10002", owner_id=OWNER, at=NOW),
    "expire": lambda store: store.expire("f10002", owner_id=OWNER, at=NOW),
    "delete": lambda store: store.delete("f10006", owner_id=OWNER, at=NOW),
    "insert": lambda store: store.insert(make_record("new"), max_active=9000, now=NOW),
    "rotate": lambda store: rotate(
        store, "f10010", make_record("next"), ends_at=NOW + HOUR, max_active=9000
    ),
    "recorded_leases": lambda store: store.recorded_leases(),
    "announce_expiry": lambda store: store.announce_expiry("f10022", days=7),
    "revoke as an administrator": revoke_as_an_administrator,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_reads_a_whole_table(database: Database, name: str) -> None:
    steps = database.steps_of(OPERATIONS[name])
    assert steps
    assert [step for step in steps if step.what != "search"] == []


@pytest.mark.parametrize(
    "after", [None, (NOW, "zzz"), (NOW.replace(year=1970), "f5")], ids=["first", "next", "last"]
)
def test_a_page_is_read_off_the_index_without_sorting(database: Database, after: Any) -> None:
    query = KeyQuery(OWNER, NOW, after=after, limit=51)
    (step,) = database.steps_of(lambda store: store.list(query))
    assert step.what == "search"
    assert step.index == "ix_msk_auth_api_keys_listed"


@pytest.mark.parametrize(
    "after",
    [None, (OWNER, NOW, "zzz"), ("o777", NOW, "f141")],
    ids=["first", "next", "among others"],
)
def test_a_page_of_all_owners_is_read_off_the_index_without_sorting(
    database: Database, after: Any
) -> None:
    (step,) = database.steps_of(lambda store: store.list_all(after=after, limit=501))  # type: ignore[attr-defined]
    assert step.index == "ix_msk_auth_api_keys_listed"
    # The first page has no beginning; each of the others begins where the one before it ended.
    assert after is None or (step.what == "search" and "owner_id" in step.detail)


FILTERS = {
    "all": KeyFilter(),
    "one owner": KeyFilter(owner_id=OWNER),
    "one owner's active": KeyFilter(owner_id=OWNER, status=KeyStatus.ACTIVE),
    "one owner's label": KeyFilter(owner_id="o7", label="env:prod"),
    "created before": KeyFilter(created_before=NOW.replace(year=1970)),
    "unused since": KeyFilter(unused_since=NOW),
    "expires before": KeyFilter(expires_before=NOW.replace(year=1960)),
    "label": KeyFilter(label="env:prod"),
    **{f"{status}": KeyFilter(status=status) for status in KeyStatus},
}


@pytest.mark.parametrize("name", FILTERS)
def test_no_filter_of_an_administrator_reads_a_whole_table(database: Database, name: str) -> None:
    """With ten million keys a page of a filter that no key matches ends as soon as one of a small table."""
    admin, root = administration(database.store)
    seen = database.statements_of(lambda _store: admin.list_keys(root, FILTERS[name]))
    reads = [each for each in seen if each[0].startswith("SELECT")]
    assert 1 <= len(reads) <= MAX_READS
    # Only their positions differ, so three of them are enough.
    for statement, parameters in (*reads[:2], reads[-1]):
        assert "LIMIT" in statement
        steps = database.plan(database.engine, statement, parameters)
        assert steps
        assert all(step.index is not None for step in steps if step.what != "sort")


@pytest.mark.parametrize("announced", [None, 30, 7])
@pytest.mark.parametrize("after", [None, (NOW, "f5")], ids=["first", "next"])
def test_keys_that_end_soon_are_read_off_their_index_without_sorting(
    database: Database, announced: int | None, after: Any
) -> None:
    query = ExpiryQuery(NOW - HOUR, NOW + HOUR, announced, after, limit=500)
    (step,) = database.steps_of(lambda store: store.list_expiring(query))  # type: ignore[attr-defined]
    assert (step.what, step.index) == ("search", "ix_msk_auth_api_keys_expiring")
    # Its beginning and its end are bounded, so what was announced, or ends later, is not read.
    assert step.detail.count("expires_at") >= 2


def test_mariadb_reads_keys_that_end_soon_without_sorting(mariadb_url: URL) -> None:
    with engine_on(mariadb_url) as engine:
        with engine.begin() as connection:
            connection.execute(
                text("SET sql_mode = 'PIPES_AS_CONCAT', max_recursive_iterations = 20000")
            )
            connection.execute(text(FILL))
            connection.execute(text("ANALYZE TABLE msk_auth_api_keys"))
        database = Database(engine, SQLAlchemyKeyStore(engine), lambda *_: [])
        for announced, after in product([None, 30], [None, (NOW, "k5")]):
            query = ExpiryQuery(NOW, NOW + 2 * HOUR, announced, after, limit=500)
            seen = database.statements_of(partial(SQLAlchemyKeyStore.list_expiring, query=query))
            # SQLAlchemy asks the server a few things of its own.
            ((statement, parameters),) = [
                each for each in seen if "FROM msk_auth_api_keys" in each[0]
            ]
            with case(announced, after), engine.connect() as connection:
                explained = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
                (step,) = explained.mappings()
                assert (step["type"], step["key"]) == ("range", "ix_msk_auth_api_keys_expiring")
                assert "filesort" not in step["Extra"]


def test_mariadb_locks_a_key_before_its_entries_in_other_indexes(mariadb_url: URL) -> None:
    """Otherwise two changes of one key at once deadlock now and then, when the server chooses another index for one of them."""
    with engine_on(mariadb_url) as engine:
        store = SQLAlchemyKeyStore(engine)
        for key_id in ("f10002", "f10006", "f10010", "f10022"):
            store.insert(make_record(key_id), max_active=None, now=NOW)
        database = Database(engine, store, lambda *_: [])
        for name in ("revoke", "expire", "delete", "rotate", "announce_expiry", "replace_digest"):
            (update,) = [
                each
                for each in database.statements_of(OPERATIONS[name])
                if each[0].startswith("UPDATE")
            ]
            with case(name), engine.connect() as connection:
                statement, parameters = update
                explained = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)
                assert [step["possible_keys"] for step in explained.mappings()] == ["PRIMARY"]


@pytest.mark.parametrize("owner_id", [OWNER, "o7"])
@pytest.mark.parametrize("status", [None, *KeyStatus])
def test_no_page_reads_a_whole_table(
    database: Database, owner_id: str, status: KeyStatus | None
) -> None:
    query = KeyQuery(owner_id, NOW, status, limit=51)
    steps = database.steps_of(lambda store: store.list(query))
    assert steps
    assert [step for step in steps if step.what == "scan"] == []


def test_active_keys_are_counted_on_their_index(database: Database) -> None:
    record = make_record("counted")
    steps = database.steps_of(lambda store: store.insert(record, max_active=9000, now=NOW))
    assert [step.index for step in steps] == ["ix_msk_auth_api_keys_active"] * 2
