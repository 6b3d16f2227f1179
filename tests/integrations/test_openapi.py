"""The OpenAPI documents of applications that the library was added to: theirs stays theirs, ours has names."""

# No `from __future__ import annotations`: FastAPI and Litestar read the annotations of local names.

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeAlias

import pytest
from tests.contract.adapter import MAX_AGE, World, make_world
from tests.integrations.adapters import adapter_of, mounted, send

from msk_auth import Policy, require, require_interactive, require_key, require_login
from msk_auth.errors import ConfigurationError
from msk_auth.http.openapi import complete_document, operations, scheme_name

pytestmark = pytest.mark.anyio

Json: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[..., tuple[Any, Callable[[], Json]]]

MAKERS: dict[str, Make] = {}
OWN = ("ApiKey", "ApiKeyPage", "Problem")
"""Names that the application and the library both have for a schema."""

try:
    import fastapi
    import pydantic
    from fastapi.openapi.models import OpenAPI as OpenAPIModel
    from fastapi.openapi.utils import get_openapi
    from fastapi.security import APIKeyHeader, OAuth2PasswordBearer

    from msk_auth.integrations.fastapi import FastAPIAuth
except ModuleNotFoundError:  # pragma: no cover - where the suite runs without it
    pass
else:

    def fastapi_application(
        world: World | None,
        *,
        login_scheme: Any = None,
        all_errors: bool = False,
        **key_routes: Any,
    ) -> tuple[Any, Callable[[], Json]]:
        app = fastapi.FastAPI(title="Shop")
        oauth2 = OAuth2PasswordBearer(tokenUrl="login", scopes={"shop": "All of it"})
        kinds: dict[str, Any] = {
            name: pydantic.create_model(name, color=(str, ...)) for name in OWN
        }

        @app.get(
            "/kinds",
            response_model=tuple[tuple(kinds.values())],  # type: ignore[misc]
            operation_id="kinds",
        )
        async def kinds_(color: int = 1) -> None: ...

        @app.get("/theirs", dependencies=[fastapi.Security(oauth2, scopes=["shop"])])
        async def theirs() -> None: ...

        @app.get("/header", dependencies=[fastapi.Depends(APIKeyHeader(name="X-Legacy"))])
        async def header(color: int) -> None: ...

        if world is not None:
            auth = FastAPIAuth(world.authenticator, login_scheme=oauth2 if login_scheme else None)

            @app.get("/read", dependencies=[auth.require("tasks:read")])
            async def read() -> None: ...

            @app.get(
                "/admin",
                dependencies=[auth.require("tasks:read"), auth.require_interactive("tasks:run")],
            )
            async def admin() -> None: ...

            app.include_router(auth.key_routes(**key_routes))
            app.include_router(auth.admin_key_routes("admin:config", max_age=MAX_AGE))
            app.include_router(auth.revocation_route(throttle=None))
            app.include_router(auth.leak_route(_no_keys, throttle=None))
            auth.install(app, errors="all" if all_errors else "problems")
        return app, app.openapi

    MAKERS["fastapi"] = fastapi_application

try:
    import litestar
    from litestar.openapi import OpenAPIConfig
    from litestar.openapi.spec import Components, OAuthFlow, OAuthFlows, SecurityScheme

    from msk_auth.integrations.litestar import LitestarAuth
except ModuleNotFoundError:  # pragma: no cover
    pass
else:
    from dataclasses import make_dataclass

    def litestar_application(
        world: World | None,
        *,
        login_scheme: Any = None,
        all_errors: bool = False,
        **key_routes: Any,
    ) -> tuple[Any, Callable[[], Json]]:
        kinds: dict[str, Any] = {name: make_dataclass(name, [("color", str)]) for name in OWN}
        first, second, third = kinds.values()
        opt = {"msk_auth_public": True}

        @litestar.get("/kinds", operation_id="kinds", opt=opt)
        async def kinds_() -> tuple[first, second, third]:  # type: ignore[valid-type]
            raise NotImplementedError

        @litestar.get("/theirs", security=[{"Theirs": ["shop"]}], opt=opt)
        async def theirs() -> None: ...

        flow = OAuthFlow(token_url="login", scopes={"shop": "All of it"})
        theirs_scheme = SecurityScheme(type="oauth2", flows=OAuthFlows(password=flow))
        config = OpenAPIConfig(
            title="Shop",
            version="1",
            components=Components(security_schemes={"Theirs": theirs_scheme}),
            security=[{"Theirs": []}],
        )
        handlers: list[Any] = [kinds_, theirs]
        plugins: list[Any] = []
        if world is not None:
            auth = LitestarAuth(
                world.authenticator,
                login_scheme="Theirs" if login_scheme else None,
                errors="all" if all_errors else "problems",
            )

            @litestar.get("/read", guards=[auth.require("tasks:read")])
            async def read() -> None: ...

            guards = [auth.require("tasks:read"), auth.require_interactive("tasks:run")]

            @litestar.get("/admin", guards=guards)
            async def admin() -> None: ...

            if "prefix" in key_routes:
                key_routes["path"] = key_routes.pop("prefix")
            handlers += [read, admin, auth.key_routes(**key_routes)]
            handlers += [auth.admin_key_routes("admin:config", max_age=MAX_AGE)]
            handlers += [auth.revocation_route(throttle=None)]
            handlers += [auth.leak_route(_no_keys, throttle=None)]
            plugins.append(auth)
        app = litestar.Litestar(
            handlers, plugins=plugins, openapi_config=config, logging_config=None
        )
        return app, app.openapi_schema.to_schema

    MAKERS["litestar"] = litestar_application


