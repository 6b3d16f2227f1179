"""Every measurement runs, small, and gives every row that it promises. No time is asserted."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import adapters, handling, refusals
from benchmarks.applications import FRAMEWORKS
from benchmarks.chart import draw
from benchmarks.result import Result, table
from benchmarks.timing import Scale

pytestmark = pytest.mark.slow

QUICK = Scale(is_quick=True)
REQUESTS = ["no authentication", "dictionary", "dictionary of digests"]
REFUSALS = ["dictionary, refuses", "malformed key, refused", "unknown key, refused"]
OPERATIONS = [
    "bare driver's read",
    "verification",
    "list a page",
    "list active keys",
    "list all keys, first page",
    "list all keys, deep page",
    "list all keys, of one owner",
    "list all keys, revoked",
    "list all keys, unused",
    "list all keys, none matches",
    "create",
    "revoke",
    "create, revoke as administrator",
    "refuse, limit reached",
]
ROWS = {
    "verification": {
        "API key": [
            "least work for a key",
            "key, leased",
            "key, leased, awaited",
            "key, read from memory",
        ],
        "Login token": [
            "least work for an HS256 token",
            "HS256, leased",
            "ES256, leased",
            "Ed25519, leased",
            "RS256, leased",
            "HS256, first sight",
            "ES256, signature check alone",
            "ES256, first sight",
            "Ed25519, signature check alone",
            "Ed25519, first sight",
            "RS256, signature check alone",
            "RS256, first sight",
        ],
        "Refused": [
            "malformed key",
            "wrong checksum",
            "unknown key",
            "wrong secret",
            "forged token",
        ],
    },
    "issuers": {
        algorithm: ["PyJWT", "joserfc", "msk_auth", "msk_auth, leased"]
        for algorithm in ("RS256", "ES256", "Ed25519")
    },
    "authoritative": {
        "SQLite": [
            "SQLite driver's read",
            "SQLite driver's read, and least work",
            "verification",
            "verification awaited",
        ],
        "PostgreSQL": [
            "PostgreSQL driver's read",
            "verification",
            "PostgreSQL driver's read, awaited",
            "verification awaited",
        ],
    },
    "concurrency": {
        f"{number} at once": [
            "bare driver, one read for each",
            "one read for each",
            "reads together",
        ]
        for number in (1, 8, 64)
    },
    "growth": {"SQLite": OPERATIONS, "PostgreSQL": OPERATIONS},
    "revocation": {
        database: ["no lease", "lease of 50 ms", "lease of 250 ms"]
        for database in ("SQLite", "PostgreSQL")
    },
    "refusals": {
        f"{store}{awaited}": [
            "authenticate",
            "authenticate, with a lease",
            "authenticate, retired pepper",
            "revoke a presented key",
        ]
        for store in ("memory", "SQLite", "PostgreSQL")
        for awaited in ("", ", awaited")
    },
    "memory": {"": ["2 credentials", "20 credentials", "40 credentials, 20 kept"]},
    "imports": {
        "": [
            "standard library's part",
            "jwt",
            "msk_auth",
            "msk_auth, after the standard library",
        ]
    },
}
IN_NEED_OF_POSTGRES = ("authoritative", "concurrency", "growth", "revocation", "refusals")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a measurement has unfrozen would be looked through in every later collection of garbage."""
    yield
    gc.freeze()


def groups(result: Result) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in result.rows:
        found.setdefault(row.group, []).append(row.name)
    return found


def check(result: Result) -> None:
    """What holds for every result."""
    keys = {column.key for column in result.columns}
    names = {row.name for row in result.rows}
    for row in result.rows:
        assert row.cells
        assert row.cells.keys() <= keys
        assert row.against == "" or row.against in names
        assert row.aim is None or row.aim.column in row.cells
        for spread in row.cells.values():
            assert math.isfinite(spread.median)
            assert spread.low <= spread.median <= spread.high
    assert result.measured.keys() >= {"date", "machine", "python", "system", "packages"}
    printed = table(result).splitlines()
    assert len(printed) == len(result.rows) + 2
    assert len({line.count(" | ") for line in printed}) == 1
    # And it comes back from its file as it was written.
    again = Result.from_json(result.to_json())
    assert again.to_json() == result.to_json()
    assert table(again) == table(Result.from_json(result.to_json()))
    assert f'id="{result.name}-title"' in draw(again)


