"""Listing one's own API keys, a key's activity and audit entries, and revocation. The library has the other routes."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from typing import Annotated, Final

from fastapi import APIRouter, Body, Depends, Query

from msk_auth import Principal
from msk_auth.errors import KeyNotFound
from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.audit import Audit, AuditEntry, AuditQuery
from task_service.accounts.key_activity import ActivityReport, KeyActivity
from task_service.accounts.key_list import KeyDocument, KeyList, KeyListPage, KeyListQuery
from task_service.accounts.users import User
from task_service.db.paging import Page
from task_service.tasks.runs import Runs

from .json_route import Days, JsonBody, JsonRoute, WantedPage
from .openapi import problems

PREFIX: Final = "/api/keys"

OnBehalfOf = Annotated[
    str | None,
    Query(
        description="The id of the service account that owns the key. Only for administrators with a login."
    ),
]
"""The query parameter of the library's routes, for the service's routes."""


class RevokeOptions(JsonBody):
    """The body of `POST /api/keys/{key_id}/revoke`; optional.

    `cancel_runs` also cancels the runs that the key has started. Otherwise they continue. Queued runs are never
    started.
    """

    cancel_runs: bool = False


def keys_routers(
    auth: FastAPIAuth[User], keys: KeyList, activity: KeyActivity, audit: Audit, runs: Runs
) -> tuple[APIRouter, APIRouter]:
    """The library's key routes, with the service's own routes for the list, revocation and a key's activity.

    The list can be searched, sorted and counted, and a revocation can cancel the runs that the key has started.
    """
    others = auth.key_routes(
        prefix=PREFIX,
        operations=["create_key", "get_key", "update_key", "rotate_key", "delete_key"],
    )
    router = APIRouter(prefix=PREFIX, tags=["API keys"], route_class=JsonRoute)

    @router.get("")
    async def list_keys(
        principal: Annotated[Principal[User], auth.any_credential],
        wanted: WantedPage,
        query: Annotated[KeyListQuery, Depends()],
        on_behalf_of: OnBehalfOf = None,
    ) -> KeyListPage:
        """List your API keys, without their values.

        `search` is a part of a name, of a description or of a label, or the beginning of an id. With `count` the answer has
        the numbers of keys found in each state, and of keys that end within 7 days. A cursor belongs to its search,
        filter and order.
        """
        owner_id = principal.owner.id
        if on_behalf_of is not None:
            # The library checks the permission.
            await auth.authenticator.list_keys(principal, limit=1, on_behalf_of=on_behalf_of)
            owner_id = on_behalf_of
        return await keys.page(owner_id, query, wanted)

    @router.get("/{key_id}/activity", responses=problems(KeyNotFound))
    async def get_key_activity(
        principal: Annotated[Principal[User], auth.require_interactive()],
        key_id: str,
        days: Days = 30,
        on_behalf_of: OnBehalfOf = None,
    ) -> ActivityReport:
        """Read the numbers of accepted and refused requests of one of your keys, on each of the last `days`.

        A refused request had the right key, but the key was revoked or expired, or lacked the permission or the network.
        """
        record = await auth.authenticator.get_key(principal, key_id, on_behalf_of=on_behalf_of)
        return await activity.report(record.id, days)

    @router.get("/{key_id}/audit", responses=problems(KeyNotFound))
    async def list_key_audit(
        principal: Annotated[Principal[User], auth.require_interactive()],
        key_id: str,
        page: WantedPage,
        routine: bool = True,
        on_behalf_of: OnBehalfOf = None,
    ) -> Page[AuditEntry]:
        """List the audit entries of one of your keys, newest first.

        `routine=false` leaves out the runs that it started. With `count` the answer has the number of all entries found.
        """
        record = await auth.authenticator.get_key(principal, key_id, on_behalf_of=on_behalf_of)
        # Entries of any actor: a leaked key is revoked without a login.
        return await audit.list(AuditQuery(key=record.id, routine=routine), page)

    @router.post("/{key_id}/revoke", responses=problems(KeyNotFound))
    async def revoke_key(
        principal: Annotated[Principal[User], auth.require_interactive()],
        key_id: str,
        options: Annotated[RevokeOptions, Body(default_factory=RevokeOptions)],
        on_behalf_of: OnBehalfOf = None,
    ) -> KeyDocument:
        """Revoke an API key permanently.

        Runs that the key has started continue, unless the body is `{"cancel_runs": true}`. Queued runs are cancelled when
        their turn comes.
        """
        record = await auth.authenticator.revoke_key(principal, key_id, on_behalf_of=on_behalf_of)
        # After the revocation: runs that the key queues at this moment are not started. On an error the client repeats.
        if options.cancel_runs:
            await runs.cancel_of_key(principal, record.id)
        return KeyDocument.of(record, auth.authenticator.clock.now())

    return router, others
