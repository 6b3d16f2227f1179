"""The routes of the pages. The pages' scripts use the JSON API."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from msk_auth import KeyLimits, Principal, require_interactive
from msk_auth.errors import (
    CredentialRefused,
    CredentialsMissing,
    Forbidden,
    InteractiveRequired,
    PermissionDenied,
    Problem,
    TooManyAttempts,
)
from msk_auth.integrations import is_same_origin
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service import login_cookie
from task_service.accounts.config import ServiceConfig
from task_service.accounts.login import Login
from task_service.accounts.roles import KEY_PERMISSIONS
from task_service.accounts.service_accounts import PERMISSIONS
from task_service.accounts.sessions import Sessions
from task_service.accounts.users import User
from task_service.errors import (
    LogoutRefused,
    ProviderLoginRefused,
    ProviderUnavailable,
    SessionNotFound,
)
from task_service.provider_login import CALLBACK, LOGOUT, OidcLogin

from . import CONTENT_SECURITY_POLICY, PAGE_HEADERS, REFERENCE_POLICY
from .assets import Assets

_HERE = Path(__file__).parent
_RENDERER = "swagger-ui-5.35.0/swagger-ui"
_FIRST_PAGE = "/tasks"
_PRESET_DAYS = (30, 90, 365)
_USUAL_DAYS = 90

# A path of this origin. After a second slash or a backslash browsers read a host, and they drop control characters, which
# could hide a slash. Bounded, because a cookie keeps the path while a person logs in.
_LOCAL_PATH = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]{0,511}")

# Choices for the permissions of a new key, the narrowest first. The usual choice only runs existing tasks.
_KEY_PRESETS = (
    ("Read only", "See tasks, runs and output", ("tasks:read",)),
    ("Run tasks", "Also start and cancel runs", ("tasks:read", "tasks:run")),
    (
        "Manage tasks",
        "Also create, change and delete tasks",
        ("tasks:read", "tasks:run", "tasks:write"),
    ),
)
_USUAL_PRESET = "Run tasks"

# The form of the configuration needs each setting's title, default, limits, and whether it can be empty.
_SETTINGS = ServiceConfig.model_json_schema()["properties"]

# Why a page redirected to the login. The URL carries the name of the reason, never the text.
_REASONS: Mapping[str, str] = {
    "session-ended": "Your session has ended. Log in to continue.",
    "password-set": "Your password was set. You can log in now.",
}


@dataclass(frozen=True, slots=True)
class _Page:
    """A page that needs a login, and perhaps a permission; without the permission the answer is 403."""

    path: str
    template: str
    permission: str | None = None
    policy: str = CONTENT_SECURITY_POLICY


_PAGES = (
    _Page("/tasks", "tasks.html"),
    _Page("/tasks/{task_id}", "task.html"),
    _Page("/runs", "runs.html"),
    _Page("/keys", "keys.html"),
    _Page("/keys/{key_id}", "key.html"),
    _Page("/account", "account.html"),
    _Page("/docs", "api.html"),
    # The renderer is half a megabyte, so it has its own page.
    _Page("/docs/operations", "operations.html", policy=REFERENCE_POLICY),
    _Page("/admin/config", "config.html", "admin:config"),
    _Page("/admin/users", "users.html", "admin:users"),
    _Page("/admin/service-accounts", "service-accounts.html", "admin:users"),
    _Page("/admin/service-accounts/{account_id}", "service-account.html", "admin:users"),
    _Page("/admin/service-accounts/{account_id}/keys/{key_id}", "key.html", "admin:keys"),
    _Page("/admin/keys", "all-keys.html", "admin:keys"),
    _Page("/admin/keys/{key_id}", "key.html", "admin:keys"),
    _Page("/admin/audit", "audit.html", "admin:audit"),
    _Page("/admin/system", "system.html", "admin:config"),
)

_Endpoint = Callable[[Request], Awaitable[Response]]


def local_path(target: str | None) -> str:
    """The path to open after login: `target` if it is a path of this origin and not a login page, else the first page.

    Another site can choose the target, so the path must not leave this origin (ASVS 5.0, 3.7.2).
    """
    if target is None or not _LOCAL_PATH.fullmatch(target):
        return _FIRST_PAGE
    path = urlsplit(target).path
    return _FIRST_PAGE if path == "/logout" or f"{path}/".startswith("/login/") else target


def from_another_site(request: Request) -> bool:
    """True if the browser declares that another site sent this request.

    A login request needs no cookie, but a form of another site could log its victim in to another account (login CSRF).
    Programs send neither header, and are admitted. The scheme of the request is that of the base URL, set by
    :class:`~task_service.login_cookie.LoginCookie`.
    """
    return is_same_origin(request.headers.raw, request.url.scheme) is False


def wants_page(request: Request) -> bool:
    """True if a browser opens an address outside of the API."""
    return not request.url.path.startswith("/api/") and "text/html" in request.headers.get(
        "accept", ""
    )


class Pages:
    """Every page of the service.

    Args:
        auth: Authenticates requests.
        login: Starts sessions.
        sessions: Ends sessions.
        key_limits: The present limits for new API keys; the form for a new key stays within them.
        oidc: Logs people in at the identity provider, if there is one.
    """

    def __init__(
        self,
        auth: FastAPIAuth[User],
        login: Login,
        sessions: Sessions,
        *,
        key_limits: Callable[[], Awaitable[KeyLimits]],
        oidc: OidcLogin | None = None,
    ) -> None:
        self._auth = auth
        self._login = login
        self._sessions = sessions
        self._oidc = oidc
        self._key_limits = key_limits
        self._assets = Assets(_HERE / "static", "/static")
        self._vendor = Assets(_HERE / "vendor", "/vendor")
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["initials"] = initials
        shared: dict[str, Any] = self._templates.globals
        shared["provider"] = None if oidc is None else oidc.name
        shared["passwords_on"] = login.passwords_on
        shared["assets"] = self._assets
        shared["vendor"] = self._vendor
        shared["renderer"] = _RENDERER

    def router(self) -> APIRouter:
        """The routes of the pages and their static files, without entries in the OpenAPI document."""
        router = APIRouter(include_in_schema=False)

        def route(path: str, endpoint: _Endpoint, method: str = "GET") -> None:
            router.add_route(path, endpoint, methods=[method], include_in_schema=False)

        def page(path: str, endpoint: _Endpoint, method: str = "GET") -> None:
            async def or_problem_page(request: Request) -> Response:
                try:
                    return await endpoint(request)
                except Problem as problem:
                    return await self.problem_page(request, problem)

            route(path, or_problem_page, method)

        route("/", self._root)
        page("/login", self._login_form)
        page("/login", self._log_in, "POST")
        if self._oidc is not None:
            page("/login/oidc", partial(self._go_to_provider, self._oidc))
            page(CALLBACK, partial(self._come_from_provider, self._oidc))
            # The provider itself sends this request, and reads no page.
            route(LOGOUT, partial(self._log_out_at_provider, self._oidc), "POST")
        page("/logout", self._log_out, "POST")
        route("/set-password", self._set_password)
        for each in _PAGES:
            page(each.path, partial(self._behind_login, each))
        for assets in (self._assets, self._vendor):
            route(assets.route, assets.serve)
        # Browsers request the icon when they show a response that is not a page.
        route("/favicon.ico", self._icon)
        return router

    def _render(
        self, template: str, *, problem: Problem | None = None, **context: object
    ) -> HTMLResponse:
        content = self._templates.get_template(template).render(problem=problem, **context)
        answer = HTMLResponse(content, headers=dict(PAGE_HEADERS))
        if problem is not None:
            answer.status_code = problem.status
            if problem.retry_after is not None:
                answer.headers["Retry-After"] = str(problem.retry_after)
        return answer

    async def principal(self, request: Request) -> Principal[User] | None:
        """The logged-in principal; None without a login.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        try:
            return await self._auth.admit(request, require_interactive())
        except (CredentialsMissing, CredentialRefused, InteractiveRequired):
            return None

    async def problem_page(self, request: Request, problem: Problem) -> Response:
        """A problem as a page, with the navigation if the request has a login."""
        try:
            principal = await self.principal(request)
        except Problem:
            principal = None
        path = request.url.path
        return self._render("problem.html", problem=problem, principal=principal, path=path)

    async def _root(self, request: Request) -> Response:
        return RedirectResponse(_FIRST_PAGE, HTTPStatus.SEE_OTHER)

    async def _icon(self, request: Request) -> Response:
        return RedirectResponse(self._assets.url("icon.svg"), HTTPStatus.SEE_OTHER)

    async def _login_form(self, request: Request) -> Response:
        reason = _REASONS.get(request.query_params.get("reason", ""))
        target = local_path(request.query_params.get("next"))
        if reason is None and await self.principal(request) is not None:
            return RedirectResponse(target, HTTPStatus.SEE_OTHER)
        return self._render("login.html", target=target, reason=reason, username="")

    async def _go_to_provider(self, oidc: OidcLogin, request: Request) -> Response:
        principal = await self.principal(request)
        answer = await oidc.begin(
            request,
            local_path(request.query_params.get("next")),
            replaces=None if principal is None else principal.session_id,
            fresh="fresh" in request.query_params,
        )
        answer.headers["cache-control"] = "no-store"
        return answer

    async def _come_from_provider(self, oidc: OidcLogin, request: Request) -> Response:
        target = local_path(request.session.get("target"))
        try:
            login = await oidc.finish(request)
        except (ProviderLoginRefused, ProviderUnavailable, TooManyAttempts) as problem:
            return self._render(
                "login.html", problem=problem, target=target, reason=None, username=""
            )
        # The service's own page: after a redirect from another site browsers send no SameSite=Strict cookie.
        answer = self._render("continue.html", target=target)
        login_cookie.write(answer, login.token, max_age=login.expires_in)
        return answer

    async def _log_out_at_provider(self, oidc: OidcLogin, request: Request) -> Response:
        form = await request.form(max_files=0, max_fields=10)
        sent = form.getlist("logout_token")
        if len(sent) != 1 or not isinstance(sent[0], str):
            raise LogoutRefused
        await oidc.log_out(sent[0])
        return Response(headers={"Cache-Control": "no-store"})

    async def _log_in(self, request: Request) -> Response:
        if from_another_site(request):
            raise Forbidden("cross_origin_refused")
        form = await request.form(max_files=0, max_fields=10)
        sent = {name: value for name, value in form.items() if isinstance(value, str)}
        target = local_path(sent.get("next"))
        username, password = sent.get("username", ""), sent.get("password", "")
        try:
            login = await self._login.log_in(username, password)
        except Problem as problem:
            return self._render(
                "login.html", problem=problem, target=target, reason=None, username=username
            )
        answer = RedirectResponse(
            target, HTTPStatus.SEE_OTHER, headers={"Cache-Control": "no-store"}
        )
        login_cookie.write(answer, login.token, max_age=login.expires_in)
        return answer

    async def _log_out(self, request: Request) -> Response:
        if from_another_site(request):
            raise Forbidden("cross_origin_refused")
        provider = await self._end_session(await self.principal(request))
        # Otherwise Back would show cached pages.
        headers = {"Cache-Control": "no-store", "Clear-Site-Data": '"cache"'}
        answer: Response = RedirectResponse("/login", HTTPStatus.SEE_OTHER, headers=headers)
        if provider is not None:
            # The policy of the form's page allows no redirect to another site.
            answer = self._render("continue.html", target=provider)
            answer.headers.update(headers)
        login_cookie.clear(answer)
        return answer

    async def _end_session(self, principal: Principal[User] | None) -> str | None:
        """End the session of a login; returns the logout address at the identity provider, if it began there."""
        if principal is None or principal.session_id is None:
            return None
        id_token = await self._sessions.find_id_token(principal.session_id)
        with suppress(SessionNotFound):
            await self._sessions.end(principal.session_id, by=principal)
        if self._oidc is None or id_token is None:
            return None
        return await self._oidc.logout_url(id_token)

    async def _set_password(self, request: Request) -> Response:
        return self._render("set-password.html")

    async def _behind_login(self, page: _Page, request: Request) -> Response:
        principal = await self.principal(request)
        if principal is None:
            return self._to_login(request)
        if page.permission is not None and page.permission not in principal.permissions:
            raise PermissionDenied([page.permission])
        # On the pages of a service account's keys the account's permissions count.
        account = request.path_params.get("account_id")
        permissions = principal.permissions if account is None else PERMISSIONS
        answer = self._render(
            page.template,
            principal=principal,
            path=request.url.path,
            params=request.path_params,
            account=account,
            lifetimes=_lifetimes(await self._key_limits()),
            key_permissions=[
                (name, words) for name, words in KEY_PERMISSIONS.items() if name in permissions
            ],
            key_presets=[preset for preset in _KEY_PRESETS if permissions.issuperset(preset[2])],
            usual_preset=_USUAL_PRESET,
            settings=_SETTINGS,
        )
        answer.headers["content-security-policy"] = page.policy
        return answer

    def _to_login(self, request: Request) -> Response:
        # The browser sends no SameSite=Strict cookie for a link on another site. This page loads the same address again,
        # and the browser sends the cookie with that request.
        if request.headers.get("sec-fetch-site") == "cross-site":
            return self._render("continue.html", target=_address(request))
        query = urlencode({"next": _address(request)})
        return RedirectResponse(f"/login?{query}", HTTPStatus.SEE_OTHER)


def _address(request: Request) -> str:
    """The path and query of a request, as one local address."""
    query = request.url.query
    return local_path(f"{request.url.path}?{query}" if query else request.url.path)


def _lifetimes(limits: KeyLimits) -> dict[str, object]:
    """The lifetimes in the form for a new key, in days, and the one selected at first."""
    longest, default = (
        None if limit is None else limit.days
        for limit in (limits.max_lifetime, limits.default_lifetime)
    )
    presets = [days for days in _PRESET_DAYS if longest is None or days <= longest]
    if not presets and longest is not None:
        presets = [longest]
    usual = _USUAL_DAYS if _USUAL_DAYS in presets else presets[-1]
    chosen = usual if default is None else default
    return {"longest": longest, "offered": sorted({*presets, chosen}), "chosen": chosen}


def initials(username: str) -> str:
    """One or two letters for the avatar."""
    words = [word for word in re.split(r"[\W_]+", username) if word]
    return ("".join(word[0] for word in words[:2]) or username[:1]).upper()
