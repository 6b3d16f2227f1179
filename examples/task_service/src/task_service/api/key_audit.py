"""The audit entries of one API key, for its owner."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from typing import Annotated

from fastapi import APIRouter, Path

from msk_auth import Principal
from msk_auth.errors import KeyNotFound
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.audit import Audit, AuditQuery
from task_service.accounts.users import User

from .audit import AuditList, audit_list
from .json_route import JsonRoute, Limit
from .keys import OnBehalfOf
from .openapi import UNCHANGED, problems


def key_audit_router(auth: FastAPIAuth[User], audit: Audit) -> APIRouter:
    """The route beside the library's own under `/api/keys`."""
    router = APIRouter(prefix="/api/keys", tags=["API keys"], route_class=JsonRoute)

    @router.get(
        "/{keyId}/audit",
        response_model_exclude_unset=True,
        responses=UNCHANGED | problems(KeyNotFound),
    )
    async def list_key_audit(
        principal: Annotated[Principal[User], auth.require_interactive()],
        key_id: Annotated[str, Path(alias="keyId")],
        cursor: str | None = None,
        limit: Limit = 50,
        on_behalf_of: OnBehalfOf = None,
    ) -> AuditList:
        """List the audit entries of one of your keys, newest first."""
        record = await auth.authenticator.get_key(principal, key_id, on_behalf_of=on_behalf_of)
        # Of any actor: a leaked key is revoked without a login.
        query = AuditQuery(key_id=record.id)
        return audit_list(await audit.list(query, cursor=cursor, limit=limit))

    return router
