"""Logging in and out, links, passwords and sessions, as people and attackers see them."""

from __future__ import annotations

import httpx2
import pytest
from examples.task_service.tests.service_support import (
    USER_PASSWORD,
    Caller,
    Service,
    challenge,
    expect,
    problem,
    secrets_in,
    wrong_fields,
)

from task_service.provider_login import CALLBACK, LOGOUT

pytestmark = pytest.mark.anyio

NEW_PASSWORD = "nineteen paper boats"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


async def invite(admin: Caller, username: str = "eva", role: str = "user") -> tuple[str, str]:
    """A new user's id, and the token of their link."""
    created = expect(
        await admin.post("/api/admin/users", {"username": username, "role": role}), 201
    )
    return created["user"]["id"], created["invitation_url"].split("#")[1]


# Logging in


async def test_an_unknown_name_and_a_wrong_password_are_answered_alike(
    service: Service, admin: Caller
) -> None:
    await invite(admin, "invited")
    disabled_id, _ = await invite(admin, "disabled")
    expect(await admin.patch(f"/api/admin/users/{disabled_id}", {"disabled": True}), 200)
    answers = {
        (await service.caller().post("/api/auth/login", {"username": name, "password": password}))
        for name, password in (
            ("ulf", "not the password"),
            ("nobody", "not the password"),
            ("invited", "not the password"),
            ("disabled", "not the password"),
            ("ulf", ""),
            ("", "not the password"),
            ("\x00", "x" * 5000),
        )
    }
    assert {(problem(answer), answer.content, challenge(answer)) for answer in answers} == {
        ((401, "login_failed"), next(iter(answers)).content, 'Bearer realm="task-service"')
    }


async def test_login_names_the_invalid_member_and_never_quotes_it(service: Service) -> None:
    for body, fields in (
        ({}, {"username", "password"}),
        ({"username": "ulf"}, {"password"}),
        ({"username": 5, "password": "x"}, {"username"}),
        ({"username": "ulf", "password": None}, {"password"}),
        ({"username": "ulf", "password": "x", "remember": True}, {"remember"}),
    ):
        assert wrong_fields(await service.caller().post("/api/auth/login", body)) == fields, body
    leak = {"username": "ulf", "password": [USER_PASSWORD]}
    assert not secrets_in((await service.caller().post("/api/auth/login", leak)).text)


async def test_a_login_is_answered_with_a_bearer_token(service: Service) -> None:
    body = {"username": "ulf", "password": USER_PASSWORD}
    answered = expect(await service.caller().post("/api/auth/login", body), 200)
    token = answered.pop("access_token")
    assert answered == {"token_type": "Bearer", "expires_in": 720 * 60}
    assert (await service.caller(token).me())["credential"]["kind"] == "interactive"


# Who a request acts for


async def test_me_shows_user_permissions_and_credential(user: Caller, user_key: Caller) -> None:
    answered = await user.me()
    assert answered["user"].keys() == {"id", "username", "roles", "service_account"}
    assert answered["user"]["service_account"] is False
    assert (answered["user"]["username"], answered["user"]["roles"]) == ("ulf", ["user"])
    assert answered["permissions"] == ["keys:manage", "tasks:read", "tasks:run", "tasks:write"]
    credential = answered["credential"]
    assert (credential["kind"], credential["key_id"]) == ("interactive", None)
    of_key = await user_key.me()
    credential = of_key["credential"]
    assert credential["kind"] == "api_key"
    assert len(credential["key_id"]) == 12
    # Of the same user, with the same permissions (G4).
    assert of_key == {**answered, "credential": credential}


# Links and passwords


async def test_changing_the_password_ends_the_other_sessions(
    service: Service, user: Caller
) -> None:
    elsewhere = await service.log_in("ulf", USER_PASSWORD)
    change = {"current_password": USER_PASSWORD, "new_password": NEW_PASSWORD}
    assert (await user.post("/api/auth/change-password", change)).status_code == 204
    expect(await user.get("/api/auth/me"), 200)
    assert problem(await elsewhere.get("/api/auth/me")) == (401, "token_revoked")
    await service.log_in("ulf", NEW_PASSWORD)
    old = {"username": "ulf", "password": USER_PASSWORD}
    assert problem(await service.caller().post("/api/auth/login", old)) == (401, "login_failed")


async def test_changing_the_password_needs_the_present_one(user: Caller, admin: Caller) -> None:
    change = {"current_password": "a guess at it", "new_password": NEW_PASSWORD}
    assert wrong_fields(await user.post("/api/auth/change-password", change)) == {
        "current_password"
    }
    for _ in range(9):
        await user.post("/api/auth/change-password", change)
    assert problem(await user.post("/api/auth/change-password", change)) == (
        429,
        "too_many_attempts",
    )
    path = "/api/admin/audit?action=user.password_change_failed"
    assert len(expect(await admin.get(path), 200)["items"]) == 10


# Confirming the password


def cookie_of(response: httpx2.Response) -> dict[str, str]:
    """The login cookie that an answer sets, as a browser sends it back."""
    return {"Cookie": response.headers["set-cookie"].split(";")[0]}


