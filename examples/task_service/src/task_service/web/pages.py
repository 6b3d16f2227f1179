"""The routes that people's browsers open. Everything else a page does goes through the JSON API.

What the pages need of the service comes in through :class:`PageSessions` and one callable, so they can be mounted on
anything that can log people in, and tested on a dozen lines.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from msk_auth import KeyLimits, PermissionDenied, Problem
from task_service.accounts.config import ServiceConfig
from task_service.errors import CrossOriginRefused
from task_service.origins import is_from_own_page

from . import PAGE_HEADERS, login_cookie
from .assets import Assets

_HERE = Path(__file__).parent
_FIRST_PAGE = "/tasks"
_DAY_SECONDS = 86_400
_PRESET_DAYS = (30, 90, 365)
_USUAL_DAYS = 90

# A path of this origin. A second slash or a backslash would make browsers read a host; they also drop control
# characters, so those could hide one.
_LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")

# No key can do what these stand for, so a new key is not offered them.
_NEVER_FOR_KEYS = ("admin:", "keys:")

# What the form of the configuration knows of each setting: title, default, limits, whether it can be empty.
_SETTINGS = ServiceConfig.model_json_schema()["properties"]

# Why somebody who may be logged in is asked to log in. The address carries the name, never the sentence.
_REASONS: Mapping[str, str] = {
    "session-ended": "Your session has ended. Log in to continue.",
    "password-set": "Your password was set. You can log in now.",
}


@dataclass(frozen=True, slots=True)
class LoginResult:
    """A login that succeeded.

    Attributes:
        token: The JWT for the login cookie.
        max_age: Seconds that the cookie lives.
    """

    token: str
    max_age: int


@dataclass(frozen=True, slots=True)
class PageUser:
    """Whoever looks at a page, as far as its frame shows it.

    Attributes:
        username: Shown in the menu.
        permissions: Decide which entries and buttons are offered; the API decides again what is allowed.
        roles: Shown in the menu.
    """

    username: str
    permissions: frozenset[str]
    roles: tuple[str, ...] = ()

    @property
    def initials(self) -> str:
        """One or two letters for the avatar."""
        words = [word for word in re.split(r"[\W_]+", self.username) if word]
        return ("".join(word[0] for word in words[:2]) or self.username[:1]).upper()


class PageSessions(Protocol):
    """What the pages need of the service's logins."""

    async def log_in(self, username: str, password: str, *, request: Request) -> LoginResult:
        """Check a password and begin a session.

        Raises:
            Problem: The login is refused (401), throttled (429) or cannot be decided (503).
        """
        ...

    async def log_out(self, request: Request) -> None:
        """End the session that the request's credential belongs to, if there is one."""
        ...

    async def current_user(self, request: Request) -> PageUser | None:
        """Who is logged in, or None when nobody is.

        Raises:
            Problem: It cannot be decided now (503).
        """
        ...


@dataclass(frozen=True, slots=True)
class _Page:
    """A page behind the login: the template decides everything that its address does not.

    Whoever lacks `permission` is told so instead of being shown a page on which nothing works.
    """

    path: str
    template: str
    permission: str | None = None


_PAGES = (
    _Page("/tasks", "tasks.html"),
    _Page("/tasks/{task_id}", "task.html"),
    _Page("/keys", "keys.html"),
    _Page("/account", "account.html"),
    _Page("/admin/config", "config.html", "admin:config"),
    _Page("/admin/users", "users.html", "admin:users"),
    _Page("/admin/audit", "audit.html", "admin:audit"),
    _Page("/admin/system", "system.html", "admin:config"),
)

_Endpoint = Callable[[Request], Awaitable[Response]]


def pages_router(
    sessions: PageSessions, *, key_limits: Callable[[], Awaitable[KeyLimits]]
) -> APIRouter:
    """Every page of the service, with its static files; none appears in the OpenAPI document.

    Args:
        sessions: Logs people in and out and knows who is logged in.
        key_limits: The limits for new API keys as they are now; the form for a new key offers nothing beyond them.
    """
    return _Pages(sessions, key_limits).router()


def local_path(target: str | None) -> str:
    """Where to go after logging in: `target` if it is a path of this origin and no log-in page, else the first page.

    An address that another site can choose must not lead away from this one (ASVS 5.0, 3.7.2).
    """
    if target is None or not _LOCAL_PATH.fullmatch(target):
        return _FIRST_PAGE
    return _FIRST_PAGE if urlsplit(target).path in {"/login", "/logout"} else target


def from_another_site(request: Request) -> bool:
    """True if the browser says that another site sent this request.

    A log-in carries no cookie that could be abused, but a foreign form could log its victim in as somebody else
    (login CSRF). Programs send neither header and are no browsers that could be misled. The scheme of the request is
    that of the base URL, by :class:`~task_service.middleware.LoginCookie`.
    """
    return is_from_own_page(request.headers.raw, request.url.scheme) is False


