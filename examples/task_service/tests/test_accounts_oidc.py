"""Logging in at an identity provider, which runs here and is authlib's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit
from uuid import uuid4

import httpcore2
import httpx2
import pytest
from examples.task_service.tests.oidc_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    TestProvider,
    at_provider,
    running_provider,
    running_proxy,
    wait_for_a_busy_machine,
)
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    BASE_URL,
    LoggedIn,
    Service,
    expect,
    problem,
    running_service,
)
from examples.task_service.tests.test_handlers_http_request import certificate
from joserfc.jwk import OctKey
from sqlalchemy import select

from msk_auth import AsyncAuthenticator
from msk_auth.errors import ConfigurationError
from task_service import login_cookie
from task_service.accounts.audit import AuditQuery
from task_service.claim_rule import ClaimRule
from task_service.db import schema
from task_service.provider_login import CALLBACK
from task_service.settings import Settings, load_settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_PAGE = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def settings(provider: TestProvider) -> dict[str, Any]:
    return at_provider(provider) | {
        "oidc_users": "groups=tasks",
        "oidc_administrators": "groups=admins",
        "oidc_name": "Example <ID>",
    }


@pytest.fixture
async def service(
    template: Path, logged_in: LoggedIn, settings: dict[str, Any]
) -> AsyncIterator[Service]:
    async with running_service(
        template, logged_in.place(), shared_routes=True, housekeeping=False, **settings
    ) as running:
        yield running


def _cookie(answer: httpx2.Response, name: str) -> str | None:
    """The value of a cookie that the answer sets; "" or "null" if it deletes it."""
    for line in answer.headers.get_list("set-cookie"):
        if line.startswith(f"{name}="):
            return line.partition("=")[2].partition(";")[0].strip('"')
    return None


async def _begin(service: Service, query: str = "", cookie: str = "") -> tuple[str, str]:
    """Where the browser is sent, and the cookie that it keeps."""
    sent = {"cookie": cookie, **_PAGE} if cookie else {}
    answer = await service.caller().get(f"/login/oidc{query}", headers=sent)
    assert answer.status_code == 302
    assert answer.headers["cache-control"] == "no-store"
    (line,) = answer.headers.get_list("set-cookie")
    assert {"httponly", "Max-Age=600", "path=/", "samesite=lax", "secure"} <= set(line.split("; "))
    return answer.headers["location"], _cookie(answer, login_cookie.PENDING) or ""


async def _come_back(service: Service, location: str, pending: str) -> httpx2.Response:
    headers = {"sec-fetch-site": "cross-site"}
    if pending:
        headers["cookie"] = f"{login_cookie.PENDING}={pending}"
    return await service.caller().get(location.removeprefix(BASE_URL), headers=headers)


async def _visit(
    service: Service, provider: TestProvider, query: str = "", cookie: str = ""
) -> httpx2.Response:
    """The answer to a browser that was at the provider."""
    url, pending = await _begin(service, query, cookie)
    return await _come_back(service, provider.visit(url), pending)


async def _log_in(
    service: Service, provider: TestProvider, query: str = "", cookie: str = ""
) -> str:
    """The login token of a whole login at the provider."""
    answer = await _visit(service, provider, query, cookie)
    assert answer.status_code == 200, answer.text
    token = _cookie(answer, login_cookie.NAME)
    assert token
    return token


async def _log_out(service: Service, token: str) -> httpx2.Response:
    headers = {"cookie": f"{login_cookie.NAME}={token}", **_PAGE}
    return await service.caller().post("/logout", headers=headers)


def _logout_address(answer: httpx2.Response) -> str:
    """Where the page that follows a logout sends the browser."""
    return answer.text.partition("0; url=")[2].partition('"')[0].replace("&amp;", "&")


async def _sessions(service: Service) -> list[Any]:
    async with service.services.db.read() as connection:
        return list(await connection.execute(select(schema.sessions)))


async def test_a_person_of_the_provider_becomes_a_user_and_stays_the_same(
    service: Service, provider: TestProvider
) -> None:
    provider.person |= {"preferred_username": "Ann"}
    first = await service.caller(await _log_in(service, provider)).me()
    assert (first["user"]["username"], first["user"]["roles"]) == ("ann", ["user"])
    assert first["credential"]["kind"] == "interactive"
    provider.person |= {"preferred_username": "somebody-else"}
    again = await service.caller(await _log_in(service, provider)).me()
    assert again["user"] == first["user"]


async def test_the_request_has_a_proof_key_a_state_and_a_nonce(
    service: Service, provider: TestProvider
) -> None:
    url, pending = await _begin(service, "?next=/keys")
    asked = dict(parse_qsl(urlsplit(url).query))
    assert len({asked.pop(name) for name in ("code_challenge", "state", "nonce")} - {""}) == 3
    assert asked == {
        "response_type": "code",
        "client_id": CLIENT_ID,
        "redirect_uri": BASE_URL + CALLBACK,
        "scope": "openid profile email",
        "code_challenge_method": "S256",
        "max_age": "86400",
    }
    answer = await _come_back(service, provider.visit(url), pending)
    assert 'content="0; url=/keys"' in answer.text
    assert _cookie(answer, login_cookie.PENDING) == "null"


async def test_a_name_that_is_taken_opens_no_account_that_exists(
    service: Service, provider: TestProvider
) -> None:
    provider.person |= {"preferred_username": "ADA", "email": "ada", "email_verified": True}
    me = await service.caller(await _log_in(service, provider)).me()
    assert me["user"]["username"].startswith("ada-")
    assert me["user"]["roles"] == ["user"]


async def test_a_person_without_a_usable_name_gets_one(
    service: Service, provider: TestProvider
) -> None:
    for subject, claims in enumerate([{}, {"preferred_username": "two words"}, {"email": 7}]):
        provider.person = {"sub": str(subject), "groups": ["tasks"], **claims}
        me = await service.caller(await _log_in(service, provider)).me()
        assert me["user"]["username"].partition("-")[0] == "user"


async def test_the_provider_decides_who_is_an_administrator_at_each_login(
    service: Service, provider: TestProvider
) -> None:
    for more, role in ((["admins"], "admin"), ([], "user"), (["admins"], "admin")):
        provider.person["groups"] = ["tasks", *more]
        me = await service.caller(await _log_in(service, provider)).me()
        assert me["user"]["roles"] == [role]


async def test_the_last_administrator_stays_one(
    service: Service, provider: TestProvider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.person["groups"] = ["tasks", "admins"]
    me = await service.caller(await _log_in(service, provider)).me()
    ada = await service.services.users.get_by_name("ada")
    await service.services.users.change(ada.id, disabled=True)
    provider.person["groups"] = ["tasks"]
    again = await service.caller(await _log_in(service, provider)).me()
    assert again["user"]["roles"] == ["admin"]
    assert f"{me['user']['id']} stays an administrator" in caplog.text


async def test_an_administrator_of_the_provider_ends_the_first_links(
    template: Path, tmp_path: Path, settings: dict[str, Any], provider: TestProvider
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o700)
    async with running_service(empty, tmp_path / "data", **settings) as service:
        invitation = await service.services.invitations.create_for_first_administrator()
        assert invitation is not None
        provider.person["groups"] = ["tasks", "admins"]
        await _log_in(service, provider)
        assert await service.services.invitations.create_for_first_administrator() is None
        body = {"token": invitation.token, "password": "a long enough password"}
        answer = await service.caller().post("/api/auth/set-password", body)
        assert problem(answer) == (410, "link_invalid")


async def test_a_disabled_user_is_refused(service: Service, provider: TestProvider) -> None:
    me = await service.caller(await _log_in(service, provider)).me()
    await service.services.users.change(me["user"]["id"], disabled=True)
    answer = await _visit(service, provider)
    assert answer.status_code == 403
    assert "Your account is disabled" in answer.text
    assert _cookie(answer, login_cookie.NAME) is None


async def test_who_does_not_belong_to_the_users_is_refused(
    service: Service, provider: TestProvider
) -> None:
    groups: list[Any] = [None, [], ["task"], "tasks-and-more", {"tasks": True}, [["tasks"]]]
    for provider.person["groups"] in groups:
        answer = await _visit(service, provider)
        assert answer.status_code == 403
        assert "may not use this service" in answer.text
    async with service.services.db.read() as connection:
        assert not list(await connection.execute(select(schema.identities)))


async def test_an_id_token_that_is_wrong_is_refused(
    service: Service, provider: TestProvider
) -> None:
    now = int(time.time())
    right = provider.person
    wrong: list[dict[str, Any]] = [
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": 7},
        {"nonce": "é"},
        {"aud": "another-client"},
        {"aud": [CLIENT_ID, "another"], "azp": "another"},
        {"iss": "https://another.example.com"},
        {"exp": 1},
        {"iat": now + 3600, "exp": now + 7200},
        {"auth_time": now + 3600},
        {"auth_time": -1},
        {"auth_time": 1e300},
        {"auth_time": "now"},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"aud": "another-client", "azp": CLIENT_ID},
    ]
    for claims in wrong:
        provider.person = right | claims
        answer = await _visit(service, provider)
        assert (claims, answer.status_code) == (claims, 403)
        assert _cookie(answer, login_cookie.NAME) is None
    assert await _sessions(service) == []


async def test_a_token_signed_by_another_key_is_refused(
    service: Service, provider: TestProvider
) -> None:
    await _log_in(service, provider)
    provider.key = type(provider.key).generate_key("P-256", {"kid": "1"})
    answer = await _visit(service, provider)
    assert answer.status_code == 403
    assert len(await _sessions(service)) == 1


@pytest.mark.filterwarnings("ignore:JWS algorithm .none.")
@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_a_token_without_a_key_of_the_provider_is_refused(
    service: Service, provider: TestProvider, algorithm: str
) -> None:
    """Unsigned, or signed with the client's secret, by a provider that lists both."""
    provider.metadata["id_token_signing_alg_values_supported"] = ["none", "HS256", "ES256"]
    provider.algorithm, provider.signs_with = algorithm, OctKey.import_key(CLIENT_SECRET)
    answer = await _visit(service, provider)
    assert answer.status_code == 403
    assert await _sessions(service) == []


