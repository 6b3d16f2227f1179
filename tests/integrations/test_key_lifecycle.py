"""The key routes from creation to deletion, as a client sees them (spec 2, 3 and 5; design 8)."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import case
from tests.contract.adapter import Reply, World, make_world
from tests.integrations.adapters import ADAPTERS, application, send

from msk_auth import ApiKey
from msk_auth.errors import TooManyAttempts

pytestmark = pytest.mark.anyio

HIDDEN = {"digest", "deleted_at", "announced_days"}
MEMBERS = {"mask", "status", *(field.name for field in fields(ApiKey))} - HIDDEN


class Client:
    """Alice, logged in."""

    def __init__(self, world: World, app: Any) -> None:
        self.world = world
        self.app = app

    async def __call__(self, method: str, target: str, body: bytes = b"", **more: Any) -> Reply:
        headers = [*self.world.bearer("jwt"), (b"content-type", b"application/json")]
        return await send(self.app, method, target.encode(), headers, body, **more)


@pytest.fixture(params=ADAPTERS)
async def client(request: pytest.FixtureRequest) -> Client:
    world = make_world()
    return Client(world, application(request.param, world))


# What the routes themselves decide is the same code under every adapter.
with_one_adapter = pytest.mark.parametrize("client", [next(iter(ADAPTERS))], indirect=True)


async def test_the_value_is_shown_once(client: Client) -> None:
    created = await client(
        "POST", "/api/keys", b'{"name": " CI ", "scopes": ["tasks:read"], "expires_in_days": 7}'
    )
    assert created.status == 201
    assert created.header("cache-control") == "no-store"
    key = created.json
    assert key.keys() == MEMBERS | {"key"}
    assert created.header("location") == f"/api/keys/{key['id']}"
    assert key["name"] == "CI"
    assert key["owner_id"] == "alice"
    assert key["scopes"] == ["tasks:read"]
    assert key["created_at"] == "2026-01-02T03:04:05.000000Z"
    assert key["expires_at"] == "2026-01-09T03:04:05.000000Z"
    assert key["status"] == "active"
    assert key["mask"] == f"msk_{key['id']}_…"
    assert key["key"].startswith(f"msk_{key['id']}_")
    shown = await client("GET", f"/api/keys/{key['id']}")
    del key["key"]
    assert shown.json == key
    assert shown.header("cache-control") == "no-store"


@with_one_adapter
async def test_what_is_left_out(client: Client) -> None:
    for body, expires, scopes in (
        (b'{"name": "a"}', None, None),
        (b'{"name": "a", "scopes": null, "expires_in_days": null}', None, None),
        (b'{"name": "a", "scopes": []}', None, []),
        (b'{"name": "a", "expires_in_days": 1}', "2026-01-03T03:04:05.000000Z", None),
        (b'{"name": "a", "expires_in_days": 36500}', "2125-12-09T03:04:05.000000Z", None),
    ):
        with case(body):
            created = (await client("POST", "/api/keys", body)).json
            assert (created["expires_at"], created["scopes"]) == (expires, scopes)


@with_one_adapter
async def test_rotation_with_an_overlap(client: Client) -> None:
    names = client.world.names
    rotated = await client(
        "POST", f"/api/keys/{names['key_read_id']}/rotate", b'{"overlap_seconds": 60}'
    )
    assert rotated.status == 201
    successor = rotated.json
    assert rotated.header("location") == f"/api/keys/{successor['id']}"
    assert (successor["name"], successor["scopes"]) == ("key_read", ["tasks:read"])
    both = [
        client.world.bearer("key_read"),
        [(b"authorization", b"Bearer " + successor["key"].encode())],
    ]
    assert [(await send(client.app, "GET", b"/whoami", headers)).status for headers in both] == [
        200,
        200,
    ]
    predecessor = (await client("GET", f"/api/keys/{names['key_read_id']}")).json
    assert predecessor["replaced_by"] == successor["id"]
    client.world.clock.advance(timedelta(seconds=60))
    assert [(await send(client.app, "GET", b"/whoami", headers)).status for headers in both] == [
        401,
        200,
    ]


@with_one_adapter
async def test_an_edited_key_keeps_what_was_left_out(client: Client) -> None:
    body = b'{"name": "a", "scopes": [], "description": " why ", "labels": ["b", "a", "b"]}'
    created = (await client("POST", "/api/keys", body)).json
    del created["key"]
    assert (created["description"], created["labels"]) == ("why", ["a", "b"])
    target = f"/api/keys/{created['id']}"
    for body, changed in [
        (b'{"name": " b "}', {"name": "b"}),
        (b'{"description": null}', {"description": None}),
        (b'{"labels": ["env:prod"]}', {"labels": ["env:prod"]}),
        (b'{"networks": ["::ffff:192.0.2.0/120"]}', {"networks": ["192.0.2.0/24"]}),
        (b'{"networks": null}', {"networks": None}),
        (b'{"description": "x", "labels": null}', {"description": "x", "labels": []}),
    ]:
        created |= changed
        edited = await client("PATCH", target, body)
        assert (edited.status, edited.json) == (200, created)
        assert edited.header("cache-control") == "no-store"
        assert (await client("GET", target)).json == created


async def test_a_deleted_key_is_revoked_and_off_the_list(client: Client) -> None:
    target = f"/api/keys/{client.world.names['key_id']}"
    deleted = await client("DELETE", target)
    assert (deleted.status, deleted.body) == (204, b"")
    assert (await client("GET", target)).status == 404
    assert (await client("DELETE", target)).status == 404
    assert client.world.names["key_id"].encode() not in (await client("GET", "/api/keys")).body
    reply = await send(client.app, "GET", b"/me", client.world.bearer("key"))
    assert (reply.status, reply.json["code"]) == (401, "key_revoked")


@with_one_adapter
async def test_a_list_has_pages_and_filters(client: Client) -> None:
    seen: list[str] = []
    target = "/api/keys?limit=2"
    for _ in range(10):
        page = (await client("GET", target)).json
        assert page.keys() == {"items", "next_cursor"}
        assert all(item.keys() == MEMBERS for item in page["items"])
        seen += [item["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        target = f"/api/keys?limit=2&cursor={page['next_cursor']}"
    assert sorted(seen) == [
        "key",
        "key_bound",
        "key_elsewhere",
        "key_expired",
        "key_nothing",
        "key_read",
        "key_revoked",
    ]
    await client("POST", "/api/keys", b'{"name": "a", "labels": ["env:prod"]}')
    for query, names in (
        ("status=expired", ["key_expired"]),
        ("status=revoked", ["key_revoked"]),
        ("label=env%3Aprod", ["a"]),
    ):
        page = (await client("GET", f"/api/keys?{query}")).json
        assert [item["name"] for item in page["items"]] == names


@pytest.mark.parametrize("delegates", [True, False])
@pytest.mark.parametrize("name", ADAPTERS)
async def test_only_an_application_with_service_accounts_reads_their_parameter(
    name: str, delegates: bool
) -> None:
    world = make_world()
    for auth in (world.authenticator, world.blocking):
        auth.rules = auth.rules._replace(delegates=delegates)
    client = Client(world, application(name, world))
    created = await client("POST", "/api/keys?on_behalf_of=org%3Aacme", b'{"name": "a"}')
    assert created.status == (201 if delegates else 422)
    if delegates:
        key = created.json
        query = "?on_behalf_of=org%3Aacme"
        assert created.header("location") == f"/api/keys/{key['id']}{query}"
        assert key["owner_id"] == "org:acme"


@pytest.mark.parametrize(
    ("scope", "location"),
    [
        ({"root_path": "/v1"}, b"/v1/api/keys/"),
        ({"root_path": "/v1", "path": "/v1/api/keys"}, b"/v1/api/keys/"),
        ({"root_path": "/a b\r\nx: y"}, b"/a%20b%0D%0Ax%3A%20y/api/keys/"),
    ],
)
async def test_the_location_is_as_the_client_sees_it(
    client: Client, scope: dict[str, Any], location: bytes
) -> None:
    created = await client("POST", "/api/keys", b'{"name": "a"}', **scope)
    assert dict(created.raw_headers)[b"location"] == location + created.json["id"].encode()


async def test_a_body_in_pieces(client: Client) -> None:
    created = await client("POST", "/api/keys", chunks=[b'{"na', b"", b'me": "a"}'])
    assert created.status == 201


async def test_a_client_that_leaves_is_no_error(client: Client) -> None:
    reply = await client("POST", "/api/keys", chunks=[])
    assert (reply.status, reply.json["code"]) == (400, "request_malformed")


async def test_a_body_that_a_server_cannot_read_is_malformed(client: Client) -> None:
    for error in (OSError("bad chunk"), ValueError(), EOFError()):
        for before in ([], [b'{"name":']):
            with case(error, before):
                reply = await client("POST", "/api/keys", chunks=[*before, error])
                assert (reply.status, reply.json["code"]) == (400, "request_malformed")


async def test_the_error_of_a_middleware_about_a_body_is_the_answer(client: Client) -> None:
    reply = await client("POST", "/api/keys", chunks=[b"{", TooManyAttempts(3)])
    assert (reply.status, reply.json["code"]) == (429, "too_many_attempts")


async def test_without_credentials_a_route_says_which_kind_it_takes(client: Client) -> None:
    for method, path, words in (
        ("GET", "/tasks", "an API key or a login token"),
        ("POST", "/fresh", "not an API key"),
        ("POST", "/api/keys", "not an API key"),
        ("GET", "/key", "for API keys only"),
    ):
        reply = await send(client.app, method, path.encode())
        assert (reply.status, reply.json["code"]) == (401, "credentials_missing")
        assert reply.header("www-authenticate") == 'Bearer realm="api"'
        assert words in reply.json["detail"]
