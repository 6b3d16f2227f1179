"""Logging in and out, the caller's own account and sessions."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict

from msk_auth import CredentialKind, Principal
from msk_auth.errors import TooManyAttempts
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service import login_cookie
from task_service.accounts.invitations import Invitations
from task_service.accounts.login import Login
from task_service.accounts.sessions import LoginSession, Sessions
from task_service.accounts.users import User
from task_service.db.paging import Page
from task_service.errors import LinkInvalid, LoginFailed, PasswordLoginOff, SessionNotFound

from .json_route import JsonBody, JsonRoute
from .openapi import Responses, path_id, problems

SessionId = Annotated[str, path_id("sessionId", "ses", "session")]


class Credentials(JsonBody):
    """The body of `POST /api/auth/login`."""

    username: str
    password: str


class PasswordLink(JsonBody):
    """The body of `POST /api/auth/password-link`: the one-time link's token, which no URL may contain."""

    token: str


class ChosenPassword(PasswordLink):
    """The body of `POST /api/auth/set-password`: the one-time link's token, and the chosen password."""

    password: str


class PasswordLinkUser(BaseModel):
    """The user whose password a one-time link sets."""

    username: str


class PasswordChange(JsonBody):
    """The body of `POST /api/auth/change-password`."""

    current_password: str
    new_password: str


class ConfirmedPassword(JsonBody):
    """The body of `POST /api/auth/reauthenticate`."""

    password: str


class LoginToken(BaseModel):
    """A login (RFC 6749, section 5.1)."""

    access_token: str
    token_type: Literal["Bearer"] = "Bearer"
    expires_in: int


class UserSummary(BaseModel):
    """The user or service account that a request acts for."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    username: str
    roles: list[str]
    service_account: bool


class PresentedCredential(BaseModel):
    """The credential that authenticated the request. `resources` limits a key; null means all of its owner's."""

    kind: CredentialKind
    key_id: str | None
    resources: list[str] | None
    authenticated_at: datetime | None


class Me(BaseModel):
    """The authenticated caller and the caller's permissions."""

    user: UserSummary
    permissions: list[str]
    credential: PresentedCredential


_IN_COOKIE: Final[Responses] = {204: {"description": "For a page: the new login is in its cookie."}}


def auth_router(
    auth: FastAPIAuth[User], login: Login, sessions: Sessions, invitations: Invitations
) -> APIRouter:
    """The routes under `/api/auth`."""
    router = APIRouter(prefix="/api/auth", tags=["Account"], route_class=JsonRoute)
    any_credential = auth.any_credential
    interactive = auth.require_interactive()

    @router.post("/login", responses=problems(LoginFailed, PasswordLoginOff, TooManyAttempts))
    async def log_in(credentials: Credentials) -> LoginToken:
        """Log in with a user name and a password."""
        logged_in = await login.log_in(credentials.username, credentials.password)
        return LoginToken(access_token=logged_in.token, expires_in=logged_in.expires_in)

    @router.post(
        "/reauthenticate",
        response_model=LoginToken,
        responses=_IN_COOKIE | problems(LoginFailed, PasswordLoginOff, TooManyAttempts),
    )
    async def reauthenticate(
        request: Request,
        principal: Annotated[Principal[User], interactive],
        confirmed: ConfirmedPassword,
    ) -> LoginToken | Response:
        """Confirm the password.

        A new, recent login replaces the login of this request.
        """
        logged_in = await login.reauthenticate(principal, confirmed.password)
        if not login_cookie.is_credential(request):
            return LoginToken(access_token=logged_in.token, expires_in=logged_in.expires_in)
        # A page's scripts must not read the token.
        response = Response(status_code=204)
        login_cookie.write(response, logged_in.token, max_age=logged_in.expires_in)
        return response

    @router.post("/logout", status_code=204)
    async def log_out(principal: Annotated[Principal[User], interactive]) -> None:
        """Log out: end the session of this request."""
        await sessions.end(principal.session_id or "", by=principal)

    @router.get("/me")
    async def get_me(principal: Annotated[Principal[User], any_credential]) -> Me:
        """Show the request's user, credential and permissions."""
        return Me(
            user=UserSummary.model_validate(principal.user),
            permissions=sorted(principal.permissions),
            credential=PresentedCredential(
                kind=principal.kind,
                key_id=principal.key_id,
                resources=None if principal.resources is None else sorted(principal.resources),
                authenticated_at=principal.authenticated_at,
            ),
        )

    @router.post("/password-link", responses=problems(LinkInvalid, PasswordLoginOff))
    async def check_password_link(link: PasswordLink) -> PasswordLinkUser:
        """Show the user whose password a valid one-time link sets."""
        return PasswordLinkUser(username=(await invitations.check(link.token)).username)

    @router.post(
        "/set-password", status_code=204, responses=problems(LinkInvalid, PasswordLoginOff)
    )
    async def set_password(chosen: ChosenPassword) -> None:
        """Set the password with a one-time link."""
        await invitations.redeem(chosen.token, chosen.password)

    @router.post(
        "/change-password",
        status_code=204,
        responses=problems(LoginFailed, PasswordLoginOff, TooManyAttempts),
    )
    async def change_password(
        principal: Annotated[Principal[User], interactive], change: PasswordChange
    ) -> None:
        """Change the password; all other sessions end."""
        await login.change_password(principal, change.current_password, change.new_password)

    @router.get("/sessions")
    async def list_sessions(
        principal: Annotated[Principal[User], interactive],
    ) -> Page[LoginSession]:
        """List your open sessions, the most recent login first."""
        found = await sessions.list_open(principal.owner.id, current=principal.session_id)
        return Page(items=list(found), next_cursor=None)

    @router.delete("/sessions", status_code=204)
    async def end_other_sessions(principal: Annotated[Principal[User], interactive]) -> None:
        """End all sessions except the one of this request."""
        await sessions.end_all(principal.owner.id, by=principal, keep=principal.session_id)

    @router.delete("/sessions/{sessionId}", status_code=204, responses=problems(SessionNotFound))
    async def end_session(
        principal: Annotated[Principal[User], interactive],
        session_id: SessionId,
    ) -> None:
        """End one of your sessions."""
        await sessions.end(session_id, by=principal)

    return router