async def test_a_key_of_an_unknown_type_is_passed_over(
    service: Service, provider: TestProvider
) -> None:
    provider.more_keys = [{"kty": "AKP", "kid": "2", "alg": "ML-DSA-44", "pub": "AA"}]
    await _log_in(service, provider)


async def test_an_answer_belongs_to_the_browser_that_asked(
    service: Service, provider: TestProvider
) -> None:
    url, pending = await _begin(service)
    _, another = await _begin(service)
    location = provider.visit(url)
    for kept in ("", another, "nonsense", "e30=", f"e30={pending[3:]}", f"{pending}x"):
        answer = await _come_back(service, location, kept)
        assert answer.status_code == 403
        assert "begun in another window" in answer.text
        assert _cookie(answer, login_cookie.NAME) is None
    for state in ("", "é", "\x00", "x" * 64):
        sent = str(httpx2.URL(location).copy_set_param("state", state))
        assert "begun in another window" in (await _come_back(service, sent, pending)).text
    # None of them used the code up, which works once.
    assert (await _come_back(service, location, pending)).status_code == 200
    assert (await _come_back(service, location, pending)).status_code == 403


async def test_of_two_tabs_the_later_login_counts(service: Service, provider: TestProvider) -> None:
    first, pending = await _begin(service)
    later, both = await _begin(service, "?next=/later", f"{login_cookie.PENDING}={pending}")
    assert (await _come_back(service, provider.visit(first), both)).status_code == 403
    answer = await _come_back(service, provider.visit(later), both)
    assert 'content="0; url=/later"' in answer.text