async def _no_keys(_url: str) -> Any:
    raise NotImplementedError


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


@pytest.fixture
async def world() -> World:
    return make_world()


def document(make: Make, world: World | None, **more: Any) -> Json:
    return make(world, **more)[1]()


KEY_ROUTES = [
    ("list_keys", "get", ""),
    ("create_key", "post", ""),
    ("get_key", "get", "/{key_id}"),
    ("update_key", "patch", "/{key_id}"),
    ("rotate_key", "post", "/{key_id}/rotate"),
    ("revoke_key", "post", "/{key_id}/revoke"),
    ("delete_key", "delete", "/{key_id}"),
]


def key_operations(found: Json, prefix: str = "/api/keys") -> Iterator[tuple[str, Json]]:
    for name, method, path in KEY_ROUTES:
        yield name, found["paths"][prefix + path][method]


def admin_operations(found: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in found["paths"].items():
        if path.startswith("/api/admin/keys"):
            yield from ((path, method, item[method]) for method in item)


async def test_a_reader_sees_what_administrators_need(make: Make, world: World) -> None:
    operations = list(admin_operations(document(make, world)))
    assert {(path, method) for path, method, _ in operations} == {
        ("/api/admin/keys", "get"),
        ("/api/admin/keys/revoke", "post"),
        ("/api/admin/keys/{key_id}/revoke", "post"),
    }
    for path, method, operation in operations:
        (security,) = operation["security"]
        assert security in ({"Login": ["admin:config"]}, {"Login": []})
        assert {"200", "401", "403", "503"} <= operation["responses"].keys()
        assert ("requestBody" in operation) == (path == "/api/admin/keys/revoke")
        if method == "get":
            assert [each["name"] for each in operation["parameters"]] == [
                "owner_id", "status", "created_before", "unused_since", "expires_before", "label", "cursor", "limit",
            ]  # fmt: skip


async def test_what_is_the_applications_own_stays(make: Make, world: World) -> None:
    before, after = document(make, None), document(make, world)
    for path in before["paths"]:
        assert json.dumps(after["paths"][path]) == json.dumps(before["paths"][path])
    for kind, components in before["components"].items():
        for name, component in components.items():
            assert json.dumps(after["components"][kind][name]) == json.dumps(component)
    assert {name: after[name] for name in before.keys() - {"paths", "components"}} == {
        name: before[name] for name in before.keys() - {"paths", "components"}
    }


@pytest.mark.skipif("fastapi" not in MAKERS, reason="for FastAPI")
async def test_an_application_without_guards_has_the_document_that_it_had() -> None:
    app = fastapi.FastAPI()
    before = json.dumps(app.openapi())
    app.openapi_schema = None
    FastAPIAuth(make_world().authenticator).install(app)
    assert json.dumps(app.openapi()) == before


async def test_a_reader_sees_which_operations_take_a_key(make: Make, world: World) -> None:
    found = document(make, world)
    read, admin = (found["paths"][path]["get"]["security"] for path in ("/read", "/admin"))
    assert read == [{"Login": ["tasks:read"]}, {"ApiKey": ["tasks:read"]}]
    # Both guards have to be passed, so no key is enough.
    assert admin == [{"Login": ["tasks:read", "tasks:run"]}]
    for name, operation in key_operations(found):
        takes_keys = name in {"list_keys", "get_key"}
        assert {"ApiKey": []} in operation["security"] or not takes_keys
        assert len(operation["security"]) == 1 + takes_keys
    schemes = found["components"]["securitySchemes"]
    for name in ("Login", "ApiKey"):
        assert (schemes[name]["type"], schemes[name]["scheme"]) == ("http", "bearer")


@pytest.mark.skipif("fastapi" not in MAKERS, reason="for FastAPI")
async def test_dependencies_with_guards_are_described_as_guards(world: World) -> None:
    auth = FastAPIAuth(world.authenticator)
    app = auth.install(fastapi.FastAPI())

    def load_user(owner_id: Annotated[str, auth.owner_id]) -> str:
        return owner_id

    @app.get("/user")
    def user(user: Annotated[str, auth.user("tasks:read", load_user=load_user)]) -> None: ...

    # Scopes of the application are no permissions.
    @app.get("/scopes", dependencies=[fastapi.Security(load_user, scopes=["theirs"])])
    def scopes() -> None: ...

    user_, scopes_ = (app.openapi()["paths"][path]["get"] for path in ("/user", "/scopes"))
    # As `auth.require("tasks:read")` is.
    assert user_["security"] == [{"Login": ["tasks:read"]}, {"ApiKey": ["tasks:read"]}]
    assert "parameters" not in user_
    assert scopes_["security"] == [{"Login": []}, {"ApiKey": []}]


@pytest.mark.skipif("fastapi" not in MAKERS, reason="for FastAPI")
async def test_a_document_of_the_applications_own_making_is_finished(world: World) -> None:
    """As an application makes it that serves its documentation behind its own login."""
    app = fastapi.FastAPI()
    auth = FastAPIAuth(world.authenticator)
    app.include_router(auth.key_routes())
    app.openapi = lambda: get_openapi(title="Mine", version="1", routes=app.routes)  # type: ignore[method-assign]
    auth.install(app)
    document = app.openapi()
    assert document["info"]["title"] == "Mine"
    assert "msk_auth." not in json.dumps(document)


@pytest.mark.parametrize("delegates", [True, False])
async def test_only_an_application_with_service_accounts_has_their_parameter(
    make: Make, world: World, delegates: bool
) -> None:
    world.authenticator.rules = world.authenticator.rules._replace(delegates=delegates)
    found = document(make, world)
    for name, operation in key_operations(found):
        parameters = [each["name"] for each in operation.get("parameters", [])]
        assert parameters.count("on_behalf_of") == delegates
        # OpenAPI 3.1 allows no parameters that are null, and an empty list would differ from before.
        assert name != "create_key" or ("parameters" in operation) == delegates
    assert "msk_auth." not in json.dumps(found["paths"])


@pytest.mark.parametrize(
    ("guards", "schemes"),
    [
        ([require_key("hooks")], [{"ApiKey": ["hooks"]}]),
        ([require("read"), require_key("hooks")], [{"ApiKey": ["hooks", "read"]}]),
        ([require_key("hooks"), require_interactive()], [{"Login": ["hooks"]}]),
        ([require_login("read")], [{"Login": ["read"]}]),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_an_operation_for_keys_is_offered_no_login(
    guards: list[Policy], schemes: list[dict[str, list[str]]], apart: bool
) -> None:
    # An adapter describes each guard by itself, or all of them at once.
    security = [
        {scheme_name(each): []} for each in ([[one] for one in guards] if apart else [guards])
    ]
    found = complete_document(
        {"paths": {"/x": {"post": {"security": security}}}}, errors="problems"
    )
    assert found["paths"]["/x"]["post"]["security"] == schemes
    assert set(found["components"]["securitySchemes"]) == set(schemes[0])
    assert "msk_auth" not in str(found)


async def test_the_logins_have_the_scheme_of_the_application(make: Make, world: World) -> None:
    before, after = document(make, None), document(make, world, login_scheme=True)
    [theirs] = before["paths"]["/theirs"]["get"]["security"]
    [scheme] = theirs
    assert after["paths"]["/read"]["get"]["security"][0] == {scheme: []}
    assert after["paths"]["/admin"]["get"]["security"] == [{scheme: []}]
    assert after["paths"]["/theirs"] == before["paths"]["/theirs"]
    schemes = after["components"]["securitySchemes"]
    assert schemes == before["components"]["securitySchemes"] | {"ApiKey": schemes["ApiKey"]}
    assert schemes[scheme]["flows"]["password"]["tokenUrl"] == "login"


@pytest.mark.skipif("fastapi" not in MAKERS, reason="for FastAPI")
async def test_the_scheme_is_there_when_nothing_else_uses_it() -> None:
    oauth2 = OAuth2PasswordBearer(tokenUrl="login", scheme_name="Password")
    auth = FastAPIAuth(make_world().authenticator, login_scheme=oauth2)
    app = auth.install(fastapi.FastAPI())
    app.include_router(auth.key_routes())
    assert app.openapi()["components"]["securitySchemes"].keys() == {"Password", "ApiKey"}


@pytest.mark.parametrize("framework", MAKERS)
async def test_a_header_for_keys_is_a_scheme_of_its_own(world: World, framework: str) -> None:
    auth = adapter_of(framework, world.authenticator, header="X-API-Key")
    app = mounted(framework, auth, auth.key_routes())
    found = app.openapi() if framework == "fastapi" else app.openapi_schema.to_schema()
    scheme = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    assert found["components"]["securitySchemes"]["ApiKeyHeader"] == scheme
    operations = found["paths"]["/api/keys"]
    assert operations["get"]["security"] == [{"Login": []}, {"ApiKey": []}, {"ApiKeyHeader": []}]
    assert operations["post"]["security"] == [{"Login": []}]


async def test_a_scheme_that_is_none_is_refused(world: World) -> None:
    if "litestar" in MAKERS:
        auth = LitestarAuth(world.authenticator, login_scheme="Password")
        app = litestar.Litestar([auth.key_routes()], plugins=[auth], logging_config=None)
        with pytest.raises(
            ConfigurationError, match=r"no security scheme 'Password'.*there is none"
        ):
            app.openapi_schema.to_schema()


@pytest.mark.parametrize("all_errors", [False, True])
async def test_the_document_is_valid(make: Make, world: World, all_errors: bool) -> None:
    found = document(make, world, all_errors=all_errors)
    text = json.dumps(found)
    assert "msk_auth." not in text
    # Older versions of FastAPI have a model of OpenAPI 3.0.
    if "fastapi" in MAKERS and int(fastapi.__version__.split(".")[1]) >= 123:
        OpenAPIModel.model_validate(found)
    components = found["components"]
    for reference in _references(found):
        kind, name = reference.removeprefix("#/components/").split("/")
        assert name in components[kind], reference
    shown = [operation for _, operation in operations(found)]
    ids = [operation["operationId"] for operation in shown]
    assert len(set(ids)) == len(ids)
    for operation in shown:
        for each in operation.get("security", ()):
            assert each.keys() <= components["securitySchemes"].keys()
        assert operation["responses"]
        for response in operation["responses"].values():
            assert response["description"]


async def test_every_body_has_a_name(make: Make, world: World) -> None:
    found = document(make, world)
    ours = [operation for _, operation in key_operations(found)]
    ours += [found["paths"][path]["post"] for path in ("/api/revoke", "/api/leaks/github")]
    ours += [operation for _, _, operation in admin_operations(found)]
    for operation in ours:
        bodies = [*operation["responses"].values(), operation.get("requestBody", {})]
        for content in (body["content"] for body in bodies if "content" in body):
            for schema in (each["schema"] for each in content.values()):
                item = schema.get("items", schema)
                assert item.keys() == {"$ref"} or item == {"type": "object"}
    schemas = found["components"]["schemas"]
    # The application has these names already.
    assert schemas.keys() >= {f"MskAuth{name}" for name in OWN} | {
        "CreatedApiKey", "LeakLabel", "LeakMatch", "NewApiKey", "PresentedApiKey", "ProblemField",
        "RevokeApiKeys", "RevokedApiKeys", "RotateApiKey",
    }  # fmt: skip
    assert schemas["MskAuthApiKeyPage"]["properties"]["items"]["items"] == {
        "$ref": "#/components/schemas/MskAuthApiKey"
    }


async def test_the_routes_that_need_no_login_are_described(make: Make, world: World) -> None:
    paths = document(make, world)["paths"]
    revoke, leaks = paths["/api/revoke"]["post"], paths["/api/leaks/github"]["post"]
    assert set(revoke["requestBody"]["content"]) == {
        "application/json",
        "application/x-www-form-urlencoded",
    }
    assert set(revoke["responses"]) == {"200", "400", "413", "422", "429", "503"}
    assert set(leaks["responses"]) == {"200", "400", "403", "413", "422", "429", "503"}
    assert [parameter["name"] for parameter in leaks["parameters"]] == [
        "Github-Public-Key-Identifier",
        "Github-Public-Key-Signature",
    ]
    assert "security" not in revoke
    assert "security" not in leaks


async def test_operation_ids_do_not_change() -> None:
    """Generated clients name their functions after them."""
    world = make_world()
    ids = {
        name: [operation["operationId"] for _, operation in key_operations(document(make, world))]
        for name, make in MAKERS.items()
    }
    expected = {
        "fastapi": [
            "list_keys_api_keys_get",
            "create_key_api_keys_post",
            "get_key_api_keys__key_id__get",
            "update_key_api_keys__key_id__patch",
            "rotate_key_api_keys__key_id__rotate_post",
            "revoke_key_api_keys__key_id__revoke_post",
            "delete_key_api_keys__key_id__delete",
        ],
        "litestar": [
            "ApiKeysListKeys",
            "ApiKeysCreateKey",
            "ApiKeysKeyIdGetKey",
            "ApiKeysKeyIdUpdateKey",
            "ApiKeysKeyIdRotateRotateKey",
            "ApiKeysKeyIdRevokeRevokeKey",
            "ApiKeysKeyIdDeleteKey",
        ],
    }
    assert ids == {name: expected[name] for name in MAKERS}


async def test_tags_and_operation_ids_of_the_applications_choice(make: Make, world: World) -> None:
    found = document(
        make,
        world,
        prefix="/v1/keys",
        tags=["Access", "Keys"],
        operation_id=lambda name: f"keys-{name}",
    )
    for name, operation in key_operations(found, "/v1/keys"):
        assert operation["operationId"] == f"keys-{name}"
        assert sorted(operation["tags"]) == ["Access", "Keys"]
    assert found["paths"]["/api/revoke"]["post"]["tags"] == ["API keys"]


async def test_the_document_has_the_key_routes_that_are_mounted(make: Make, world: World) -> None:
    found = document(make, world, operations=["get_key", "revoke_key"])
    shown = {
        f"{method} {path}"
        for path, item in found["paths"].items()
        if path.startswith("/api/keys")
        for method in item
    }
    assert shown == {"get /api/keys/{key_id}", "post /api/keys/{key_id}/revoke"}
    # Schemas of the others are not there either.
    schemas = found["components"]["schemas"].keys()
    assert "MskAuthApiKey" in schemas
    assert not {"CreatedApiKey", "NewApiKey", "RotateApiKey"} & schemas


@pytest.mark.skipif("fastapi" not in MAKERS, reason="for FastAPI")
async def test_the_applications_own_function_makes_the_ids() -> None:
    app = fastapi.FastAPI(generate_unique_id_function=lambda route: f"{route.tags[0]}-{route.name}")
    auth = FastAPIAuth(make_world().authenticator)
    auth.install(app).include_router(auth.key_routes(tags=["keys"]))
    ids = [operation["operationId"] for _, operation in key_operations(app.openapi())]
    assert ids[0] == "keys-list_keys"


async def test_every_status_that_occurs_is_described(make: Make, world: World) -> None:
    app, generate = make(world)
    found = generate()
    bearer, key = world.bearer("jwt"), world.bearer("key")
    key_id = world.names["key_id"]
    json_type = [(b"content-type", b"application/json")]
    keys = "/api/keys"
    one = f"{keys}/{key_id}"
    for method, path, template, headers, body, status in (
        ("GET", keys, "", [(b"authorization", b"Bearer")], b"", 400),
        ("GET", keys, "", [], b"", 401),
        ("GET", f"{keys}?status=no", "", bearer, b"", 422),
        ("POST", keys, "", key, b"", 403),
        ("POST", keys, "", bearer + json_type, b"x" * 70_000, 413),
        ("POST", keys, "", bearer + json_type, b"{", 422),
        ("POST", keys, "", bearer + json_type, b'{"name": "a"}', 201),
        ("GET", f"{keys}/000000000000", "/{key_id}", bearer, b"", 404),
        ("POST", f"{one}/rotate", "/{key_id}/rotate", bearer + json_type, b"[]", 422),
        ("POST", f"{one}/rotate", "/{key_id}/rotate", bearer, b"x" * 70_000, 413),
        ("POST", f"{one}/revoke", "/{key_id}/revoke", bearer, b"", 200),
        ("POST", f"{one}/rotate", "/{key_id}/rotate", bearer, b"", 409),
        ("DELETE", one, "/{key_id}", bearer, b"", 204),
    ):
        reply = await send(app, method, path.encode(), headers, body)
        assert reply.status == status, (method, path)
        described = found["paths"][keys + template][method.lower()]["responses"]
        assert str(status) in described, (method, template, status)
        assert {"400", "401", "403", "503"} <= described.keys()


async def test_it_is_the_same_when_it_is_made_again(make: Make, world: World) -> None:
    _, generate = make(world)
    first = json.dumps(generate())
    assert json.dumps(generate()) == first
    assert json.dumps(make(make_world())[1]()) == first


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _references(each)