class _Pages:
    def __init__(
        self, sessions: PageSessions, key_limits: Callable[[], Awaitable[KeyLimits]]
    ) -> None:
        self._sessions = sessions
        self._key_limits = key_limits
        self._assets = Assets(_HERE / "static")
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def router(self) -> APIRouter:
        router = APIRouter(include_in_schema=False)

        def route(path: str, endpoint: _Endpoint, *methods: str) -> None:
            router.add_route(path, endpoint, methods=list(methods), include_in_schema=False)

        route("/", self._root, "GET")
        route("/login", self._told(self._login_form), "GET")
        route("/login", self._told(self._log_in), "POST")
        route("/logout", self._told(self._log_out), "POST")
        route("/set-password", self._set_password, "GET")
        for page in _PAGES:
            route(page.path, self._told(self._behind_login(page)), "GET")
        route(self._assets.route, self._assets.serve, "GET")
        # Browsers ask for it on their own when they show an answer that is no page.
        route("/favicon.ico", self._icon, "GET")
        return router

    def _render(
        self, template: str, context: Mapping[str, object], status: int = 200
    ) -> HTMLResponse:
        content = self._templates.get_template(template).render(assets=self._assets, **context)
        return HTMLResponse(content, status_code=status, headers=dict(PAGE_HEADERS))

    def _told(self, endpoint: _Endpoint) -> _Endpoint:
        """Answer a problem with a page in words instead of a JSON document."""

        async def told(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Problem as problem:
                response = self._render("problem.html", {"problem": problem}, problem.status)
                return _with_retry_after(response, problem)

        return told

    async def _root(self, request: Request) -> Response:
        return RedirectResponse(_FIRST_PAGE, HTTPStatus.SEE_OTHER)

    async def _icon(self, request: Request) -> Response:
        return RedirectResponse(self._assets.url("icon.svg"), HTTPStatus.SEE_OTHER)

    async def _login_form(self, request: Request) -> Response:
        reason = _REASONS.get(request.query_params.get("reason", ""))
        target = local_path(request.query_params.get("next"))
        if reason is None and await self._sessions.current_user(request) is not None:
            return RedirectResponse(target, HTTPStatus.SEE_OTHER)
        return self._login_page(target, reason=reason)

    def _login_page(
        self,
        target: str,
        *,
        reason: str | None = None,
        username: str = "",
        errors: Mapping[str, str] | None = None,
        problem: Problem | None = None,
        status: int = 200,
    ) -> HTMLResponse:
        context = {
            "target": target,
            "reason": reason,
            "username": username,
            "errors": {"username": "", "password": "", **(errors or {})},
            "problem": problem,
        }
        return self._render("login.html", context, status)

    async def _log_in(self, request: Request) -> Response:
        if from_another_site(request):
            raise CrossOriginRefused
        form = await request.form(max_files=0, max_fields=10)
        sent = {name: value for name, value in form.items() if isinstance(value, str)}
        target = local_path(sent.get("next"))
        username, password = sent.get("username", ""), sent.get("password", "")
        missing = {
            name: message
            for name, value, message in (
                ("username", username, "Enter your user name."),
                ("password", password, "Enter your password."),
            )
            if not value
        }
        if missing:
            return self._login_page(target, username=username, errors=missing, status=422)
        try:
            login = await self._sessions.log_in(username, password, request=request)
        except Problem as problem:
            response = self._login_page(
                target, username=username, problem=problem, status=problem.status
            )
            return _with_retry_after(response, problem)
        answer = RedirectResponse(
            target, HTTPStatus.SEE_OTHER, headers={"Cache-Control": "no-store"}
        )
        login_cookie.write(answer, login.token, max_age=login.max_age)
        return answer

    async def _log_out(self, request: Request) -> Response:
        if from_another_site(request):
            raise CrossOriginRefused
        await self._sessions.log_out(request)
        # Back must not show what the browser still holds of the pages.
        headers = {"Cache-Control": "no-store", "Clear-Site-Data": '"cache"'}
        answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER, headers=headers)
        login_cookie.clear(answer)
        return answer

    async def _set_password(self, request: Request) -> Response:
        return self._render("set-password.html", {})

    def _behind_login(self, page: _Page) -> _Endpoint:
        async def show(request: Request) -> Response:
            user = await self._sessions.current_user(request)
            if user is None:
                return self._to_login(request)
            if page.permission is not None and page.permission not in user.permissions:
                raise PermissionDenied([page.permission])
            context: dict[str, object] = {
                "user": user,
                "path": request.url.path,
                "params": request.path_params,
                "lifetimes": _lifetimes(await self._key_limits()),
                "never_for_keys": _NEVER_FOR_KEYS,
                "settings": _SETTINGS,
            }
            return self._render(page.template, context)

        return show

    def _to_login(self, request: Request) -> Response:
        # The browser keeps a SameSite=Strict cookie to itself when a link on another site leads here. A page of our
        # own that goes to the same address once more is not another site, so the cookie comes along the second time.
        if request.headers.get("sec-fetch-site") == "cross-site":
            return self._render("continue.html", {"target": _address(request)})
        query = urlencode({"next": _address(request)})
        return RedirectResponse(f"/login?{query}", HTTPStatus.SEE_OTHER)


def _address(request: Request) -> str:
    """The path and query of a request, as one local address."""
    query = request.url.query
    return local_path(f"{request.url.path}?{query}" if query else request.url.path)


def _lifetimes(limits: KeyLimits) -> dict[str, object]:
    """The lifetimes that the form for a new key offers, in days, and which of them is chosen at first."""
    longest, default = (
        None if limit is None else int(limit.total_seconds() // _DAY_SECONDS)
        for limit in (limits.max_lifetime, limits.default_lifetime)
    )
    presets = [days for days in _PRESET_DAYS if longest is None or days <= longest]
    if not presets and longest is not None:
        presets = [longest]
    usual = _USUAL_DAYS if _USUAL_DAYS in presets else presets[-1]
    chosen = usual if default is None else default
    return {"longest": longest, "offered": sorted({*presets, chosen}), "chosen": chosen}


def _with_retry_after(response: Response, problem: Problem) -> Response:
    if problem.retry_after is not None:
        response.headers["Retry-After"] = str(problem.retry_after)
    return response
