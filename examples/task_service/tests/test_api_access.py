"""Who gets where: every route of the API with nothing, with each kind of credential, and with each role.

The table is the contract; a test holds it to the routes that really exist, so a new route needs a line here.
"""

from __future__ import annotations

import itertools
from typing import Any

import httpx2
import pytest
from examples.task_service.tests.service_support import Caller, Service, challenge, expect, problem

from task_service.accounts.roles import ROLE_PERMISSIONS

pytestmark = pytest.mark.anyio

NOTHING, USER, ADMIN, USER_KEY, ADMIN_KEY = "nothing", "user", "admin", "user_key", "admin_key"

ANYONE = {NOTHING: 200, USER: 200, ADMIN: 200, USER_KEY: 200, ADMIN_KEY: 200}
AUTHENTICATED = ANYONE | {NOTHING: "credentials_missing"}
# An API key learns that no key will ever do here, whatever its owner may.
INTERACTIVE = AUTHENTICATED | {USER_KEY: "interactive_required", ADMIN_KEY: "interactive_required"}
ADMINISTRATOR = INTERACTIVE | {USER: "permission_denied"}

NO_TASK = "/api/tasks/tsk_0000000000000000"
NO_RUN = "/api/runs/run_0000000000000000"
NO_KEY = "/api/keys/000000000000"
NO_ACCOUNT = "/api/admin/service-accounts/svc_0000000000000000"
NO_USER = "/api/admin/users/usr_0000000000000000"

