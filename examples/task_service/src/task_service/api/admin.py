"""Administration: the live configuration, users, the audit log and the system. Every route refuses API keys.

Keys and service accounts have their own modules. Each route names its guard. :class:`_ClosedPrefix` guards
the rest of the prefix: an unknown path or method refuses API keys and anonymous callers before it answers 404 or 405.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response
from pydantic import ConfigDict, Field, WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from msk_auth import Principal, require_interactive
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.audit import Audit
from task_service.accounts.config import ConfigStore, ServiceConfig
from task_service.accounts.departures import Belongings, Departure, Departures
from task_service.accounts.invitations import Invitation, Invitations
from task_service.accounts.roles import ADMIN, MANAGE_KEYS, MANAGE_USERS, RECENT_LOGIN, Role
from task_service.accounts.sessions import Sessions
from task_service.accounts.users import User, UserQuery, Users
from task_service.db.paging import Page
from task_service.errors import LastAdministrator, PasswordLoginOff, UsernameTaken, UserNotFound
from task_service.tasks.models import OwnerId
from task_service.tasks.status import StatusReport, SystemStatus

from .audit import AUDIT, add_audit_routes
from .json_route import JsonBody, JsonRoute, NewName, WantedPage
from .openapi import path_id, problems

CONFIG: Final = "admin:config"

PREFIX: Final = "/api/admin"

_RECENT: Final = require_interactive(MANAGE_USERS, max_age=RECENT_LOGIN)

# For paths under the prefix without a route: only a full administrator learns that the path is unknown.
_ADMINISTRATOR: Final = require_interactive(CONFIG, MANAGE_USERS, MANAGE_KEYS, AUDIT)

UserId = Annotated[str, path_id("userId", "usr", "user")]


# The store validates each change together with the unchanged settings.
ConfigChanges = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": False,
            "properties": ServiceConfig.model_json_schema()["properties"],
        }
    ),
]


class NewUser(JsonBody):
    """The body of `POST /api/admin/users`."""

    username: NewName
    role: Role


class UserChanges(JsonBody):
    """The body of `PATCH /api/admin/users/{userId}`: missing members stay unchanged."""

    roles: Annotated[list[Role], Field(min_length=1)] | None = None
    disabled: bool | None = None


class DepartureRequest(JsonBody):
    """The body of `POST /api/admin/users/{userId}/departure`.

    `revoke_keys` revokes the user's keys permanently; otherwise they are refused until the user is enabled again. `owner_id`
    is the id of the user or service account that gets the tasks.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"revoke_keys": True, "owner_id": "svc_0123456789abcdef"}]}
    )

    revoke_keys: bool = False
    owner_id: OwnerId | None = None


