"""The one table of cases, over every adapter."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.integrations.adapters import ADAPTERS, Reply, send
from tests.integrations.cases import CASES, Case
from tests.integrations.world import World, make_world

from msk_auth import PROBLEM_BASE

pytestmark = pytest.mark.anyio


# Two tests look at each answer, from both sides. A case has a world of its own, so that one request
# for both is as good as two, and half the time.
_answered: dict[tuple[Case, str], tuple[Reply, World]] = {}


async def run(case: Case, adapter: str) -> tuple[Reply, World]:
    if (case, adapter) not in _answered:
        _answered[case, adapter] = await request(case, adapter)
    return _answered[case, adapter]


async def request(case: Case, adapter: str) -> tuple[Reply, World]:
    world = await make_world()
    app = ADAPTERS[adapter](world.authenticator)
    method, _, target = case.request.partition(" ")
    headers = [(name.encode(), world.fill(value)) for name, value in case.headers]
    return await send(app, method, world.fill(target), headers, world.fill(case.body)), world


def test_there_are_many_cases_and_no_two_with_one_name() -> None:
    assert len(CASES) >= 150
    assert [name for name, count in Counter(str(case) for case in CASES).items() if count > 1] == []


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("case", CASES, ids=[ascii(case.name) for case in CASES])
async def test_a_case_gets_its_answer(case: Case, adapter: str) -> None:
    reply, world = await run(case, adapter)
    assert reply.status == case.status, reply.body
    assert reply.header("www-authenticate") == case.challenge
    assert reply.header("retry-after") == case.retry_after
    if case.code is None:
        assert reply.header("content-type") in {None, "application/json"}
    else:
        check_problem(case, reply)
    for name, value in world.names.items():
        # The answer that reveals a new key reveals none of these.
        if not name.endswith("_id") and name != "id_unknown":
            assert value.encode() not in reply.body


def check_problem(case: Case, reply: Reply) -> None:
    assert reply.header("content-type") == "application/problem+json"
    assert reply.header("cache-control") == "no-store"
    problem = reply.json
    expected = {"type", "title", "status", "detail", "code"}
    if case.fields is not None:
        expected |= {"errors"}
        assert [error["field"] for error in problem["errors"]] == list(case.fields)
        assert all(error["message"] for error in problem["errors"])
    assert problem.keys() == expected
    assert problem["code"] == case.code
    assert problem["status"] == case.status
    assert problem["type"] == f"{PROBLEM_BASE}#{case.code}"
    assert problem["title"]
    assert problem["detail"]


@pytest.mark.skipif(not ADAPTERS, reason="no framework is installed")
@pytest.mark.parametrize("case", CASES, ids=[ascii(case.name) for case in CASES])
async def test_every_adapter_gives_the_same_answer(case: Case) -> None:
    told = set()
    for adapter in ADAPTERS:
        reply, world = await run(case, adapter)
        body = reply.body if case.code is not None else b""
        for name, value in world.names.items():
            # Ids are random; whatever repeats one counts as the same.
            body = body.replace(value.encode(), f"<{name}>".encode())
        headers = tuple(
            reply.header(name)
            for name in ("www-authenticate", "content-type", "cache-control", "retry-after")
        )
        told.add((reply.status, headers, body))
    assert len(told) == 1, told