@pytest.mark.parametrize("name", ROWS)
def test_a_measurement_gives_every_row(name: str) -> None:
    result = command.measure(name, QUICK)
    assert result.name == name
    if name in IN_NEED_OF_POSTGRES and not any(
        row.group == "PostgreSQL" or "at once" in row.group for row in result.rows
    ):
        pytest.skip("no PostgreSQL: start one on port 5432 or set MSK_AUTH_TEST_POSTGRES_URL")
    assert groups(result) == ROWS[name]
    assert result.measured["command"] == f"python -m benchmarks {name} --quick"
    check(result)


@pytest.mark.parametrize(
    ("unknown", "wrong", "percentage"),
    [
        ([1, 2, 3], [4, 5, 6], 100),
        ([4, 5, 6], [1, 2, 3], 100),
        ([1, 2, 3, 4], [1, 2, 3, 4], 50),
        ([1, 1, 1, 1], [1, 1, 1, 1], 50),
        ([1, 1, 1, 2], [1, 2, 2, 2], 75),
        ([1, 2, 3, 9], [3, 4, 5, 6], 75),
    ],
)
def test_the_best_threshold_separates_two_kinds_of_calls(
    unknown: list[float], wrong: list[float], percentage: float
) -> None:
    assert refusals.told_apart(unknown, wrong) == percentage


def test_requests_are_measured_in_process_in_every_framework() -> None:
    result = handling.run(QUICK)
    ways = [*REQUESTS, "leased", "read from memory", *REFUSALS]
    assert groups(result) == dict.fromkeys(FRAMEWORKS, ways)
    compared = {row.name: row.against for row in result.rows if row.aim is not None}
    assert compared == {
        "malformed key, refused": "leased",
        "unknown key, refused": "read from memory",
    }
    check(result)


def test_requests_per_second_are_measured_through_real_servers() -> None:
    result = adapters.run(QUICK, ["Starlette", "Flask"])
    ways = [*REQUESTS, "leased, 250 ms", "reads SQLite", "reads PostgreSQL", *REFUSALS]
    if "reads PostgreSQL" not in groups(result)["Flask"]:
        pytest.skip("no PostgreSQL: start one on port 5432 or set MSK_AUTH_TEST_POSTGRES_URL")
    assert groups(result) == {"Starlette": ways, "Flask": ways}
    assert all(row.cells["rate"].median > 0 for row in result.rows)
    compared = {row.name: row.against for row in result.rows if row.aim is not None}
    assert compared == {
        "leased, 250 ms": "dictionary",
        "malformed key, refused": "leased, 250 ms",
        "unknown key, refused": "reads SQLite",
    }
    check(result)


def test_writes_with_a_hook_are_compared_with_those_without() -> None:
    result = command.measure("changes", QUICK)
    hooks = ["no hook", "hook that does nothing", "hook that writes a row"]
    rows = [f"{operation}, {hook}" for operation in ("create", "revoke") for hook in hooks]
    found = groups(result)
    assert found["SQLite"] == rows
    assert found.get("PostgreSQL", rows) == rows
    assert {row.name: row.against for row in result.rows if row.against} == {
        name: f"{name.partition(',')[0]}, no hook" for name in rows if "no hook" not in name
    }
    check(result)


def test_an_application_that_exists_is_compared_with_itself_before() -> None:
    result = command.measure("existing", QUICK)
    before, *after = (row.name for row in result.rows)
    assert before == "before: its own JWT"
    assert after == [
        f"{credential}, {way}"
        for how in ("user", "read twice", "snapshot")
        for way in (f"no lease, {how}", f"leased, {how}")
        for credential in ("its own JWT", "a key")
    ]
    assert {row.against for row in result.rows} == {"", before}
    check(result)


def test_every_measurement_is_known_to_the_command() -> None:
    assert {*ROWS, "handling", "adapters"} == set(command.NAMES)


def test_the_command_prints_a_table_and_writes_result_and_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["memory", "--quick", "--write", "--to", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "## Memory of a lease" in printed
    assert re.search(r"^\| 20 credentials \| 20 \| \d+ \|", printed, re.MULTILINE)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"memory.json", "memory.svg"}
    result = Result.from_json((tmp_path / "memory.json").read_text("utf-8"))
    assert table(result) in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "there is no measurement speed"),
        (["memory", "--quick", "--full"], "--quick and --full are opposites"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
