"""What every adapter must answer, as tests to be run against yours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from msk_auth import local_principal
from msk_auth.events import KeyEvent

from .admin_cases import admin_cases
from .answer_cases import answer_cases
from .case import Case, by_request
from .header_cases import header_cases, key_header_cases
from .input_cases import input_cases
from .key_cases import key_cases
from .world import PEOPLE, START, World, make_world

_GUARD_CASES: Final = (*answer_cases(), *header_cases())
_KEY_CASES: Final = (*key_cases(), *input_cases())
_ADMIN_CASES: Final = tuple(admin_cases())

GUARDED: Final = by_request(_GUARD_CASES)
"""The cases of the routes with guards, by their request lines."""

_KEY_REQUESTS: Final = by_request(_KEY_CASES)
_ADMIN_REQUESTS: Final = by_request(_ADMIN_CASES)

CASES: Final = (*_GUARD_CASES, *_KEY_CASES, *_ADMIN_CASES)
"""The whole table: what is sent, and exactly what has to come back."""

KEY_HEADER_CASES: Final = tuple(key_header_cases())
"""The table for an adapter that was made with `header="X-API-Key"`."""


@dataclass(frozen=True)
class Reply:
    """What came back.

    Attributes:
        status: The HTTP status code.
        raw_headers: Names in lower case, as often as they were sent.
        body: As it was sent.
    """

    status: int
    raw_headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The header's value; None if it is missing. Sent twice, it fails the test."""
        values = [value.decode() for key, value in self.raw_headers if key == name.encode()]
        assert len(values) <= 1, f"{name} was sent {len(values)} times"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


class AdapterDriver(Protocol):
    """Sends requests to an application, byte by byte."""

    def send(
        self,
        method: str,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
    ) -> Reply:
        """Send one request and wait for its answer.

        Args:
            method: Such as `GET`.
            target: Path and query, not encoded further: hand on these bytes.
            headers: In this order. Several of one name stay several, or become one whose value is all of them joined by
                commas; dropping one would hide a second credential.
            body: As it is sent.

        Returns:
            The answer; where the application raised what it does not know, that of its server.
        """
        ...


PROBLEM_BASE: Final = "https://msk-auth.readthedocs.io/en/stable/reference/errors/"


