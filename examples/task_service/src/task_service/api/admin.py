"""What administrators do: the live configuration, users, the audit log, the system. No API key ever gets here.

Besides the guard of each route, :class:`_Closed` stands behind all of them and guards the address itself: a method
or path that no route has is refused to a key and to strangers before it is said that there is nothing.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import AwareDatetime, BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from msk_auth import Policy, Principal, require_interactive
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.audit import Audit, AuditPage, AuditQuery
from task_service.accounts.config import ConfigStore, ServiceConfig
from task_service.accounts.invitations import Invitation, Invitations
from task_service.accounts.roles import ADMIN, MANAGE_USERS
from task_service.accounts.sessions import Sessions
from task_service.accounts.shapes import audit_json, user_json
from task_service.accounts.user_query import UserQuery
from task_service.accounts.usernames import normalised_username
from task_service.accounts.users import User, Users
from task_service.tasks.status import StatusReport, SystemStatus

from .audit_export import Format, export
from .json_route import JsonRoute, Limit

CONFIG: Final = "admin:config"
USERS: Final = MANAGE_USERS
AUDIT: Final = "admin:audit"

PREFIX: Final = "/api/admin"

RECENT_LOGIN: Final = timedelta(minutes=15)
"""How old a login may be that makes an administrator, changes roles or sets up another's password (RFC 9470)."""

_RECENT: Final = require_interactive(USERS, max_age=RECENT_LOGIN)

# What stands behind each part; what has no part needs all of it.
_GUARDS: Final[tuple[tuple[str, Policy], ...]] = (
    (f"{PREFIX}/config", require_interactive(CONFIG)),
    (f"{PREFIX}/users", require_interactive(USERS)),
    (f"{PREFIX}/audit", require_interactive(AUDIT)),
    (f"{PREFIX}/system", require_interactive(CONFIG)),
    (PREFIX, require_interactive(CONFIG, USERS, AUDIT)),
)

