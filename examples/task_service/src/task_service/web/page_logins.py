"""The logins of :mod:`task_service.accounts`, as the pages need them."""

from __future__ import annotations

from starlette.requests import Request

from msk_auth import (
    CredentialRefused,
    CredentialsMissing,
    InteractiveRequired,
    require_interactive,
)
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.login import Login
from task_service.accounts.users import User
from task_service.errors import SessionNotFound
from task_service.request_record import request_address

from .pages import LoginResult, PageUser


class PageLogins:
    """What the pages ask of logins.

    Args:
        auth: Knows who is asking.
        login: Begins and ends sessions.
    """

    def __init__(self, auth: FastAPIAuth[User], login: Login) -> None:
        self._auth = auth
        self._login = login

    async def log_in(self, username: str, password: str, *, request: Request) -> LoginResult:
        """Begin a session; raises what :meth:`Login.log_in` raises."""
        logged_in = await self._login.log_in(
            username,
            password,
            address=request_address(),
            user_agent=request.headers.get("user-agent"),
        )
        return LoginResult(logged_in.token, logged_in.expires_in)

    async def log_out(self, request: Request) -> None:
        """End the session of the request, if it has one."""
        try:
            await self._login.log_out(await self._auth.admit(request, require_interactive()))
        except (CredentialsMissing, CredentialRefused, InteractiveRequired, SessionNotFound):
            return

    async def current_user(self, request: Request) -> PageUser | None:
        """Who is logged in; None if nobody is."""
        try:
            principal = await self._auth.admit(request, require_interactive())
        except (CredentialsMissing, CredentialRefused, InteractiveRequired):
            return None
        user = principal.user
        return PageUser(user.username, principal.permissions, user.roles)