class Contract:
    """Tests of an application that lives in a world."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls) -> World:
        """The world that the application lives in, one for all tests of the class."""
        return make_world()

    @pytest.fixture
    def driver(self, world: World) -> Any:
        """The driver of the application under test. Override it."""
        raise NotImplementedError("give your test class a fixture named `driver`")

    @pytest.fixture(autouse=True)
    def _fresh(self, world: World) -> None:
        world.reset()


class AdapterContract(Contract):
    """Tests of an adapter: subclass it and say how your application is asked.

    ::

        class TestMyAdapter(AdapterContract):
            @pytest.fixture(scope="class")
            @classmethod
            def driver(cls, world: World) -> AdapterDriver:
                return MyDriver(make_app(world.authenticator))

    :mod:`tests.contract.adapter` says what the application is. An adapter without key routes sets
    `test_a_key_route_gives_its_answer = None` and `test_only_the_named_key_routes_are_mounted = None`, and one without those for
    administrators `test_an_administrators_key_route_gives_its_answer = None` and
    `test_an_administrator_lists_and_revokes_the_keys_of_all_owners = None`.
    """

    @pytest.mark.parametrize("request_line", GUARDED, ids=ascii)
    def test_a_guarded_route_gives_its_answer(
        self, request_line: str, world: World, driver: AdapterDriver
    ) -> None:
        check_all(GUARDED[request_line], driver, world)

    @pytest.mark.parametrize("request_line", _KEY_REQUESTS, ids=ascii)
    def test_a_key_route_gives_its_answer(
        self, request_line: str, world: World, driver: AdapterDriver
    ) -> None:
        check_all(_KEY_REQUESTS[request_line], driver, world)

    def test_only_the_named_key_routes_are_mounted(
        self, world: World, driver: AdapterDriver
    ) -> None:
        def send(line: str, credential: str, body: bytes = b"") -> Reply:
            method, _, target = line.partition(" ")
            headers = [*world.bearer(credential), (b"content-type", b"application/json")]
            return driver.send(method, target.encode(), headers, body)

        some, one = "/api/own-keys", f"/api/own-keys/{world.names['key_id']}"
        assert send(f"GET {some}", "key").json["owner"] == "alice"
        for line in (f"GET {one}", f"POST {one}/rotate", f"DELETE {one}"):
            assert send(line, "jwt").status == 404
        assert send("GET /me", "key").status == 200
        # Those that are mounted have their guards.
        for line in (f"POST {some}", f"POST {one}/revoke"):
            assert send(line, "key", b'{"name": "a"}').json["code"] == "interactive_required"
        created = send(f"POST {some}", "jwt", b'{"name": "a"}')
        assert (created.status, created.header("location")) == (201, f"{some}/{created.json['id']}")
        assert send(f"POST {one}/revoke", "jwt").json["status"] == "revoked"
        assert send("GET /me", "key").json["code"] == "key_revoked"

    @pytest.mark.parametrize("request_line", _ADMIN_REQUESTS, ids=ascii)
    def test_an_administrators_key_route_gives_its_answer(
        self, request_line: str, world: World, driver: AdapterDriver
    ) -> None:
        check_all(_ADMIN_REQUESTS[request_line], driver, world)

    def test_an_administrator_lists_and_revokes_the_keys_of_all_owners(
        self, world: World, driver: AdapterDriver
    ) -> None:
        def send(line: str, body: object = None) -> Any:
            method, _, target = line.partition(" ")
            headers = [*world.bearer("jwt_admin"), (b"content-type", b"application/json")]
            reply = driver.send(method, target.encode(), headers, json.dumps(body).encode())
            assert reply.header("cache-control") == "no-store"
            return reply.json

        def listed(query: str) -> list[str]:
            found: list[str] = []
            cursor = ""
            while True:
                page = send(f"GET /api/admin/keys?limit=2{query}{cursor}")
                found += [item["id"] for item in page["items"]]
                if page["next_cursor"] is None:
                    return found
                cursor = f"&cursor={page['next_cursor']}"

        ids = {name: key_id for name, key_id in world.names.items() if name.endswith("_id")}
        assert sorted(listed("")) == sorted(ids.values())
        assert listed("&owner_id=bob") == [ids["key_bob_id"]]
        assert listed("&status=expired") == [ids["key_expired_id"]]
        assert listed("&created_before=2026-01-02T03:04:05Z") == []
        assert set(ids.values()) == {*listed("&unused_since=2026-01-02T03:04:05Z")}
        assert listed("&expires_before=2026-01-02T04:04:06%2B01:00") == [ids["key_expired_id"]]
        one = f"/api/admin/keys/{ids['key_bob_id']}/revoke"
        revoked = send(f"POST {one}")
        assert (revoked["owner_id"], revoked["status"]) == ("bob", "revoked")
        assert revoked["mask"].startswith("msk_")
        wanted = [ids["key_id"], world.names["id_unknown"], ids["key_acme_id"], ids["key_id"]]
        several = send("POST /api/admin/keys/revoke", {"ids": wanted})
        assert [item["id"] for item in several["items"]] == [wanted[0], wanted[2]]
        assert {item["status"] for item in several["items"]} == {"revoked"}
        assert several["not_found"] == [wanted[1]]
        for name in ("key", "key_bob", "key_acme"):
            reply = driver.send("GET", b"/whoami", world.bearer(name), b"")
            assert reply.json["code"] == "key_revoked"
        ended = [
            event
            for event in world.events
            if isinstance(event, KeyEvent) and event.action == "revoked"
        ]
        assert [(event.record.owner_id, event.cause) for event in ended] == [
            (owner, "administrator") for owner in ("bob", "alice", "org:acme")
        ]
        assert {event.principal and event.principal.owner.id for event in ended} == {"root"}

    @pytest.mark.parametrize("request_line", ["GET /me", "POST /tasks/run", "PATCH /admin/config"])
    def test_a_store_that_cannot_answer_lets_nobody_in(
        self, request_line: str, world: World, driver: AdapterDriver
    ) -> None:
        world.store.broken = OSError("down")
        method, _, target = request_line.partition(" ")
        reply = driver.send(method, target.encode(), world.bearer("key"), b"")
        assert (reply.status, reply.json["code"]) == (503, "store_unavailable")
        assert reply.header("retry-after") == "5"
        assert reply.header("www-authenticate") is None

    @pytest.mark.parametrize("target", [b"/me", b"/both"])
    def test_one_request_is_verified_once(
        self, target: bytes, world: World, driver: AdapterDriver
    ) -> None:
        assert driver.send("GET", target, world.bearer("key"), b"").status == 200
        assert world.store.reads == 1
        assert len(world.events) == 1

    def test_two_requests_are_verified_twice(self, world: World, driver: AdapterDriver) -> None:
        assert driver.send("GET", b"/me", world.bearer("key"), b"").json["owner"] == "alice"
        assert driver.send("GET", b"/me", world.bearer("key_bob"), b"").json["owner"] == "bob"
        world.blocking.revoke_key(
            local_principal(PEOPLE["alice"], at=START, interactive=True), world.names["key_id"]
        )
        assert driver.send("GET", b"/me", world.bearer("key"), b"").json["code"] == "key_revoked"

    @pytest.mark.parametrize(
        ("credential", "kind", "permissions"),
        [
            ("jwt", "interactive", ["tasks:read", "tasks:run"]),
            ("key", "api_key", ["tasks:read", "tasks:run"]),
            ("key_read", "api_key", ["tasks:read"]),
        ],
    )
    def test_a_route_is_told_who_asks_and_how(
        self,
        credential: str,
        kind: str,
        permissions: list[str],
        world: World,
        driver: AdapterDriver,
    ) -> None:
        reply = driver.send("GET", b"/whoami", world.bearer(credential), b"")
        assert reply.json == {
            "owner": "alice",
            "name": "Alice",
            "kind": kind,
            "permissions": permissions,
        }


def ask(driver: AdapterDriver, world: World, case: Case) -> Reply:
    """Send a case's request."""
    method, _, target = case.request.partition(" ")
    headers = [(name.encode(), world.fill(value)) for name, value in case.headers]
    return driver.send(method, world.fill(target), headers, world.fill(case.body))


def check_all(cases: Iterable[Case], driver: AdapterDriver, world: World) -> None:
    """Send the request of each case in a world of its own, and hold the answer to the case."""
    for case in cases:
        world.reset()
        try:
            check(case, ask(driver, world, case), world)
        except BaseException as error:
            error.add_note(f"This is the answer to {case.name!r}.")
            raise


def check(case: Case, reply: Reply, world: World) -> None:
    """Hold an answer to its case.

    Raises:
        AssertionError: It differs.
    """
    assert reply.status == case.status, reply.body
    assert reply.header("www-authenticate") == case.challenge
    assert reply.header("retry-after") == case.retry_after
    if case.code is None:
        assert reply.header("content-type") in {None, "application/json"}
    else:
        _check_problem(case, reply)
    for name, value in world.names.items():
        # The answer that reveals a new key reveals none of these.
        if not name.endswith("_id") and name != "id_unknown":
            assert value.encode() not in reply.body


def _check_problem(case: Case, reply: Reply) -> None:
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