# Who passes the guard of each route. What an answer is beyond it (200, 201, 404, 422) is not the matter here.
ROUTES: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("POST", "/api/auth/login"): ("/api/auth/login", ANYONE),
    ("POST", "/api/auth/set-password"): ("/api/auth/set-password", ANYONE),
    ("POST", "/api/auth/password-link"): ("/api/auth/password-link", ANYONE),
    ("GET", "/api/auth/me"): ("/api/auth/me", AUTHENTICATED),
    ("GET", "/api/auth/sessions"): ("/api/auth/sessions", INTERACTIVE),
    ("DELETE", "/api/auth/sessions"): ("/api/auth/sessions", INTERACTIVE),
    ("DELETE", "/api/auth/sessions/{sessionId}"): ("/api/auth/sessions/ses_0", INTERACTIVE),
    ("POST", "/api/auth/change-password"): ("/api/auth/change-password", INTERACTIVE),
    ("POST", "/api/auth/logout"): ("/api/auth/logout", INTERACTIVE),
    ("POST", "/api/auth/reauthenticate"): ("/api/auth/reauthenticate", INTERACTIVE),
    ("GET", "/api/keys"): ("/api/keys", AUTHENTICATED),
    ("POST", "/api/keys"): ("/api/keys", INTERACTIVE),
    ("GET", "/api/keys/{key_id}"): (NO_KEY, AUTHENTICATED),
    ("POST", "/api/keys/{key_id}/rotate"): (f"{NO_KEY}/rotate", INTERACTIVE),
    ("POST", "/api/keys/{key_id}/revoke"): (f"{NO_KEY}/revoke", INTERACTIVE),
    ("DELETE", "/api/keys/{key_id}"): (NO_KEY, INTERACTIVE),
    ("PATCH", "/api/keys/{key_id}"): (NO_KEY, INTERACTIVE),
    ("GET", "/api/keys/{key_id}/audit"): (f"{NO_KEY}/audit", INTERACTIVE),
    ("GET", "/api/keys/{key_id}/activity"): (f"{NO_KEY}/activity", INTERACTIVE),
    ("POST", "/api/revoke"): ("/api/revoke", ANYONE),
    ("POST", "/api/leaks/github"): ("/api/leaks/github", ANYONE),
    ("GET", "/api/handlers"): ("/api/handlers", AUTHENTICATED),
    ("GET", "/api/tasks"): ("/api/tasks", AUTHENTICATED),
    ("POST", "/api/tasks"): ("/api/tasks", AUTHENTICATED),
    ("GET", "/api/tasks/{taskId}"): (NO_TASK, AUTHENTICATED),
    ("PATCH", "/api/tasks/{taskId}"): (NO_TASK, AUTHENTICATED),
    ("DELETE", "/api/tasks/{taskId}"): (NO_TASK, AUTHENTICATED),
    ("POST", "/api/tasks/{taskId}/run"): (f"{NO_TASK}/run", AUTHENTICATED),
    ("GET", "/api/tasks/{taskId}/runs"): (f"{NO_TASK}/runs", AUTHENTICATED),
    ("GET", "/api/runs"): ("/api/runs", AUTHENTICATED),
    ("GET", "/api/runs/{runId}"): (NO_RUN, AUTHENTICATED),
    ("POST", "/api/runs/{runId}/rerun"): (f"{NO_RUN}/rerun", AUTHENTICATED),
    ("POST", "/api/runs/{runId}/cancel"): (f"{NO_RUN}/cancel", AUTHENTICATED),
    ("GET", "/api/runs/{runId}/log"): (f"{NO_RUN}/log", AUTHENTICATED),
    ("GET", "/api/admin/config"): ("/api/admin/config", ADMINISTRATOR),
    ("PATCH", "/api/admin/config"): ("/api/admin/config", ADMINISTRATOR),
    ("GET", "/api/admin/users"): ("/api/admin/users", ADMINISTRATOR),
    ("POST", "/api/admin/users"): ("/api/admin/users", ADMINISTRATOR),
    ("GET", "/api/admin/users/{userId}"): (NO_USER, ADMINISTRATOR),
    ("PATCH", "/api/admin/users/{userId}"): (NO_USER, ADMINISTRATOR),
    ("POST", "/api/admin/users/{userId}/invitation"): (f"{NO_USER}/invitation", ADMINISTRATOR),
    ("DELETE", "/api/admin/users/{userId}/sessions"): (f"{NO_USER}/sessions", ADMINISTRATOR),
    ("GET", "/api/admin/service-accounts"): ("/api/admin/service-accounts", ADMINISTRATOR),
    ("POST", "/api/admin/service-accounts"): ("/api/admin/service-accounts", ADMINISTRATOR),
    ("GET", "/api/admin/service-accounts/{accountId}"): (NO_ACCOUNT, ADMINISTRATOR),
    ("PATCH", "/api/admin/service-accounts/{accountId}"): (NO_ACCOUNT, ADMINISTRATOR),
    ("DELETE", "/api/admin/service-accounts/{accountId}"): (NO_ACCOUNT, ADMINISTRATOR),
    ("GET", "/api/admin/users/{userId}/departure"): (f"{NO_USER}/departure", ADMINISTRATOR),
    ("POST", "/api/admin/users/{userId}/departure"): (f"{NO_USER}/departure", ADMINISTRATOR),
    ("GET", "/api/admin/keys"): ("/api/admin/keys", ADMINISTRATOR),
    ("GET", "/api/admin/keys/{key_id}"): ("/api/admin/keys/000000000000", ADMINISTRATOR),
    ("GET", "/api/admin/keys/{key_id}/activity"): (
        "/api/admin/keys/000000000000/activity",
        ADMINISTRATOR,
    ),
    ("POST", "/api/admin/keys/revoke"): ("/api/admin/keys/revoke", ADMINISTRATOR),
    ("POST", "/api/admin/keys/{key_id}/revoke"): (
        "/api/admin/keys/000000000000/revoke",
        ADMINISTRATOR,
    ),
    ("GET", "/api/admin/audit"): ("/api/admin/audit", ADMINISTRATOR),
    ("GET", "/api/admin/audit/export"): ("/api/admin/audit/export", ADMINISTRATOR),
    ("GET", "/api/admin/system"): ("/api/admin/system", ADMINISTRATOR),
    ("GET", "/healthz"): ("/healthz", ANYONE),
    ("GET", "/readyz"): ("/readyz", ANYONE),
    ("GET", "/metrics"): ("/metrics", ANYONE),
    ("GET", "/openapi.json"): ("/openapi.json", ANYONE),
}