async def test_a_page_gets_the_new_login_in_its_cookie_and_nowhere_else(service: Service) -> None:
    form = {"username": "ulf", "password": USER_PASSWORD}
    browser = service.caller()
    old = cookie_of(await browser.http.post("/login", data=form, headers=SAME_ORIGIN))
    path, body = "/api/auth/reauthenticate", {"password": USER_PASSWORD}
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    refused = await browser.post(path, body, headers=old | foreign)
    assert problem(refused) == (403, "cross_origin_refused")
    answered = await browser.post(path, body, headers=old | SAME_ORIGIN)
    assert (answered.status_code, answered.content) == (204, b"")
    new = cookie_of(answered)
    assert new != old
    expect(await browser.get("/api/auth/me", headers=new), 200)
    assert problem(await browser.get("/api/auth/me", headers=old)) == (401, "token_revoked")


async def test_a_program_with_some_other_cookie_gets_a_token(user: Caller) -> None:
    answered = await user.post(
        "/api/auth/reauthenticate",
        {"password": USER_PASSWORD},
        headers={"Cookie": "__Host-task_session=nonsense"},
    )
    assert expect(answered, 200).keys() == {"access_token", "token_type", "expires_in"}
    assert "set-cookie" not in answered.headers


async def test_a_wrong_password_renews_nothing_and_counts_as_a_guess(
    service: Service, user: Caller, admin: Caller
) -> None:
    before = await user.me()
    body = {"password": "not the password"}
    for _ in range(10):
        refused = await user.post("/api/auth/reauthenticate", body)
        assert wrong_fields(refused) == {"password"}
        assert "set-cookie" not in refused.headers
    body["password"] = USER_PASSWORD
    throttled = await user.post("/api/auth/reauthenticate", body)
    assert problem(throttled) == (429, "too_many_attempts")
    assert "retry-after" in throttled.headers
    login = {"username": "ulf", "password": USER_PASSWORD}
    refused = await service.caller().post("/api/auth/login", login)
    assert problem(refused) == (429, "too_many_attempts")
    assert await user.me() == before
    entries = expect(await admin.get("/api/admin/audit?action=login.failed"), 200)["items"]
    assert [entry["credential"]["kind"] for entry in entries] == ["interactive"] * 10


# Sessions


async def test_one_sees_ones_sessions_and_ends_one(
    service: Service, user: Caller, admin: Caller
) -> None:
    body = {"username": "ulf", "password": USER_PASSWORD}
    await service.caller().post("/api/auth/login", body, headers={"User-Agent": "a\x07browser"})
    items = expect(await user.get("/api/auth/sessions"), 200)["items"]
    assert [session["current"] for session in items] == [False, True]
    assert items[0]["user_agent"] == "a?browser"
    assert items[0]["address"] == "127.0.0.1"
    assert not secrets_in(str(items))
    path = f"/api/auth/sessions/{items[0]['id']}"
    assert problem(await admin.delete(path)) == (404, "session_not_found")
    assert (await user.delete(path)).status_code == 204
    assert problem(await user.delete(path)) == (404, "session_not_found")
    assert len(expect(await user.get("/api/auth/sessions"), 200)["items"]) == 1
    # Logging out ends this session only.
    elsewhere = await service.log_in("ulf", USER_PASSWORD)
    assert (await user.post("/api/auth/logout")).status_code == 204
    assert problem(await user.get("/api/tasks")) == (401, "token_revoked")
    expect(await elsewhere.get("/api/tasks"), 200)


# The pages' login


async def test_the_page_logs_in_and_out_with_its_cookie(service: Service) -> None:
    form = {"username": "ulf", "password": USER_PASSWORD, "next": "/keys"}
    browser = service.caller()
    answered = await browser.http.post("/login", data=form, headers=SAME_ORIGIN)
    assert (answered.status_code, answered.headers["location"]) == (303, "/keys")
    headers = cookie_of(answered)
    assert expect(await browser.get("/api/auth/me", headers=headers), 200)["user"]["username"] == (
        "ulf"
    )
    assert (await browser.get("/keys", headers=headers)).status_code == 200
    out = await browser.post("/logout", headers=headers | SAME_ORIGIN)
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert problem(await browser.get("/api/auth/me", headers=headers)) == (401, "token_revoked")


async def test_without_a_provider_there_is_no_login_there(service: Service) -> None:
    stranger = service.caller()
    for answered in (
        await stranger.get("/login/oidc"),
        await stranger.get(CALLBACK),
        await stranger.post(LOGOUT),
    ):
        assert problem(answered) == (404, "not_found")
    assert "/login/oidc" not in (await stranger.get("/login")).text


async def test_another_site_can_use_the_cookie_for_nothing(service: Service, user: Caller) -> None:
    token = user.token
    browser = service.caller()
    cookie = {"Cookie": f"__Host-task_session={token}"}
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    for path in ("/api/keys", "/api/auth/logout", "/logout"):
        response = await browser.post(path, {"name": "stolen"}, headers=cookie | foreign)
        assert response.status_code == 403, path
    assert expect(await user.get("/api/keys"), 200)["items"] == []
    preflight = await browser.request(
        "OPTIONS", "/api/keys", headers=foreign | {"Access-Control-Request-Method": "POST"}
    )
    allowed = {name for name in preflight.headers if name.startswith("access-control-")}
    assert not allowed


async def test_a_key_is_no_page_login(service: Service, user: Caller) -> None:
    value = (await user.new_key())["key"]
    for headers in (
        {"Cookie": f"__Host-task_session={value}"},
        {"Authorization": f"Bearer {value}"},
    ):
        page = await service.caller().get("/keys", headers=headers)
        assert (page.status_code, page.headers["location"]) == (303, "/login?next=%2Fkeys")