def admin_router(
    auth: FastAPIAuth[User],
    config: ConfigStore,
    users: Users,
    departures: Departures,
    invitations: Invitations,
    audit: Audit,
    sessions: Sessions,
    status: StatusReport,
) -> APIRouter:
    """The other routes under `/api/admin`, and the answers of unknown paths there.

    Args:
        auth: Guards the routes.
        config: The live configuration.
        users: The users.
        departures: Lets users leave.
        invitations: Makes the links to choose passwords.
        audit: The audit log.
        sessions: The login sessions, which can be ended.
        status: Reports on the service as a whole.
    """
    router = APIRouter(prefix=PREFIX, tags=["Administration"], route_class=JsonRoute)
    configurer = auth.require_interactive(CONFIG)
    user_admin = auth.require_interactive(MANAGE_USERS)
    leaving_admin = auth.require_interactive(MANAGE_USERS, MANAGE_KEYS, max_age=RECENT_LOGIN)
    recent_user_admin = auth.require_interactive(MANAGE_USERS, max_age=RECENT_LOGIN)

    @router.get("/config", dependencies=[configurer])
    async def get_config() -> ServiceConfig:
        """Show the live configuration."""
        return await config.current()

    @router.patch("/config")
    async def change_config(
        principal: Annotated[Principal[User], configurer], changes: ConfigChanges
    ) -> ServiceConfig:
        """Change settings, immediately. Missing members stay unchanged."""
        return await config.update(changes, by=principal)

    @router.get("/users", dependencies=[user_admin])
    async def list_users(page: WantedPage, query: Annotated[UserQuery, Depends()]) -> Page[User]:
        """List users.

        `search` is a part of a name, or an id. With `count` the answer has the number of all users found.
        """
        return await users.list(query, page)

    @router.post("/users", status_code=201, responses=problems(UsernameTaken))
    async def create_user(
        principal: Annotated[Principal[User], user_admin], new: NewUser, response: Response
    ) -> Invitation:
        """Add a user, who chooses a password with the link in the response.

        Making an administrator needs a login of the last 15 minutes.
        """
        if new.role == ADMIN:
            auth.authenticator.authorize(principal, _RECENT)
        invitation = await invitations.create_user(new.username, [new.role], by=principal)
        response.headers["location"] = f"{PREFIX}/users/{invitation.user.id}"
        return invitation

    @router.get(
        "/users/{userId}",
        dependencies=[user_admin],
        responses=problems(UserNotFound),
    )
    async def get_user(user_id: UserId) -> User:
        """Show a user."""
        return await users.get(user_id)

    @router.patch(
        "/users/{userId}",
        responses=problems(UserNotFound, LastAdministrator),
    )
    async def change_user(
        principal: Annotated[Principal[User], user_admin], user_id: UserId, changes: UserChanges
    ) -> User:
        """Change a user's roles, or disable or enable the user.

        A disabled user has no access after the answer. Changing roles needs a login of the last 15 minutes.
        """
        if changes.roles is not None:
            auth.authenticator.authorize(principal, _RECENT)
        return await users.change(
            user_id, by=principal, roles=changes.roles, disabled=changes.disabled
        )

    @router.get(
        "/users/{userId}/departure",
        dependencies=[user_admin],
        responses=problems(UserNotFound),
    )
    async def get_belongings(user_id: UserId) -> Belongings:
        """Show the numbers of a user's active keys and tasks, before the user leaves."""
        return await departures.belongings(user_id)

    @router.post(
        "/users/{userId}/departure",
        responses=problems(UserNotFound, LastAdministrator),
    )
    async def let_user_leave(
        principal: Annotated[Principal[User], leaving_admin],
        user_id: UserId,
        request: DepartureRequest,
    ) -> Departure:
        """Disable a user who leaves, hand over the user's tasks, and revoke the keys or keep them for a return.

        The user's sessions and runs have ended, and the keys are refused, after the answer. Tasks keep their runs. This needs a
        login of the last 15 minutes.
        """
        return await departures.leave(
            user_id, by=principal, revoke_keys=request.revoke_keys, owner_id=request.owner_id
        )

    @router.post(
        "/users/{userId}/invitation",
        status_code=201,
        responses=problems(UserNotFound, PasswordLoginOff),
    )
    async def invite_user(
        principal: Annotated[Principal[User], recent_user_admin], user_id: UserId
    ) -> Invitation:
        """Make a new link with which a user sets a new password. Earlier links become invalid."""
        return await invitations.create(user_id, by=principal)

    @router.delete("/users/{userId}/sessions", status_code=204, responses=problems(UserNotFound))
    async def end_sessions(
        principal: Annotated[Principal[User], user_admin], user_id: UserId
    ) -> None:
        """End all sessions of a user, who keeps the password and all keys."""
        user = await users.get(user_id)
        await sessions.end_all(user.id, by=principal)

    @router.get("/system", dependencies=[configurer])
    async def get_system() -> SystemStatus:
        """Show versions, database, queue, and the workers of the active runs."""
        return await status.now()

    add_audit_routes(router, auth, audit)

    return router


def closing_router(auth: FastAPIAuth[User]) -> APIRouter:
    """Guards unknown paths under :data:`PREFIX`; include this router last."""
    router = APIRouter(prefix=PREFIX, include_in_schema=False)
    closed = auth.declare(_ClosedPrefix(auth), _ADMINISTRATOR)
    for path in (PREFIX, PREFIX + "/{rest:path}"):
        router.routes.append(Route(path, closed, include_in_schema=False))
    return router


class _ClosedPrefix:
    """An ASGI application, because a route of FastAPI has to name its methods."""

    def __init__(self, auth: FastAPIAuth[User]) -> None:
        self._auth = auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._auth.admit(Request(scope), _ADMINISTRATOR)
        raise HTTPException(404)
