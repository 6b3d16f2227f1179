"""Revocation by possession and reports of leaks, over every adapter: one behaviour (G6), and nothing revealed (G1)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any
from urllib.parse import quote_plus

import pytest
from tests.cases import case
from tests.contract.adapter import START, Reply, World, make_world
from tests.integrations.adapters import ADAPTERS, adapter_of, mounted, send
from tests.leaks.support import Reporter, match, report

from msk_auth.errors import TooManyAttempts
from msk_auth.events import KeyEvent
from msk_auth.testing import list_routes

pytestmark = pytest.mark.anyio

JSON = (b"content-type", b"application/json")
FORM = (b"content-type", b"application/x-www-form-urlencoded")
ROUTES = (b"/api/revoke", b"/api/leaks/github")
GITHUB = Reporter("k1")
MAX_REPORT = 1_048_576


@dataclass
class Site:
    """An application, and what the test can do to it."""

    world: World
    app: Any = None
    refuse: Exception | None = None
    asked: int = 0
    documents: list[bytes | Exception] = field(default_factory=lambda: [GITHUB.document()])

    def gate(self) -> None:
        self.asked += 1
        if self.refuse is not None:
            raise self.refuse

    def fetch(self) -> bytes:
        document = self.documents[0]
        if isinstance(document, Exception):
            raise document
        return document

    async def revoke(self, body: bytes, *headers: tuple[bytes, bytes], **more: Any) -> Reply:
        headers = headers or (JSON,)
        return await send(self.app, "POST", b"/api/revoke", list(headers), body, **more)

    async def report(
        self, body: bytes, *headers: tuple[bytes, bytes], identifier: str = "k1"
    ) -> Reply:
        signed = headers or (
            (b"github-public-key-identifier", identifier.encode()),
            (b"github-public-key-signature", GITHUB.sign(body, "k1").encode()),
        )
        return await send(self.app, "POST", b"/api/leaks/github", [JSON, *signed], body)

    def revoked(self, name: str) -> bool:
        record = self.world.store.blocking.find(self.world.names[f"{name}_id"])
        assert record is not None
        return record.revoked_at is not None


@pytest.fixture(params=ADAPTERS)
def site(request: pytest.FixtureRequest) -> Site:
    return make_site(request.param)


def make_site(adapter: str) -> Site:
    """One whose application has the two routes that need no login."""
    site = Site(make_world())
    auth = make_adapter(adapter, site.world)

    async def gate(_request: object) -> None:
        site.gate()

    async def fetch_keys(_url: str) -> bytes:
        return site.fetch()

    throttle, fetch = gate, fetch_keys
    if adapter == "flask":
        throttle, fetch = (lambda _request: site.gate()), (lambda _url: site.fetch())
    leaks = auth.leak_route(fetch, throttle=throttle)
    routes = auth.revocation_route(throttle=throttle), leaks
    site.app = mounted(adapter, auth, *routes, errors="all")
    return site


def make_adapter(adapter: str, world: World) -> Any:
    if adapter == "flask":
        return adapter_of(adapter, world.blocking)
    # Litestar's has no `install`.
    options = {"errors": "all"} if adapter == "litestar" else {}
    return adapter_of(adapter, world.authenticator, **options)


def token(site: Site, name: str) -> bytes:
    return b'{"token": "%s"}' % site.world.names[name].encode()


# Revocation by possession.


PRESENTED = [
    ('{"token": "<key>"}', JSON),
    ('{"token": "<key>", "token_type_hint": "access_token"}', JSON),
    ("token=<key>", FORM),
    ("token_type_hint=x&token=<key>&client_id=y", FORM),
    ("token=<key>", (FORM[0], FORM[1].upper() + b"; charset=utf-8")),
]


async def test_presenting_a_key_revokes_it(site: Site) -> None:
    for number, (template, header) in enumerate(PRESENTED, 1):
        with case(template, header):
            site.world.reset()
            reply = await site.revoke(site.world.fill(template), header)
            assert (reply.status, reply.body) == (200, b"{}")
            assert reply.header("content-type") == "application/json"
            assert reply.header("cache-control") == "no-store"
            assert site.revoked("key")
            assert not site.revoked("key_read")
            (event,) = site.world.events
            assert isinstance(event, KeyEvent)
            assert (event.action, event.cause, event.principal) == ("revoked", "possession", None)
            assert event.at == START
            assert site.asked == number


async def test_a_body_that_a_server_cannot_read_is_malformed(site: Site) -> None:
    for target in ROUTES:
        chunks = [b"token=", OSError("bad chunk")]
        reply = await send(site.app, "POST", target, [FORM], chunks=chunks)
        assert (reply.status, reply.json["code"]) == (400, "request_malformed")


async def test_the_answer_does_not_reveal_whether_the_key_exists(site: Site) -> None:
    """RFC 7009, section 2.2."""
    names = ["key_unknown", "key_wrong", "key_revoked", "key_expired", "key_disabled", "key_orphan"]
    replies = [await site.revoke(token(site, name)) for name in ["key", "key", *names]]
    answers = {(reply.status, reply.raw_headers, reply.body) for reply in replies}
    assert len(answers) == 1
    assert replies[0].status == 200


# The type of a body, the body, and the field that is wrong.
MALFORMED: list[tuple[tuple[bytes, bytes] | None, str, str]] = [
    (JSON, '{"token": "<key_typo>"}', "token"),
    (JSON, '{"token": "<key_checksum>"}', "token"),
    (JSON, '{"token": "<jwt>"}', "token"),
    (JSON, '{"token": ""}', "token"),
    (JSON, '{"token": "swordfish\\u0000\\ud800"}', "token"),
    (JSON, '{"token": null}', "token"),
    (JSON, '{"token": ["<key>"]}', "token"),
    (JSON, "{}", "token"),
    (JSON, '{"token": "<key>", "swordfish": 1}', "swordfish"),
    (JSON, '{"token": "<key>", "token": "<key>"}', ""),
    (JSON, '["<key>"]', ""),
    (JSON, '"<key>"', ""),
    (JSON, "", ""),
    (FORM, "", "token"),
    (FORM, "x=<key>", "token"),
    (FORM, "token=<key>&token=<key>", "token"),
    (FORM, "token=<key>%00", "token"),
    (FORM, "token=\xe9", ""),
    (FORM, "&".join(["a=b"] * 50), ""),
    # Other kinds of content.
    (None, '{"token": "<key>"}', ""),
    ((JSON[0], b""), '{"token": "<key>"}', ""),
    ((JSON[0], b"text/plain"), '{"token": "<key>"}', ""),
    ((JSON[0], b"multipart/form-data; boundary=x"), '{"token": "<key>"}', ""),
]


async def test_a_malformed_key_is_refused_by_field(site: Site) -> None:
    for number, (kind, template, wrong) in enumerate(MALFORMED, 1):
        with case(kind, template):
            body = site.world.fill(template)
            headers = [] if kind is None else [kind]
            reply = await send(site.app, "POST", b"/api/revoke", headers, body)
            assert (reply.status, reply.json["code"]) == (422, "input_invalid")
            assert [error["field"] for error in reply.json["errors"]] == [wrong]
            assert reply.header("content-type") == "application/problem+json"
            assert not site.revoked("key")
            assert site.world.names["key"].encode() not in reply.body
            assert (site.world.store.reads, site.world.events) == (number, [])  # those of `revoked`


async def test_a_form_encodes_as_forms_do(site: Site) -> None:
    key = quote_plus(site.world.names["key"]).replace("_", "%5F").encode()
    assert (await site.revoke(b"token=" + key, FORM)).status == 200
    assert site.revoked("key")


async def test_what_else_the_request_holds_is_not_looked_at(site: Site) -> None:
    """ASVS 5.0, 14.2.1: no key in a URL; and no login is asked for, so a wrong one does no harm."""
    body = token(site, "key")
    wrong = [(b"authorization", b"Bearer"), (b"authorization", b"Basic x"), (b"cookie", b"a=b")]
    assert (await site.revoke(body, JSON, *wrong)).status == 200
    other = site.world.names["key_read"].encode()
    target = b"/api/revoke?token=" + other
    reply = await send(site.app, "POST", target, [FORM, *site.world.bearer("key_read")], b"")
    assert reply.status == 422
    assert not site.revoked("key_read")


async def test_a_long_body_is_not_read(site: Site) -> None:
    reply = await site.revoke(b"token=" + b"x" * 4091, FORM)
    assert (reply.status, reply.json["code"]) == (413, "content_too_large")
    assert (await site.revoke(b"token=" + b"x" * 4090, FORM)).status == 422


async def test_only_posting_is_answered(site: Site) -> None:
    for target, method in product(ROUTES, ("GET", "PUT", "DELETE")):
        reply = await send(site.app, method, target)
        assert (reply.status, reply.json["title"]) == (405, "Method Not Allowed")
    assert site.asked == 0


async def test_the_applications_throttle_comes_first(site: Site) -> None:
    site.refuse = TooManyAttempts(7)
    for reply in (await site.revoke(token(site, "key")), await site.report(b"[]")):
        assert (reply.status, reply.json["code"]) == (429, "too_many_attempts")
        assert reply.header("retry-after") == "7"
    # What it raises for itself is an error of the application, not an outage of the store.
    for error in (OSError("down"), KeyError("x")):
        site.refuse = error
        with suppress(type(error)):  # Starlette lets its server answer
            assert (await site.revoke(token(site, "key"))).status == 500
    site.refuse = TooManyAttempts(7)
    # Not even the body is read.
    assert (await site.revoke(b"x" * 5000)).status == 429
    assert not site.revoked("key")


async def test_a_store_that_cannot_answer_is_503(site: Site) -> None:
    site.world.store.broken = OSError("down")
    body = report(match(site.world.names["key"]))
    for reply in (await site.revoke(token(site, "key")), await site.report(body)):
        assert (reply.status, reply.json["code"]) == (503, "store_unavailable")
        assert reply.header("retry-after") == "5"


# Reports of leaks.


async def test_a_signed_report_revokes(site: Site) -> None:
    key, unknown = site.world.names["key"], site.world.names["key_unknown"]
    reply = await site.report(report(match(key), match(unknown)))
    assert reply.status == 200
    assert [(label["label"], label["token_type"]) for label in reply.json] == [
        ("true_positive", "example_api_key"),
        ("false_positive", "example_api_key"),
    ]
    assert all(label.keys() == {"token_hash", "token_type", "label"} for label in reply.json)
    assert reply.header("content-type") == "application/json"
    assert reply.header("cache-control") == "no-store"
    assert key.encode() not in reply.body
    assert site.revoked("key")
    (event,) = site.world.events
    assert isinstance(event, KeyEvent)
    assert event.action == "leaked"
    assert event.location is not None
    assert event.location.url == "https://github.com/o/r/blob/1/.env"
    # Again, the same answer.
    again = await site.report(report(match(key), match(unknown)))
    assert (again.status, again.body) == (200, reply.body)


def headers(**values: str) -> list[tuple[bytes, bytes]]:
    return [
        (f"github-public-key-{name}".encode(), value.encode()) for name, value in values.items()
    ]


async def test_a_report_without_exactly_one_signature_is_refused(site: Site) -> None:
    body = report(match(site.world.names["key"]))
    right = {"identifier": "k1", "signature": GITHUB.sign(body, "k1")}
    for names in (
        [],
        ["identifier"],
        ["signature"],
        ["identifier", "identifier", "signature"],
        ["identifier", "signature", "signature"],
    ):
        with case(names):
            sent = [pair for name in names for pair in headers(**{name: right[name]})]
            reply = await site.report(body, *sent, (b"x-other", b"1"))
            assert (reply.status, reply.json["code"]) == (403, "signature_invalid")
            assert reply.header("www-authenticate") is None
            assert not site.revoked("key")


async def test_a_report_that_is_too_long(site: Site) -> None:
    reply = await site.report(b" " * (MAX_REPORT + 1))
    assert (reply.status, reply.json["code"]) == (413, "content_too_large")
    assert (await site.report(b"[]" + b" " * (MAX_REPORT - 2))).status == 200


# Starting.


def test_both_are_public_by_declaration(site: Site) -> None:
    audit = list_routes(getattr(site.app, "app", site.app))
    ours = {each.path: each for each in audit.routes if "POST" in each.methods}
    assert set(ours) == {"/api/revoke", "/api/leaks/github"}
    assert [(each.policies, each.problems) for each in ours.values()] == [((), ())] * 2


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_going_without_a_throttle_has_to_be_explicit(adapter: str) -> None:
    auth = make_adapter(adapter, make_world())
    for call in (auth.revocation_route, lambda: auth.leak_route(lambda _url: b"")):
        with pytest.raises(TypeError, match="throttle"):
            call()