CHALLENGES = {
    "credentials_missing": 'Bearer realm="task-service"',
    "interactive_required": (
        'Bearer realm="task-service", error="insufficient_user_authentication"'
    ),
}


@pytest.fixture
def callers(
    service: Service, user: Caller, admin: Caller, user_key: Caller, admin_key: Caller
) -> dict[str, Caller]:
    return {
        NOTHING: service.caller(),
        USER: user,
        ADMIN: admin,
        USER_KEY: user_key,
        ADMIN_KEY: admin_key,
    }


def is_admitted(response: httpx2.Response) -> bool:
    """True if the guards let it pass, whatever came then (login, links and reports have refusals of their own)."""
    if response.status_code not in {401, 403}:
        return True
    return problem(response)[1] in {"login_failed", "signature_invalid"}


async def test_each_route_admits_exactly_those_it_is_for(callers: dict[str, Caller]) -> None:
    # One service for all: a route that ends what the caller came with goes last.
    for route in sorted(ROUTES, key=lambda route: "logout" in route[1]):
        path, expected = ROUTES[route]
        for who, caller in callers.items():
            response = await caller.request(route[0], path)
            if expected[who] == 200:
                assert is_admitted(response), (route, who, response.text)
                assert response.status_code < 500, (route, who, response.text)
            else:
                status = 401 if who == NOTHING else 403
                assert response.status_code == status, (route, who)
                assert problem(response) == (status, expected[who]), (route, who)
                if expected[who] in CHALLENGES:
                    assert challenge(response) == CHALLENGES[expected[who]], (route, who)


async def test_the_table_names_every_route_there_is(service: Service) -> None:
    document = expect(await service.caller().get("/openapi.json"), 200)
    real = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert real | {("GET", "/openapi.json")} == set(ROUTES)


async def test_openapi_shows_what_is_guarded_and_how(service: Service) -> None:
    document = expect(await service.caller().get("/openapi.json"), 200)
    schemes = document["components"]["securitySchemes"]
    assert schemes.keys() == {"ApiKey", "Login"}
    for (method, path), (_, expected) in ROUTES.items():
        if path != "/openapi.json":
            operation = document["paths"][path][method.lower()]
            shown = {name for each in operation.get("security", ()) for name in each}
            key_passes = expected[ADMIN_KEY] != "interactive_required"
            wanted = {"Login", "ApiKey"} if key_passes else {"Login"}
            assert shown == (set() if expected is ANYONE else wanted), (method, path)


async def test_fastapis_documentation_pages_are_off(service: Service) -> None:
    """They load scripts from elsewhere. The page at /docs is one of ours, behind the login."""
    for path in ("/redoc", "/docs/oauth2-redirect"):
        assert problem(await service.caller().get(path)) == (404, "not_found")
    docs = await service.caller().get("/docs")
    assert (docs.status_code, docs.headers["location"]) == (303, "/login?next=%2Fdocs")


# The administrators' addresses

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "BREW")
ADDRESSES = (
    "/api/admin/config",
    "/api/admin/config/",
    "/api/admin%2Fconfig",
    "/api/%61dmin/config",
    "/api/admin/config/max_keys_per_user",
    "/api/admin/users",
    "/api/admin/service-accounts",
    "/api/admin/service-accounts/svc_0000000000000000",
    "/api/admin/keys",
    "/api/admin/keys/000000000000/rotate",
    "/api/admin/audit",
    "/api/admin/nothing/here",
    "/api/admin",
    "/api/admin/",
)
OVERRIDES = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")