async def test_a_login_is_forgotten_after_ten_minutes(
    service: Service, provider: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pending = await _begin(service)
    now = time.time()
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: now + 602)
    answer = await _come_back(service, provider.visit(url), pending)
    assert "begun in another window" in answer.text


async def test_a_long_address_is_not_kept(service: Service, provider: TestProvider) -> None:
    answer = await _visit(service, provider, "?next=/" + "x" * 512)
    assert 'content="0; url=/tasks"' in answer.text


async def test_another_provider_s_answer_is_refused(
    service: Service, provider: TestProvider
) -> None:
    provider.metadata["authorization_response_iss_parameter_supported"] = True
    url, pending = await _begin(service)
    location = provider.visit(url)
    assert (await _come_back(service, location, pending)).status_code == 403
    mixed = f"{location}&iss=https://another.example.com"
    assert (await _come_back(service, mixed, pending)).status_code == 403
    named = f"{location}&iss={provider.issuer}"
    assert (await _come_back(service, named, pending)).status_code == 200


async def test_a_refusal_of_the_provider_is_a_page(
    service: Service, provider: TestProvider
) -> None:
    provider.refuses = "access_denied"
    answer = await _visit(service, provider, "?next=/keys")
    assert answer.status_code == 403
    assert "did not let you in" in answer.text
    assert "/login/oidc?next=/keys" in answer.text
    (entry,) = [
        entry
        for entry in (await service.services.audit.list(AuditQuery(action="login.failed"))).items
        if entry.action == "login.failed"
    ]
    assert (entry.credential.kind, entry.target) == ("none", None)