UserId = Annotated[str, Path(alias="userId")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class NewUser(_Body):
    """The body of `POST /api/admin/users`."""

    username: str
    role: Literal["user", "admin"]


class UserChanges(_Body):
    """The body of `PATCH /api/admin/users/{userId}`: what is left out stays."""

    roles: list[str] | None = None
    disabled: bool | None = None


class UserShape(BaseModel):
    """A user, for administrators."""

    id: str
    username: str
    roles: list[str]
    disabled: bool
    created_at: datetime
    last_login_at: datetime | None
    has_password: bool


class UserList(BaseModel):
    """A page of users, newest first."""

    items: list[UserShape]
    next_cursor: str | None


class InvitationShape(BaseModel):
    """A user and the link with which they choose their password; the link is shown once."""

    user: UserShape
    invitation_url: str
    expires_at: datetime


class Actor(BaseModel):
    """Who did something, by the name they have now."""

    id: str
    username: str | None


class UsedCredential(BaseModel):
    """With which key or login session; `kind` is `system` for the service itself, `none` for strangers."""

    kind: str
    id: str | None


class AuditEntryShape(BaseModel):
    """One thing that happened."""

    id: int
    at: datetime
    action: str
    actor: Actor | None
    credential: UsedCredential
    target: str | None
    address: str | None
    details: dict[str, Any]


class AuditList(BaseModel):
    """A page of the audit log, newest first."""

    items: list[AuditEntryShape]
    next_cursor: str | None


def admin_router(
    auth: FastAPIAuth[User],
    config: ConfigStore,
    users: Users,
    invitations: Invitations,
    audit: Audit,
    sessions: Sessions,
    status: StatusReport,
    *,
    base_url: str,
) -> APIRouter:
    """The routes under `/api/admin`.

    Args:
        auth: Guards them.
        config: The live configuration.
        users: The users.
        invitations: Makes the links with which users choose their passwords.
        audit: The audit log.
        sessions: The login sessions, which can be ended.
        status: Looks at the service as a whole.
        base_url: The origin of the links.
    """
    router = APIRouter(prefix=PREFIX, tags=["Administration"], route_class=JsonRoute)
    configurer = auth.require_interactive(CONFIG)
    user_admin = auth.require_interactive(USERS)
    recent_user_admin = auth.require_interactive(USERS, max_age=RECENT_LOGIN)

    @router.get("/config", dependencies=[configurer])
    async def get_config() -> ServiceConfig:
        return await config.current()

    @router.patch("/config")
    async def change_config(
        principal: Annotated[Principal[User], configurer], changes: dict[str, Any]
    ) -> ServiceConfig:
        """Change any of the settings; it takes effect at once."""
        return await config.update(changes, by=principal)

    @router.get("/users", dependencies=[user_admin])
    async def list_users(
        search: str | None = None,
        role: str | None = None,
        disabled: bool | None = None,
        cursor: str | None = None,
        limit: Limit = 50,
    ) -> UserList:
        """The users; `search` is a part of a name, or an id."""
        query = UserQuery(search=search or None, role=role or None, disabled=disabled)
        page = await users.list(query, cursor=cursor, limit=limit)
        return UserList(items=[_shown(user) for user in page.items], next_cursor=page.next_cursor)

    @router.post("/users", status_code=201)
    async def create_user(
        principal: Annotated[Principal[User], user_admin], new: NewUser, response: Response
    ) -> InvitationShape:
        """Add a user, who chooses their own password with the link in the answer.

        An administrator is made only by a login of the last 15 minutes.
        """
        if new.role == ADMIN:
            auth.authenticator.authorize(principal, _RECENT)
        invitation = await invitations.create_user(new.username, [new.role], by=principal)
        response.headers["location"] = f"{PREFIX}/users/{invitation.user.id}"
        return shown_once(invitation)

    @router.get("/users/{userId}", dependencies=[user_admin])
    async def get_user(user_id: UserId) -> UserShape:
        return _shown(await users.get(user_id))

    @router.patch("/users/{userId}")
    async def change_user(
        principal: Annotated[Principal[User], user_admin], user_id: UserId, changes: UserChanges
    ) -> UserShape:
        """Give a user other roles, disable or enable them. Who is disabled is out when this answers.

        Roles are changed only by a login of the last 15 minutes.
        """
        if changes.roles is not None:
            auth.authenticator.authorize(principal, _RECENT)
        user = await users.change(
            user_id, by=principal, roles=changes.roles, disabled=changes.disabled
        )
        return _shown(user)

    @router.post("/users/{userId}/invitation", status_code=201)
    async def invite_user(
        principal: Annotated[Principal[User], recent_user_admin], user_id: UserId
    ) -> InvitationShape:
        """A new link, with which a user sets a new password; those before it are void."""
        return shown_once(await invitations.create(user_id, by=principal))

    @router.delete("/users/{userId}/sessions", status_code=204)
    async def end_sessions(
        principal: Annotated[Principal[User], user_admin], user_id: UserId
    ) -> None:
        """End all of a user's logins. Their keys and their password stay."""
        user = await users.get(user_id)
        await sessions.end_all(user.id, by=principal)

    @router.get("/system", dependencies=[configurer])
    async def system() -> SystemStatus:
        """Versions, database, queue, and which worker holds which run."""
        return await status.now()

    auditor = auth.require_interactive(AUDIT)

    @router.get("/audit", dependencies=[auditor])
    async def list_audit(
        query: Annotated[AuditQuery, Depends(_query)],
        cursor: str | None = None,
        limit: Limit = 50,
    ) -> AuditList:
        """What happened. An `action` that ends with a dot, such as `key.`, means all that begin with it."""
        return shown_page(await audit.list(query, cursor=cursor, limit=limit))

    @router.get(
        "/audit/export",
        dependencies=[auditor],
        response_class=StreamingResponse,
        responses=_EXPORT_RESPONSES,
    )
    async def export_audit(
        query: Annotated[AuditQuery, Depends(_query)],
        form: Annotated[Format, Query(alias="format")] = "csv",
    ) -> StreamingResponse:
        """The same as one file."""
        return await export(audit, query, form)

    def shown_once(invitation: Invitation) -> InvitationShape:
        return InvitationShape(
            user=_shown(invitation.user),
            invitation_url=invitation.url(base_url),
            expires_at=invitation.expires_at,
        )

    closed = _Closed(auth, [route for route in router.routes if isinstance(route, Route)])
    # Some of its addresses demand more; none demands less.
    auth.declare(closed, require_interactive())
    for path in (PREFIX, PREFIX + "/{rest:path}"):
        router.routes.append(Route(path, closed, include_in_schema=False))
    return router


_EXPORT_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/csv": {}, "application/jsonl": {}}, "description": "The entries."}
}


def _query(
    actor_id: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    target: str | None = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
) -> AuditQuery:
    return AuditQuery(
        actor_id=actor_id,
        actor_name=None if actor is None else normalised_username(actor),
        action=action,
        target=target,
        since=since,
        until=until,
    )


def shown_page(page: AuditPage) -> AuditList:
    """A page of the audit log, as the API shows it."""
    items = [AuditEntryShape.model_validate(audit_json(entry)) for entry in page.items]
    return AuditList(items=items, next_cursor=page.next_cursor)


class _Closed:
    """Answers what no route answers: every method of every other address under :data:`PREFIX`."""

    def __init__(self, auth: FastAPIAuth[User], routes: Sequence[Route]) -> None:
        self._auth = auth
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        policy = next(
            policy for prefix, policy in _GUARDS if path == prefix or path.startswith(f"{prefix}/")
        )
        await self._auth.admit(Request(scope), policy)
        allowed = {
            method
            for route in self._routes
            if route.path_regex.match(path)
            for method in route.methods or ()
        }
        if not allowed:
            raise HTTPException(404)
        raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})


def _shown(user: User) -> UserShape:
    return UserShape.model_validate(user_json(user))