async def test_no_key_passes_any_method_of_any_administrators_address(
    callers: dict[str, Caller],
) -> None:
    refused = {
        ADMIN_KEY: (403, "interactive_required"),
        USER_KEY: (403, "interactive_required"),
        USER: (403, "permission_denied"),
        NOTHING: (401, "credentials_missing"),
    }
    for method, address, (who, answer) in itertools.product(METHODS, ADDRESSES, refused.items()):
        response = await callers[who].request(method, address)
        if method == "HEAD":
            assert (response.status_code, response.content) == (answer[0], b""), (address, who)
        else:
            assert problem(response) == answer, (method, address, who)


async def test_a_method_in_a_header_is_none(callers: dict[str, Caller]) -> None:
    before = expect(await callers[ADMIN].get("/api/admin/config"), 200)
    for header in OVERRIDES:
        for who, answer in (
            (ADMIN_KEY, (403, "interactive_required")),
            (ADMIN, (405, "method_not_allowed")),
        ):
            response = await callers[who].post(
                "/api/admin/config", {"max_keys_per_user": 7}, headers={header: "PATCH"}
            )
            assert problem(response) == answer, header
    assert expect(await callers[ADMIN].get("/api/admin/config"), 200) == before


async def test_a_wrong_method_names_the_allowed_ones_to_an_administrator(admin: Caller) -> None:
    response = await admin.delete("/api/admin/config")
    assert problem(response) == (405, "method_not_allowed")
    assert response.headers["allow"] == "GET, HEAD, PATCH"
    assert problem(await admin.get("/api/admin/nothing")) == (404, "not_found")
    assert problem(await admin.get("/api/admin/config/")) == (404, "not_found")


async def test_a_wrong_method_names_those_of_every_route_of_the_path(admin: Caller) -> None:
    for path, methods in (
        ("/api/tasks", "GET, HEAD, POST"),
        ("/api/tasks/tsk_0123456789abcdef", "DELETE, GET, HEAD, PATCH"),
        ("/api/keys", "GET, HEAD, POST"),
        ("/api/auth/login", "POST"),
        ("/api/admin/keys/revoke", "POST"),
        ("/tasks", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
    ):
        response = await admin.request("OPTIONS", path)
        assert problem(response) == (405, "method_not_allowed")
        assert response.headers["allow"] == methods, path


async def test_head_is_answered_as_get_is(admin: Caller) -> None:
    response = await admin.request("HEAD", "/api/admin/config")
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) > 0


# Permissions


async def test_a_key_needs_the_permission_of_what_it_does_and_no_other(
    service: Service, user: Caller
) -> None:
    for method, path, needed in (
        ("GET", "/api/tasks", "tasks:read"),
        ("GET", NO_TASK, "tasks:read"),
        ("GET", f"{NO_TASK}/runs", "tasks:read"),
        ("POST", "/api/tasks", "tasks:write"),
        ("PATCH", NO_TASK, "tasks:write"),
        ("DELETE", NO_TASK, "tasks:write"),
        ("POST", f"{NO_TASK}/run", "tasks:run"),
        ("POST", f"{NO_RUN}/rerun", "tasks:run"),
        ("POST", f"{NO_RUN}/cancel", "tasks:run"),
    ):
        others = sorted(ROLE_PERMISSIONS["user"] - {needed})
        without = await service.key_for(user, scopes=others)
        response = await without.request(method, path)
        assert problem(response) == (403, "permission_denied"), (method, path)
        assert (
            challenge(response)
            == f'Bearer realm="task-service", error="insufficient_scope", scope="{needed}"'
        )
        just_that = await service.key_for(user, scopes=[needed])
        assert is_admitted(await just_that.request(method, path)), (method, path)


async def test_a_key_without_scopes_can_do_nothing(service: Service, user: Caller) -> None:
    nothing = await service.key_for(user, scopes=[])
    assert problem(await nothing.get("/api/tasks")) == (403, "permission_denied")
    me = await nothing.me()
    assert me["permissions"] == []
