"""The one way from a request to an answer: the table of routes, and the order of every route's steps in both halves."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contract.adapter import PEOPLE, START

from msk_auth import (
    KeyFormat,
    Policy,
    any_credential,
    local_principal,
    require_interactive,
)
from msk_auth._leak_reports import MAX_REPORT
from msk_auth.core.key_management import CreatedKey
from msk_auth.core.model import ApiKey, KeyPage
from msk_auth.errors import ConfigurationError, InteractiveRequired, TooManyAttempts
from msk_auth.http._async import routes as awaiting
from msk_auth.http._sync import routes as blocking
from msk_auth.http.answers import Answer, ContentTooLarge
from msk_auth.http.routes import MAX_BODY, Route

pytestmark = pytest.mark.anyio

FORMAT = KeyFormat()
VALUE = FORMAT.generate()
RECORD = ApiKey(VALUE.id, "name", "alice", "digest", None, START, None)
PRINCIPAL = local_principal(PEOPLE["alice"], at=START, interactive=True)
ANSWERS: dict[str, object] = {
    "list_keys": KeyPage((RECORD,), None),
    "create_key": CreatedKey(RECORD, VALUE),
    "rotate_key": CreatedKey(RECORD, VALUE),
    "get_key": RECORD,
    "update_key": RECORD,
    "revoke_key": RECORD,
    "delete_key": None,
    "revoke_presented_key": RECORD,
    "receive": (),
    "list_all_keys": KeyPage((RECORD,), None),
    "revoke_any_key": RECORD,
    "revoke_any_keys": (RECORD, None),
}
ADMIN = require_interactive("keys:admin", max_age=timedelta(minutes=15))


class Site:
    """Records what a route does, and raises where a test wants it."""

    def __init__(self, *, blocks: bool) -> None:
        self.blocks = blocks
        self.routes: Any = blocking if blocks else awaiting
        self.steps: list[str] = []
        self.errors: dict[str, BaseException] = {}
        self.body = b'{"name": "name"}'
        self.content_type = "application/json"
        self.query = b""
        self.named: dict[str, object] = {}
        self.rules = SimpleNamespace(key_format=FORMAT, delegates=False)

    def step(self, name: str, answer: object) -> Any:
        def now() -> object:
            self.steps.append(name)
            if name in self.errors:
                raise self.errors[name]
            return answer

        async def later() -> object:
            return now()

        return now() if self.blocks else later()

    def call(self, name: str) -> Callable[..., Any]:
        def called(*_args: object, **named: object) -> Any:
            self.named = named
            return self.step(name, ANSWERS[name])

        return called

    def exchange(self) -> Any:
        authenticator = SimpleNamespace(
            rules=self.rules,
            clock=SimpleNamespace(now=lambda: START),
            **{name: self.call(name) for name in ANSWERS},
        )
        exchange = blocking.Exchange if self.blocks else awaiting.AsyncExchange
        return exchange(  # type: ignore[operator]
            authenticator=authenticator,
            query=self.query,
            path="/api/keys",
            key_id=VALUE.id,
            content_type=self.content_type,
            header=lambda _name: None,
            admit=lambda policy: self.step("admit", self.admitted(policy)),
            read_body=lambda _limit: self.step("body", self.body),
            call=operator.call,
            throttle=lambda: self.step("throttle", None),
        )

    def admitted(self, policy: Policy) -> object:
        assert policy in {any_credential(), require_interactive(), ADMIN}
        return PRINCIPAL

    async def respond(self, route: Route) -> Answer:
        answer = self.routes.respond(route, self.exchange())
        return answer if self.blocks else await answer

    def key_route(self, name: str) -> Route:
        (route,) = self.routes.key_routes([name])
        return route


@pytest.fixture(params=["blocks", "awaits"])
def site(request: pytest.FixtureRequest) -> Site:
    return Site(blocks=request.param == "blocks")


class Receiver:
    """Receives reports for a site."""

    def __init__(self, site: Site) -> None:
        self.receive: Callable[..., Awaitable[Any]] = site.call("receive")


class Office:
    """`AdminKeys` for a site."""

    policy = ADMIN

    def __init__(self, site: Site) -> None:
        self.authenticator = SimpleNamespace(rules=site.rules)
        self.list_keys = site.call("list_all_keys")
        self.revoke_key = site.call("revoke_any_key")
        self.revoke_keys = site.call("revoke_any_keys")


def admin_rows(site: Site, operations: Any = None) -> tuple[Route, ...]:
    rows: tuple[Route, ...] = site.routes.admin_key_routes(Office(site), operations)
    return rows


ADMIN_ROWS = admin_rows(Site(blocks=True))
KEY_ROUTES = awaiting.KEY_ROUTES
NAMES = [route.name for route in KEY_ROUTES]
key_routes = awaiting.key_routes


def test_a_key_changes_only_after_an_interactive_login() -> None:
    """G3: what creates, revokes or extends a key is no GET and demands a login."""
    assert len({route.name for route in KEY_ROUTES}) == len(KEY_ROUTES) == 7
    for route in KEY_ROUTES:
        assert route.policy == (
            any_credential() if route.method == "GET" else require_interactive()
        )


def test_an_application_names_the_key_routes_that_it_wants() -> None:
    assert key_routes(None) == KEY_ROUTES
    names = [row.name for row in key_routes({"delete_key", "list_keys"})]
    assert names == ["list_keys", "delete_key"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_key_route_checks_its_policy_then_reads_the_body_then_calls(
    site: Site, name: str
) -> None:
    route = site.key_route(name)
    if route.name == "rotate_key":
        site.body = b""
    answer = await site.respond(route)
    expected = ["admit", "body", route.name] if route.max_body else ["admit", route.name]
    assert site.steps == expected
    assert answer.status == route.status
    assert (VALUE.reveal().encode() in answer.body) == (route.status == 201)


@pytest.mark.parametrize("delegates", [True, False])
@pytest.mark.parametrize("name", NAMES)
async def test_only_an_application_with_service_accounts_reads_their_parameter(
    site: Site, name: str, delegates: bool
) -> None:
    route = site.key_route(name)
    if route.name == "rotate_key":
        site.body = b""
    site.query, site.rules.delegates = b"on_behalf_of=org%3Ab%C3%A4r", delegates
    answer = await site.respond(route)
    # An authenticator that overrides a method of the library's as it was gets no argument that it does not know.
    assert site.named.get("on_behalf_of") == ("org:bär" if delegates else None)
    assert ("on_behalf_of" in site.named) == delegates
    if route.status == 201:
        located = dict(answer.headers)["location"]
        assert located.endswith("?on_behalf_of=org%3Ab%C3%A4r" if delegates else VALUE.id)


@pytest.mark.parametrize("name", NAMES)
async def test_a_refused_request_goes_no_further(site: Site, name: str) -> None:
    site.errors["admit"] = InteractiveRequired()
    with pytest.raises(InteractiveRequired):
        await site.respond(site.key_route(name))
    assert site.steps == ["admit"]


@pytest.mark.parametrize("name", ["create_key", "rotate_key"])
async def test_a_body_over_the_limit_is_not_parsed(site: Site, name: str) -> None:
    route = site.key_route(name)
    site.body = b" " * (MAX_BODY + 1)
    with pytest.raises(ContentTooLarge) as refused:
        await site.respond(route)
    assert refused.value.detail == f"This operation reads at most {MAX_BODY} bytes."
    assert site.steps == ["admit", "body"]


def test_an_administrators_route_demands_what_its_admin_keys_do(site: Site) -> None:
    """G3: they list and revoke, and there is no other operation."""
    found = [(row.name, row.method, row.path) for row in admin_rows(site)]
    assert found == [
        ("list_all_keys", "GET", ""),
        ("revoke_any_keys", "POST", "/revoke"),
        ("revoke_any_key", "POST", "/{key_id}/revoke"),
    ]
    assert {row.policy for row in admin_rows(site)} == {ADMIN}


def test_an_application_names_the_administrators_routes_that_it_wants(site: Site) -> None:
    (row,) = admin_rows(site, ["revoke_any_key"])
    assert row.name == "revoke_any_key"


@pytest.mark.parametrize("number", range(len(ADMIN_ROWS)), ids=[row.name for row in ADMIN_ROWS])
async def test_an_administrators_route_checks_its_policy_then_reads_the_body_then_calls(
    site: Site, number: int
) -> None:
    site.body = b'{"ids": ["a", "b"]}'
    route = admin_rows(site)[number]
    answer = await site.respond(route)
    expected = ["admit", "body", route.name] if route.max_body else ["admit", route.name]
    assert site.steps == expected
    assert (answer.status, ("cache-control", "no-store") in answer.headers) == (200, True)
    assert VALUE.reveal().encode() not in answer.body
    assert b'"digest"' not in answer.body
    site.errors["admit"] = InteractiveRequired()
    site.steps.clear()
    with pytest.raises(InteractiveRequired):
        await site.respond(route)
    assert site.steps == ["admit"]


async def test_the_keys_of_another_authenticator_are_neither_listed_nor_revoked(site: Site) -> None:
    """Its owners are others, so its permissions are, too."""
    site.body = b'{"ids": ["a", "b"]}'
    rows = admin_rows(Site(blocks=site.blocks))
    for route in rows:
        with pytest.raises(ConfigurationError, match="another authenticator than the adapter"):
            await site.respond(route)
    assert not {row.name for row in rows} & set(site.steps)


def public_routes(site: Site) -> list[tuple[Route, str]]:
    return [
        (site.routes.revocation_route("/api/revoke"), "revoke_presented_key"),
        (site.routes.leak_route("/api/leaks", Receiver(site)), "receive"),
    ]


async def test_a_public_route_calls_its_throttle_then_reads_the_body(site: Site) -> None:
    site.body = b'{"token": "x"}'
    for route, call in public_routes(site):
        site.steps.clear()
        assert (await site.respond(route)).status == 200
        assert site.steps == ["throttle", "body", call]
        site.errors["throttle"] = TooManyAttempts(1)
        site.steps.clear()
        with pytest.raises(TooManyAttempts):
            await site.respond(route)
        assert site.steps == ["throttle"]
        site.errors.clear()
    assert [route.max_body for route, _ in public_routes(site)] == [4096, MAX_REPORT]


@pytest.mark.parametrize("error", [OSError("down"), KeyError("x")], ids=repr)
async def test_what_a_step_raises_stays_what_it_is(site: Site, error: Exception) -> None:
    """An application's throttle, or its framework, may raise its own errors: they are not answered as outages."""
    site.errors["throttle"] = error
    with pytest.raises(type(error)) as raised:
        await site.respond(site.routes.revocation_route("/api/revoke"))
    assert raised.value is error
