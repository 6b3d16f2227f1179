"""The API keys of all users, for administrators: the list, a key and its activity, and the library's routes that revoke."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from msk_auth import ApiKey, KeyStatus, Principal
from msk_auth.errors import KeyNotFound
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.keys import KeyFilter
from task_service.accounts.key_activity import ActivityReport, KeyActivity
from task_service.accounts.key_list import KeyDocument, KeyList
from task_service.accounts.roles import MANAGE_KEYS, RECENT_LOGIN
from task_service.accounts.users import User, Users
from task_service.db.paging import Cursor, Limit
from task_service.errors import UserNotFound
from task_service.validation import Time

from .json_route import Days, JsonRoute
from .openapi import problems

PREFIX: Final = "/api/admin/keys"

_TAGS: Final = ("Administration",)


Label = Annotated[str | None, Query(pattern="^[0-9a-z][0-9a-z._:/-]{0,49}$")]


class AnyKeySchema(KeyDocument):
    """An API key of any user, without its value.

    `owner_name` is null if the owner does not exist. While `owner_disabled` is true, the service refuses the key, even an active key.
    """

    owner_name: str | None
    owner_disabled: bool


class AnyKeyPageSchema(BaseModel):
    """A page of the keys of all users. Even a page with few items, or none, may have a next page."""

    items: list[AnyKeySchema]
    next_cursor: str | None


def admin_keys_routers(
    auth: FastAPIAuth[User], users: Users, found: KeyList, activity: KeyActivity
) -> tuple[APIRouter, APIRouter]:
    """The list, and the routes that revoke keys.

    Args:
        auth: Guards the routes.
        users: The owners of the keys.
        found: Finds a key.
        activity: The keys' activity.
    """
    keys = auth.authenticator.admin_keys(MANAGE_KEYS)
    revokes = auth.admin_key_routes(
        MANAGE_KEYS,
        max_age=RECENT_LOGIN,
        prefix=PREFIX,
        operations=["revoke_any_keys", "revoke_any_key"],
        tags=_TAGS,
    )
    administrator = auth.require_interactive(MANAGE_KEYS)
    router = APIRouter(prefix=PREFIX, tags=list(_TAGS), route_class=JsonRoute)

    @router.get("")
    async def list_all_keys(
        principal: Annotated[Principal[User], administrator],
        owner: str | None = None,
        status: KeyStatus | None = None,
        created_before: Time | None = None,
        unused_since: Time | None = None,
        expires_before: Time | None = None,
        label: Label = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> AnyKeyPageSchema:
        """List the API keys of all users, by owner, without their values.

        `owner` is a user's name. A page may have fewer items than `limit`, even none, and still have a `next_cursor`:
        continue until `next_cursor` is null.
        """
        wanted = KeyFilter(
            status=status,
            created_before=created_before,
            unused_since=unused_since,
            expires_before=expires_before,
            label=label,
        )
        if owner is not None:
            try:
                wanted = replace(wanted, owner_id=(await users.get_by_name(owner)).id)
            except UserNotFound:
                return AnyKeyPageSchema(items=[], next_cursor=None)
        page = await keys.list_keys(principal, wanted, cursor=cursor, limit=limit)
        return AnyKeyPageSchema(items=await shown(page.items), next_cursor=page.next_cursor)

    @router.get("/{key_id}", dependencies=[administrator], responses=problems(KeyNotFound))
    async def get_any_key(key_id: str) -> AnyKeySchema:
        """Show an API key of any user, without its value."""
        [key] = await shown([await found.get(key_id)])
        return key

    @router.get("/{key_id}/activity", dependencies=[administrator], responses=problems(KeyNotFound))
    async def get_any_key_activity(key_id: str, days: Days = 30) -> ActivityReport:
        """Read the numbers of accepted and refused requests of any user's key, on each of the last `days`."""
        record = await found.get(key_id)
        return await activity.report(record.id, days)

    async def shown(records: Sequence[ApiKey]) -> list[AnyKeySchema]:
        owners = await users.by_id(record.owner_id for record in records)
        now = auth.authenticator.clock.now()
        return [
            AnyKeySchema.of(
                record,
                now,
                owner_name=None if owner is None else owner.username,
                owner_disabled=owner is None or owner.disabled,
            )
            for record in records
            for owner in [owners.get(record.owner_id)]
        ]

    return router, revokes
