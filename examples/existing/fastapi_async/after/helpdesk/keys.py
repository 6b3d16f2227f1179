from datetime import UTC
from typing import Annotated

from fastapi import Request
from fastapi.responses import JSONResponse

from helpdesk.database import Base, engine, get_db, new_session
from helpdesk.exceptions import NotAuthenticated, answer, on_app_error
from helpdesk.users.dependencies import oauth2
from helpdesk.users.models import User
from helpdesk.users.security import decode_access_token
from msk_auth import AsyncAuthenticator, Login, Owner, Principal
from msk_auth.errors import Problem
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.sqlalchemy import AsyncModelUsers, AsyncSQLAlchemyKeyStore, api_key_table

PERMISSIONS = frozenset({"tickets:read", "tickets:write"})


def owner_of(user: User) -> Owner[None]:
    permissions = PERMISSIONS | {"tickets:close_any"} if user.role == "admin" else PERMISSIONS
    since = user.created_at.replace(tzinfo=UTC)
    return Owner(str(user.id), permissions, None, disabled=not user.is_active, since=since)


def login_of_token(token: str) -> Login | None:
    try:
        return Login.from_claims(decode_access_token(token))
    except NotAuthenticated:
        return None


store = AsyncSQLAlchemyKeyStore(engine, api_key_table(Base.metadata))
users = AsyncModelUsers(User, owner_of, new_session)
authenticator = AsyncAuthenticator(store, find_owner=users, logins=[login_of_token])
auth = FastAPIAuth(authenticator, login_scheme=oauth2, session=get_db)

Reader = Annotated[User, auth.user("tickets:read")]
Writer = Annotated[User, auth.user("tickets:write")]
CurrentPrincipal = Annotated[Principal[None], auth.principal]


def on_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    if error.status == 401 and not error.code.startswith("key_"):
        return on_app_error(request, NotAuthenticated())
    return answer(error.status, error.code, error.detail, error.response_headers())