async def test_a_provider_whose_document_is_wrong_is_not_used(
    service: Service, provider: TestProvider
) -> None:
    wrong: list[dict[str, Any]] = [
        {"issuer": "https://another.example.com"},
        {"token_endpoint": None},
        {"authorization_endpoint": "ftp://127.0.0.1/authorize"},
    ]
    for provider.metadata in wrong:
        answer = await service.caller().get("/login/oidc")
        assert answer.status_code == 503
        assert "identity provider" in answer.text


async def test_the_last_document_serves_while_the_provider_is_away(
    service: Service, provider: TestProvider
) -> None:
    await _begin(service)
    provider.metadata = {"issuer": "https://another.example.com"}
    await _begin(service)


async def test_a_first_reading_that_fails_leaves_another_its_document(
    service: Service, provider: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, fails = asyncio.Event(), asyncio.Event()
    send = httpx2.AsyncHTTPTransport.handle_async_request

    async def fail_the_first(
        transport: httpx2.AsyncHTTPTransport, request: httpx2.Request
    ) -> httpx2.Response:
        if reached.is_set():
            return await send(transport, request)
        reached.set()
        await fails.wait()
        raise httpx2.ConnectError("refused")

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", fail_the_first)
    failing = asyncio.create_task(service.caller().get("/login/oidc"))
    await reached.wait()
    url, pending = await _begin(service)
    fails.set()
    assert (await failing).status_code == 503
    # The login goes on with the document that it has read.
    location = provider.visit(url)
    provider.metadata = {"issuer": "https://another.example.com"}
    assert (await _come_back(service, location, pending)).status_code == 200


async def test_a_provider_that_breaks_the_exchange_is_a_503(
    service: Service, provider: TestProvider
) -> None:
    provider.metadata = {"token_endpoint": "http://127.0.0.1:1/token"}
    answer = await _visit(service, provider)
    assert answer.status_code == 503
    assert await _sessions(service) == []


@pytest.mark.parametrize(
    ("method", "secret"), [("client_secret_post", "100%25 +ä:/€"), ("none", None)]
)
async def test_the_client_is_authenticated_as_the_provider_wants(
    template: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    provider: TestProvider,
    method: str,
    secret: str | None,
) -> None:
    provider.client_method = method
    settings["oidc_client_secret"] = secret
    provider.client_secret = secret or provider.client_secret
    async with running_service(template, tmp_path / "data", **settings) as service:
        await _log_in(service, provider)


async def test_both_halves_of_a_login_use_the_proxy(
    template: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    provider: TestProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running_proxy() as (proxy, passed):
        monkeypatch.setenv("http_proxy", proxy)
        async with running_service(template, tmp_path / "data", **settings) as service:
            await _log_in(service, provider)
    # Document and keys are read twice: by authlib for logins, and by the library for logout tokens.
    assert sorted(passed) == [
        f"GET {provider.issuer}/.well-known/openid-configuration",
        f"GET {provider.issuer}/.well-known/openid-configuration",
        f"GET {provider.issuer}/jwks",
        f"GET {provider.issuer}/jwks",
        f"POST {provider.issuer}/token",
    ]


async def test_both_halves_of_a_login_trust_the_certificates_of_the_environment(
    template: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tls, _ = certificate(tmp_path, "localhost")
    wait_for_a_busy_machine(monkeypatch)
    with running_provider(BASE_URL + CALLBACK, tls) as provider:
        settings["oidc_issuer"] = provider.issuer
        async with running_service(template, tmp_path / "distrusting", **settings) as service:
            assert (await service.caller().get("/login/oidc")).status_code == 503
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
        async with running_service(template, tmp_path / "trusting", **settings) as service:
            await _log_in(service, provider)


@pytest.mark.parametrize(
    ("name", "value"),
    [("SSL_CERT_FILE", "/nowhere.pem"), ("https_proxy", "socks5://127.0.0.1:1")],
)
async def test_an_environment_that_cannot_work_stops_the_start(
    template: Path,
    tmp_path: Path,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="check SSL_CERT_FILE and the variables"):
        async with running_service(template, tmp_path / "data", **settings):
            pass


async def test_the_age_of_a_login_is_that_at_the_provider(
    service: Service, provider: TestProvider
) -> None:
    at = int(time.time()) - 3600
    provider.auth_time = at
    provider.person["groups"] = ["tasks", "admins"]
    caller = service.caller(await _log_in(service, provider))
    (session,) = expect(await caller.get("/api/auth/sessions"), 200)["items"]
    authenticated, started, ends = (
        datetime.fromisoformat(session[name])
        for name in ("authenticated_at", "started_at", "expires_at")
    )
    assert int(authenticated.timestamp()) == at
    assert started - authenticated > timedelta(minutes=59)
    # A session lasts from its own beginning.
    assert ends - started > timedelta(minutes=59)
    body = {"username": "new", "role": "admin"}
    refused = await caller.post("/api/admin/users", body)
    assert problem(refused) == (401, "login_too_old")
    provider.auth_time = int(time.time())
    fresh = await _log_in(
        service,
        provider,
        "?fresh=1",
        f"{login_cookie.NAME}={caller.http.headers['authorization'][7:]}",
    )
    assert provider.asked[-1]["prompt"] == "login"
    assert provider.asked[-1]["max_age"] == "0"
    expect(await service.caller(fresh).post("/api/admin/users", body), 201)
    # It took the place of the other.
    assert problem(await caller.get("/api/auth/me")) == (401, "token_revoked")


async def test_a_login_that_replaces_a_session_waits_until_no_process_accepts_it(
    service: Service, provider: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []

    async def await_lease_expiry(_: object) -> None:
        ended.append(sum(row.ended_at is not None for row in await _sessions(service)))

    monkeypatch.setattr(AsyncAuthenticator, "await_lease_expiry", await_lease_expiry)
    first = await _log_in(service, provider)
    assert ended == []
    await _log_in(service, provider, "?fresh=1", f"{login_cookie.NAME}={first}")
    # The end of the session was committed before the wait, and the answer came after it.
    assert ended == [1]
    entries = (await service.services.audit.list(AuditQuery(action="login.succeeded"))).items
    (replaced,) = (row.id for row in await _sessions(service) if row.ended_at is not None)
    assert [entry.details for entry in entries] == [
        {"issuer": provider.issuer, "replaced": replaced},
        {"issuer": provider.issuer},
    ]


async def test_a_login_replaces_no_session_of_another_user(
    service: Service, provider: TestProvider
) -> None:
    first = await _log_in(service, provider)
    provider.person = {"sub": "1002", "groups": ["tasks"]}
    await _log_in(service, provider, "?fresh=1", f"{login_cookie.NAME}={first}")
    await service.caller(first).me()
    entries = (await service.services.audit.list(AuditQuery(action="login.succeeded"))).items
    assert [entry.details for entry in entries] == [{"issuer": provider.issuer}] * 2


async def test_all_requests_to_the_provider_share_one_tls_context(
    service: Service, provider: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    make = httpcore2.default_ssl_context

    def count(**options: Any) -> object:
        made.append(options)
        return make(**options)

    monkeypatch.setattr(httpcore2, "default_ssl_context", count)
    httpx2.AsyncClient()
    assert len(made) == 1, "a client that was given no context makes one"
    await _log_in(service, provider)
    assert len(made) == 1


async def test_a_login_of_unknown_age_counts_as_a_day_old(
    service: Service, provider: TestProvider
) -> None:
    provider.auth_time = None
    caller = service.caller(await _log_in(service, provider))
    (session,) = expect(await caller.get("/api/auth/sessions"), 200)["items"]
    authenticated, started = (
        datetime.fromisoformat(session[name]) for name in ("authenticated_at", "started_at")
    )
    assert started - authenticated >= timedelta(days=1)


async def test_the_session_at_the_provider_ends_as_well(
    service: Service, provider: TestProvider
) -> None:
    token = await _log_in(service, provider)
    answer = await _log_out(service, token)
    assert answer.status_code == 200
    address = _logout_address(answer)
    assert address.startswith(f"{provider.issuer}/logout?")
    asked = parse_qs(urlsplit(address).query)
    assert asked["post_logout_redirect_uri"] == [f"{BASE_URL}/login"]
    assert asked["client_id"] == [CLIENT_ID]
    assert asked["id_token_hint"][0].count(".") == 2
    assert _cookie(answer, login_cookie.NAME) == ""
    assert answer.headers["clear-site-data"] == '"cache"'
    assert problem(await service.caller(token).get("/api/auth/me")) == (401, "token_revoked")
    (session,) = await _sessions(service)
    assert session.id_token is None


async def test_a_person_in_two_hundred_groups_logs_in_and_out(
    service: Service, provider: TestProvider
) -> None:
    """The most that Entra puts into a token. What asks for the logout there fits into an address."""
    provider.person |= {"groups": [*(str(uuid4()) for _ in range(199)), "tasks"]}
    token = await _log_in(service, provider)
    answer = await _log_out(service, token)
    assert answer.status_code == 200
    url = _logout_address(answer)
    assert url.startswith(f"{provider.issuer}/logout?")
    assert parse_qs(urlsplit(url).query).keys() == {
        "client_id",
        "post_logout_redirect_uri",
        "state",
    }


async def test_without_an_address_to_log_out_the_session_here_ends(
    service: Service, provider: TestProvider
) -> None:
    provider.metadata["end_session_endpoint"] = None
    token = await _log_in(service, provider)
    answer = await _log_out(service, token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert problem(await service.caller(token).get("/api/auth/me")) == (401, "token_revoked")


async def test_while_the_provider_is_away_the_session_here_ends(
    service: Service, provider: TestProvider
) -> None:
    token = await _log_in(service, provider)
    at_provider = service.services.oidc
    assert at_provider is not None
    # As in a process that has just started.
    at_provider._client.server_metadata.clear()
    provider.metadata["issuer"] = "https://another.example.com"
    answer = await _log_out(service, token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


async def test_the_login_page_names_the_provider(service: Service) -> None:
    page = (await service.caller().get("/login?next=/keys")).text
    assert "Log in with Example &lt;ID&gt;" in page
    assert 'href="/login/oidc?next=/keys"' in page
    assert 'name="password"' in page


async def test_with_passwords_switched_off_the_provider_is_the_only_way(
    template: Path, tmp_path: Path, settings: dict[str, Any], provider: TestProvider
) -> None:
    settings["password_login"] = "off"
    async with running_service(template, tmp_path / "data", **settings) as service:
        stranger = service.caller()
        body = {"username": "ada", "password": ADMIN_PASSWORD}
        assert problem(await stranger.post("/api/auth/login", body)) == (403, "password_login_off")
        link = {"token": "x" * 43, "password": "a long enough password"}
        answer = await stranger.post("/api/auth/set-password", link)
        assert problem(answer) == (403, "password_login_off")
        assert await service.services.invitations.create_for_first_administrator() is None
        page = (await stranger.get("/login")).text
        assert 'name="password"' not in page
        assert "Log in with" in page
        provider.person["groups"] = ["tasks", "admins"]
        person = service.caller(await _log_in(service, provider))
        new = {"username": "new", "role": "user"}
        answer = await person.post("/api/admin/users", new)
        assert problem(answer) == (403, "password_login_off")
        change = {"current_password": "x", "new_password": "a long enough password"}
        answer = await person.post("/api/auth/change-password", change)
        assert problem(answer) == (403, "password_login_off")
        answer = await person.post("/api/auth/reauthenticate", {"password": "x"})
        assert problem(answer) == (403, "password_login_off")
        async with service.services.db.read() as connection:
            names = await connection.execute(select(schema.users.c.username))
            assert "new" not in names.scalars().all()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"OIDC_ISSUER": "http://login.example.com"}, "OIDC_ISSUER: write an address"),
        ({"OIDC_ISSUER": "https://login.example.com?x=1"}, "OIDC_ISSUER: write an address"),
        ({"OIDC_ISSUER": "https://login.example.com:https"}, "OIDC_ISSUER: write an address"),
        ({"OIDC_ISSUER": "https://login.example.com:70000"}, "OIDC_ISSUER: write an address"),
        ({"OIDC_ISSUER": "https://login.example.com "}, "OIDC_ISSUER: write an address"),
        ({"OIDC_ISSUER": "https://login.example.com"}, "OIDC_CLIENT_ID: set it"),
        ({"OIDC_ISSUER": "https://login.example.com", "OIDC_CLIENT_ID": "a"}, "OIDC_USERS: set it"),
        ({"OIDC_CLIENT_ID": "a"}, "OIDC_CLIENT_ID: set it together with TASK_SERVICE_OIDC_ISSUER"),
        ({"OIDC_USERS": "groups"}, "OIDC_USERS: write a claim"),
        ({"OIDC_ADMINISTRATORS": "=admins"}, "OIDC_ADMINISTRATORS: write a claim"),
        ({"PASSWORD_LOGIN": "off"}, "PASSWORD_LOGIN: no user could administer"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    variables: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TASK_SERVICE_{name}", value)
    with pytest.raises(ConfigurationError, match=f"TASK_SERVICE_{named}"):
        load_settings()


def test_the_secret_is_not_shown() -> None:
    settings = Settings(
        oidc_issuer="https://login.example.com",
        oidc_client_id="tasks",
        oidc_client_secret="very secret",
        oidc_users="*",
    )
    assert "very secret" not in repr(settings)


def test_a_rule_of_everybody_and_of_a_flag() -> None:
    assert ClaimRule.parse("*").applies_to({})
    flag = ClaimRule.parse("email_verified=true")
    assert flag.applies_to({"email_verified": True})
    assert flag.applies_to({"email_verified": "true"})
    assert not flag.applies_to({"email_verified": False})
    assert not flag.applies_to({})
    for wrong in ("*=x", "groups=", "=x", ""):
        with pytest.raises(ValueError, match="write a claim and its value"):
            ClaimRule.parse(wrong)
