"""The page routes over a double that knows one user: where they lead, what they refuse, what they are sent with."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from html import unescape
from pathlib import Path
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import pytest
from examples.task_service.tests.accounts_support import START
from fastapi import FastAPI
from starlette.requests import Request
from starlette.testclient import TestClient

from msk_auth import CredentialKind, KeyLimits, Principal
from msk_auth.errors import Problem, StoreUnavailable, TooManyAttempts
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service import login_cookie, web
from task_service.accounts.config import ServiceConfig
from task_service.accounts.login import Login
from task_service.accounts.roles import ADMIN, KEY_PERMISSIONS, ROLE_PERMISSIONS
from task_service.accounts.sessions import LoggedIn, Sessions
from task_service.accounts.users import User
from task_service.errors import LoginFailed
from task_service.web import CONTENT_SECURITY_POLICY, REFERENCE_POLICY
from task_service.web.pages import Pages, initials, local_path

USER_PERMISSIONS = frozenset({"keys:manage", "tasks:read", "tasks:run", "tasks:write"})
TOKEN = "eyJh.eyJz.c2ln"
ADMIN_PAGES = {
    "/admin/config": "admin:config",
    "/admin/users": "admin:users",
    "/admin/keys": "admin:keys",
    "/admin/audit": "admin:audit",
    "/admin/system": "admin:config",
}
PAGES = [
    "/tasks",
    "/tasks/tsk_0123456789abcdef",
    "/runs",
    "/keys",
    "/keys/0123456789ab",
    "/account",
    "/docs",
    "/docs/operations",
    *ADMIN_PAGES,
]
OWN_PAGE = {"sec-fetch-site": "same-origin"}


class FakePages(Pages):
    """One user, `ada`, whose password is `right`."""

    def __init__(self, key_limits: Callable[[], Awaitable[KeyLimits]]) -> None:
        self.reset()
        login = mock.Mock(Login, passwords_on=True, log_in=self.log_in)
        super().__init__(mock.Mock(FastAPIAuth), login, self._sessions(), key_limits=key_limits)

    def reset(self) -> None:
        """As they were before the first request."""
        self.failing: Problem | None = None
        self.logged_in: set[str] = set()
        self.knows("ada", USER_PERMISSIONS | {*ADMIN_PAGES.values()})

    def knows(self, username: str, permissions: frozenset[str]) -> None:
        """The user from now on."""
        user = User("usr_1", username, ("admin",), False, START, None, True)
        kind = CredentialKind.INTERACTIVE
        self.known = Principal(user.to_owner(), kind, permissions, START, session_id="ses_1")

    async def log_in(self, username: str, password: str) -> LoggedIn:
        if self.failing is not None:
            raise self.failing
        if (username, password) != ("ada", "right"):
            raise LoginFailed
        self.logged_in.add(TOKEN)
        return LoggedIn(TOKEN, 3600, self.known.user, "ses_1")

    async def principal(self, request: Request) -> Principal[User] | None:
        if self.failing is not None:
            raise self.failing
        token = login_cookie.read(request.scope["headers"])
        return self.known if token in self.logged_in else None

    def _sessions(self) -> Sessions:
        async def end(session_id: str, *, by: Principal[User]) -> None:
            assert (session_id, by) == ("ses_1", self.known)
            self.logged_in.clear()

        return mock.Mock(Sessions, end=end)


class World:
    """The pages, mounted on nothing else."""

    def __init__(self) -> None:
        self.limits = KeyLimits()
        app = FastAPI(docs_url=None)
        self.pages = FakePages(self._key_limits)
        app.include_router(self.pages.router())
        self.app = app
        self.client = TestClient(app, base_url="https://tasks.example", follow_redirects=False)

    async def _key_limits(self) -> KeyLimits:
        return self.limits

    def log_in(self) -> None:
        answer = self.client.post("/login", data={"username": "ada", "password": "right"})
        assert answer.status_code == 303


@pytest.fixture(scope="module")
def mounted() -> World:
    """Mounted once: to read the templates takes longer than most tests."""
    return World()


@pytest.fixture
def world(mounted: World) -> World:
    mounted.pages.reset()
    mounted.limits = KeyLimits()
    mounted.client.cookies.clear()
    return mounted


def test_the_first_page_is_the_tasks(world: World) -> None:
    answer = world.client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/tasks")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_without_a_login_leads_to_the_login_and_back(world: World, path: str) -> None:
    # A link on another site comes without the strict cookie: our own page asks again.
    strange = world.client.get(path, headers={"sec-fetch-site": "cross-site"})
    assert strange.status_code == 200
    assert f'<meta http-equiv="refresh" content="0; url={path}">' in strange.text
    answer = world.client.get(f"{path}?a=1&b=ü", headers=OWN_PAGE)
    location = urlsplit(answer.headers["location"])
    assert (answer.status_code, location.path) == (303, "/login")
    assert parse_qs(location.query) == {"next": [f"{path}?a=1&b=%C3%BC"]}
    form = world.client.get(answer.headers["location"])
    assert f'name="next" value="{path}?a=1&amp;b=%C3%BC"' in form.text


@pytest.mark.parametrize("path", ["/login", "/set-password", *PAGES])
def test_every_page_has_the_policy_is_kept_nowhere_and_explains_an_outage(
    world: World, path: str
) -> None:
    if path in PAGES:
        world.log_in()
    answer = world.client.get(path)
    assert answer.status_code == 200
    policy = REFERENCE_POLICY if path == "/docs/operations" else CONTENT_SECURITY_POLICY
    assert answer.headers["content-security-policy"] == policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    # A form posts the login itself, so that its page needs no JavaScript.
    without = re.findall(r"<noscript>(.*)</noscript>", answer.text)
    assert len(without) == (path != "/login")
    assert all("This page needs JavaScript" in each for each in without)
    if path != "/set-password":
        world.pages.failing = StoreUnavailable()
        away = world.client.get(path)
        assert (away.status_code, away.headers["retry-after"]) == (503, "5")
        assert away.headers["content-type"].startswith("text/html")
        assert "temporarily unavailable" in away.text


def test_the_policy_lets_nothing_inline_nothing_foreign_and_no_frame() -> None:
    directives = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert directives["default-src"] == "'none'"
    assert directives["frame-ancestors"] == "'none'"
    assert directives["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert set(directives.values()) == {"'none'", "'self'", "'script'"}


def test_the_policy_of_the_reference_lets_nothing_inline_and_nothing_foreign_either() -> None:
    directives = dict(part.split(" ", 1) for part in REFERENCE_POLICY.split("; "))
    assert "unsafe" not in REFERENCE_POLICY
    assert (
        directives["script-src"] == directives["style-src"] == directives["connect-src"] == "'self'"
    )
    assert set(directives.values()) == {"'none'", "'self'", "'self' data:"}


def test_the_renderer_of_the_reference_is_served_as_it_was_published(world: World) -> None:
    world.log_in()
    paths = re.findall(r'"(/vendor/[^"]+)"', world.client.get("/docs/operations").text)
    assert [path.rpartition("/")[2] for path in paths] == [
        "swagger-ui.css",
        "swagger-ui-bundle.js",
    ]
    folder = Path(web.__file__).parent / "vendor"
    for path in paths:
        answer = world.client.get(path)
        file = folder / path.split("/", 3)[3]
        assert answer.content == file.read_bytes()
        assert answer.headers["cache-control"].endswith("immutable")
        assert (file.parent / "LICENSE").read_text("utf-8").strip().startswith("Apache License")
    # It is half a megabyte: loaded when it is asked for.
    assert "/vendor/" not in world.client.get("/docs").text


def test_logging_in_sets_the_cookie_and_goes_on(world: World) -> None:
    answer = world.client.post(
        "/login", data={"username": "ada", "password": "right", "next": "/keys?status=active"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/keys?status=active")
    assert answer.headers["set-cookie"].startswith(f"__Host-task_session={TOKEN}; ")
    assert world.client.get("/keys").status_code == 200


@pytest.mark.parametrize(
    ("failing", "status", "retry_after", "words"),
    [
        (None, 401, None, "The user name or the password is wrong."),
        (TooManyAttempts(30), 429, "30", "Try again in 30 seconds."),
        (StoreUnavailable(), 503, "5", "Try again in a few seconds."),
    ],
)
def test_a_failed_login_is_explained_beside_the_form(
    world: World, failing: Problem | None, status: int, retry_after: str | None, words: str
) -> None:
    world.pages.failing = failing
    answer = world.client.post(
        "/login", data={"username": "ada", "password": "wr<o>ng", "next": "/keys"}
    )
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == retry_after
    assert "set-cookie" not in answer.headers
    page = unescape(answer.text)
    assert words in page
    assert 'value="ada"' in page
    assert 'name="next" value="/keys"' in page
    assert "wr<o>ng" not in page


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b'{"username": "ada", "password": "right"}', "application/json"),
        (b"username=ada&password=right", "text/plain"),
        (b"\xff\xfe=%ZZ&&&", "application/x-www-form-urlencoded"),
    ],
)
def test_a_login_that_is_no_form_fails(world: World, content: bytes, content_type: str) -> None:
    answer = world.client.post("/login", content=content, headers={"content-type": content_type})
    assert answer.status_code == 401


def test_a_user_name_is_shown_as_text(world: World) -> None:
    answer = world.client.post(
        "/login", data={"username": '"><script>alert(1)</script>', "password": "x"}
    )
    assert "<script>alert" not in answer.text
    world.log_in()
    world.pages.knows("<b>ada</b>", USER_PERMISSIONS)
    assert "<b>ada</b>" not in world.client.get("/tasks").text
    assert "&lt;b&gt;ada&lt;/b&gt;" in world.client.get("/tasks").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://tasks.example"}, 403),
        # Our own form, and a program.
        (OWN_PAGE, 303),
        ({"sec-fetch-site": "none"}, 303),
        ({"origin": "https://tasks.example"}, 303),
        ({}, 303),
    ],
)
def test_another_site_can_neither_log_its_visitor_in_nor_out(
    world: World, headers: dict[str, str], status: int
) -> None:
    world.log_in()
    form = {"username": "ada", "password": "right"}
    for path in ("/login", "/logout"):
        answer = world.client.post(path, data=form, headers=headers)
        assert answer.status_code == status, path
        if status == 403:
            assert "set-cookie" not in answer.headers
            assert world.pages.logged_in == {TOKEN}


def test_logging_out_ends_the_session_and_leaves_nothing(world: World) -> None:
    world.log_in()
    answer = world.client.post("/logout", headers=OWN_PAGE)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert answer.headers["clear-site-data"] == '"cache"'
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert world.pages.logged_in == set()
    assert world.client.get("/logout").status_code == 405


def test_a_logged_in_user_sees_the_login_form_only_with_a_reason(world: World) -> None:
    world.log_in()
    answer = world.client.get("/login?next=/keys")
    assert (answer.status_code, answer.headers["location"]) == (303, "/keys")
    again = world.client.get("/login?next=/keys&reason=session-ended")
    assert again.status_code == 200
    assert "Your session has ended." in again.text
    # The address names the reason and never writes it.
    world.client.cookies.clear()
    assert "hacked" not in world.client.get("/login?reason=hacked").text


@pytest.mark.parametrize("target", ["/keys", "/tasks/tsk_1?run=run_2", "/", "/a//b", "/%2F/x"])
def test_a_path_of_this_origin_is_gone_to(target: str) -> None:
    assert local_path(target) == target


@pytest.mark.parametrize(
    "target",
    [
        None,
        "",
        "keys",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\/evil.example",
        "https://evil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/\n/evil.example",
        "/a\\b",
        " /keys",
        "/keys\r\nset-cookie: a=b",
        "/login",
        "/login?next=/login",
        "/logout",
    ],
)
def test_no_other_target_is_gone_to(target: str | None) -> None:
    assert local_path(target) == "/tasks"


def test_a_task_id_in_the_address_is_only_text(world: World) -> None:
    world.log_in()
    answer = world.client.get("/tasks/%22%3E%3Cscript%3Ealert(1)%3C")
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize(
    ("path", "permission", "control"),
    [
        ("/tasks", "tasks:write", 'id="new"'),
        ("/keys", "keys:manage", 'id="new"'),
        ("/keys/0123456789ab", "keys:manage", 'id="revoke"'),
        ("/tasks/tsk_1", "tasks:run", 'id="run"'),
        ("/tasks/tsk_1", "tasks:write", 'id="edit"'),
    ],
)
def test_a_button_is_shown_only_with_its_permission(
    world: World, path: str, permission: str, control: str
) -> None:
    world.log_in()
    assert control in world.client.get(path).text
    world.pages.knows("ada", USER_PERMISSIONS - {permission})
    assert control not in world.client.get(path).text


@pytest.mark.parametrize(("path", "permission"), ADMIN_PAGES.items())
def test_a_page_of_administration_needs_its_permission(
    world: World, path: str, permission: str
) -> None:
    world.log_in()
    entry = f'<a href="{path}"'
    assert entry in world.client.get("/tasks").text
    world.pages.knows("ada", USER_PERMISSIONS)
    assert entry not in world.client.get("/tasks").text
    refused = world.client.get(path)
    assert refused.status_code == 403
    assert f"needs the permission {permission}" in refused.text


def test_the_form_of_the_configuration_has_every_setting(world: World) -> None:
    world.log_in()
    page = world.client.get("/admin/config").text
    names = set(re.findall(r'<(?:input|textarea) id="\w+" name="(\w+)"', page))
    assert names == ServiceConfig.model_fields.keys()
    keys = page.split('id="max_keys_per_user"')[1].split(">")[0]
    assert 'min="1" max="100000"' in keys
    assert "required" in keys
    assert "required" not in page.split('id="max_key_lifetime_days"')[1].split(">")[0]
    assert "Default: 100." in page
    assert "Default: none." in page
    assert "Default: echo." in page


def test_a_key_is_offered_only_what_a_key_can_do(world: World) -> None:
    world.log_in()
    world.pages.knows("ada", USER_PERMISSIONS | {"admin:config", "tasks:read_all"})
    page = world.client.get("/keys").text
    assert 'name="scope" value="tasks:read_all"' in page
    assert 'value="admin:config"' not in page
    assert 'value="keys:manage"' not in page


def test_the_permissions_of_keys_have_words_and_presets_that_the_user_can_give(
    world: World,
) -> None:
    never = {name for name in ROLE_PERMISSIONS[ADMIN] if name.startswith(("admin:", "keys:"))}
    assert set(KEY_PERMISSIONS) == ROLE_PERMISSIONS[ADMIN] - never
    world.log_in()
    world.pages.knows("ada", USER_PERMISSIONS)
    presets = re.findall(r'name="reach" value="([^"]+)"( checked)?', world.client.get("/keys").text)
    assert presets == [
        ("tasks:read", ""),
        ("tasks:read tasks:run", " checked"),
        ("tasks:read tasks:run tasks:write", ""),
        ("some", ""),
        ("all", ""),
    ]
    world.pages.knows("ada", frozenset({"keys:manage", "tasks:read"}))
    presets = re.findall(r'name="reach" value="([^"]+)"', world.client.get("/keys").text)
    assert presets == ["tasks:read", "some", "all"]


@pytest.mark.parametrize(
    ("longest", "default", "offered", "selected"),
    [
        (None, None, ["30", "90", "365", "custom", "never"], "90"),
        (None, 7, ["7", "30", "90", "365", "custom", "never"], "7"),
        (None, 90, ["30", "90", "365", "custom", "never"], "90"),
        (100, None, ["30", "90", "custom"], "90"),
        (60, None, ["30", "custom"], "30"),
        (60, 14, ["14", "30", "custom"], "14"),
        (10, None, ["10", "custom"], "10"),
    ],
)
def test_the_lifetimes_offered_keep_to_the_limits(
    world: World, longest: int | None, default: int | None, offered: list[str], selected: str
) -> None:
    world.limits = KeyLimits(
        max_lifetime=None if longest is None else timedelta(days=longest),
        default_lifetime=None if default is None else timedelta(days=default),
    )
    world.log_in()
    page = world.client.get("/keys").text
    select = page.split('<select id="key-lifetime"')[1].split("</select>")[0]
    options = [part.split('"', 1)[0] for part in select.split('<option value="')[1:]]
    chosen = [
        part.split('"', 1)[0] for part in select.split('<option value="') if " selected>" in part
    ]
    assert options == offered
    assert chosen == [selected]
    assert (f"at most {longest} days" in page) == (longest is not None)


def test_browsers_find_an_icon(world: World) -> None:
    answer = world.client.get("/favicon.ico")
    assert answer.status_code == 303
    assert world.client.get(answer.headers["location"]).headers["content-type"] == "image/svg+xml"


def test_the_pages_are_no_part_of_the_api_document(world: World) -> None:
    assert world.app.openapi()["paths"] == {}


@pytest.mark.parametrize(
    ("username", "shown"),
    [("ada", "A"), ("ada.lovelace", "AL"), ("a-b-c", "AB"), ("…", "…"), ("émile", "É")],
)
def test_the_avatar_shows_initials(username: str, shown: str) -> None:
    assert initials(username) == shown
