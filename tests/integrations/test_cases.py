"""The one table of cases, over every adapter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.adapter import (
    CASES,
    KEY_HEADER_CASES,
    AdapterContract,
    AdapterDriver,
    Case,
    Reply,
    World,
    make_world,
)
from tests.contract.adapter_contract import check
from tests.contract.case import bearer
from tests.integrations.adapters import ADAPTERS, EITHER_WAY, Driver, application

from msk_auth.testing import BackgroundLoop


class Contract(AdapterContract):
    """What takes several requests. The table of cases is put to all adapters in one test for each case, below."""

    test_a_guarded_route_gives_its_answer = None  # type: ignore[assignment]
    test_a_key_route_gives_its_answer = None  # type: ignore[assignment]
    test_an_administrators_key_route_gives_its_answer = None  # type: ignore[assignment]


class TestAdapters(Contract):
    """Guards that FastAPI gives users with, and those of a whole blueprint in Flask, answer as all others."""

    @pytest.fixture(scope="class", params=EITHER_WAY)
    @classmethod
    def driver(
        cls, request: pytest.FixtureRequest, world: World, loop: BackgroundLoop
    ) -> AdapterDriver:
        name, late = request.param
        return Driver(loop, application(name, world, late=late))


class Circle:
    """All adapters in one world."""

    def __init__(
        self, loop: BackgroundLoop, lease: timedelta | None = None, **options: Any
    ) -> None:
        self.world = make_world(lease=lease)
        self.drivers: dict[str, AdapterDriver] = {
            name: Driver(loop, application(name, self.world, **options)) for name in ADAPTERS
        }

    def ask(self, case: Case) -> Iterator[Reply]:
        method, _, target = case.request.partition(" ")
        headers = [(name.encode(), self.world.fill(value)) for name, value in case.headers]
        for driver in self.drivers.values():
            self.world.reset()
            yield driver.send(method, self.world.fill(target), headers, self.world.fill(case.body))

    def check(self, case: Case) -> list[Reply]:
        """The answers of all adapters, each compared with the table."""
        replies: list[Reply] = []
        for name, reply in zip(self.drivers, self.ask(case), strict=True):
            try:
                check(case, reply, self.world)
            except AssertionError as error:
                error.add_note(f"This is the answer of {name} to {case.name!r}.")
                raise
            replies.append(reply)
        return replies


@pytest.fixture(scope="module")
def circle(loop: BackgroundLoop) -> Circle:
    return Circle(loop)


@pytest.fixture(scope="module")
def late(loop: BackgroundLoop) -> Circle:
    """As a synchronous application has them: guards first, and an authenticator that runs in threads."""
    return Circle(loop, late=True)


@pytest.fixture(scope="module")
def leased(loop: BackgroundLoop) -> Circle:
    """Its time stands still, so no lease ends."""
    return Circle(loop, lease=timedelta(seconds=1))


@pytest.fixture(scope="module")
def changed(loop: BackgroundLoop) -> Circle:
    """As `leased`, for requests that change keys: each waits until leases have ended, and time goes on."""
    return Circle(loop, lease=timedelta(seconds=1))


# By method and the plain beginning of the path: a test for each request would take longer than the request.
ROUTES: dict[str, list[Case]] = {}
for each in CASES:
    ROUTES.setdefault(re.split(r"[^\w /-]", each.request)[0][:30], []).append(each)
# One case for each answer of a request line. Late adapters and leases change how a guard gets its answer, and not how
# headers and bodies are read.
ONE_FOR_EACH = {
    *{(case.request, case.status, case.code, case.challenge): case for case in CASES}.values()
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_adapter_gives_the_same_answer(route: str, circle: Circle, late: Circle) -> None:
    names = ("www-authenticate", "content-type", "cache-control", "retry-after")
    for each in ROUTES[route]:
        answers = set()
        replies = circle.check(each)
        if each in ONE_FOR_EACH:
            replies += late.check(each)
        for reply in replies:
            body = reply.body if each.code is not None else b""
            answers.add((reply.status, tuple(map(reply.header, names)), body))
        assert len(answers) == 1, (each.name, answers)


# How `Authorization` is read does not change.
AS_EVER = [case for case in CASES if case in ONE_FOR_EACH and case.request == "GET /me"]


@pytest.fixture(scope="module")
def with_header(loop: BackgroundLoop) -> tuple[Circle, Circle]:
    """Both kinds of authenticator, in applications that take keys in a header of their own."""
    header = "X-API-Key"
    return Circle(loop, header=header), Circle(loop, timedelta(seconds=1), late=True, header=header)


def test_every_adapter_takes_a_key_in_a_header_of_its_own(
    with_header: tuple[Circle, Circle],
) -> None:
    for case in KEY_HEADER_CASES:
        for circle in with_header:
            bodies = {reply.body for reply in circle.check(case)}
            assert len(bodies) == 1 or case.code is None, case.name


def test_what_authorization_holds_is_answered_as_ever(with_header: tuple[Circle, Circle]) -> None:
    for case in AS_EVER:
        with_header[0].check(case)


# What changes keys ends leases.
LEASABLE = [case for case in CASES if case in ONE_FOR_EACH and "/api/keys" not in case.request]


def test_every_adapter_answers_the_same_from_a_lease(leased: Circle) -> None:
    for each in LEASABLE:
        for _ in range(2):
            leased.check(each)


@pytest.mark.parametrize("credential", ["key", "jwt"])
def test_every_adapter_uses_leases(credential: str, leased: Circle) -> None:
    case = Case("any", "GET /both", 200, headers=bearer(credential))
    for reply in (*leased.ask(case), *leased.ask(case)):
        assert reply.json["owner"] == "alice"
        assert leased.world.store.reads <= 1
    assert leased.world.store.reads == 0


# Pieces of which headers are made, so that most are nearly right.
PIECES = [
    "Bearer", "bearer ", " ", "\t", ",", "=", '"', ";", "Digest a=b", 'c="d, e"', "Basic YTpi", "<key>", "<jwt>",
    "<key_revoked>", "msk_", ".", "a", "~", "\\", "\x00", "\x7f", "\xe9",
]  # fmt: skip
HEADERS = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@given(st.lists(HEADERS, min_size=1, max_size=3), st.sampled_from(["GET /me", "POST /api/keys"]))
def test_every_adapter_gives_the_same_answer_to_any_headers(
    circle: Circle, changed: Circle, values: list[str], request_line: str
) -> None:
    headers = tuple(("authorization", value) for value in values)
    case = Case("any", request_line, 0, headers=headers)
    answers = {
        (reply.status, reply.header("www-authenticate"), reply.body)
        for each in (circle, changed)
        for reply in each.ask(case)
    }
    assert len(answers) == 1, answers


def test_there_are_many_cases_and_no_two_with_one_name() -> None:
    assert len(CASES) >= 150
    assert [name for name, count in Counter(str(case) for case in CASES).items() if count > 1] == []
