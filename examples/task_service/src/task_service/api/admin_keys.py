"""The API keys of all users, for administrators: a list with the names of the owners, and the library's routes that revoke."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel

from msk_auth import AsyncAdminKeys, KeyStatus, Principal
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.keys import KeyFilter, KeyPage
from task_service.accounts.roles import MANAGE_KEYS
from task_service.accounts.users import User, Users
from task_service.errors import UserNotFound

from .json_route import JsonRoute, Time
from .keys import KeySchema, key_schema

PREFIX: Final = "/api/admin/keys"

_TAGS: Final = ("Administration",)


class AnyKeySchema(KeySchema):
    """An API key of any user, without its value. `owner_name` is null if its owner is no user."""

    owner_name: str | None


class AnyKeyPageSchema(BaseModel):
    """A page of the keys of all users; there may be more even if it has few items, or none."""

    items: list[AnyKeySchema]
    next_cursor: str | None


def admin_keys_routers(
    auth: FastAPIAuth[User], users: Users, *, recent_login: timedelta
) -> tuple[APIRouter, APIRouter]:
    """The list, and the routes that revoke keys.

    Args:
        auth: Guards them.
        users: The owners of the keys.
        recent_login: How old the login may be that revokes a key.
    """
    keys = AsyncAdminKeys(auth.authenticator, MANAGE_KEYS)
    revoking = AsyncAdminKeys(auth.authenticator, MANAGE_KEYS, max_age=recent_login)
    revokes = auth.admin_key_routes(
        revoking, prefix=PREFIX, operations=["revoke_any_keys", "revoke_any_key"], tags=_TAGS
    )
    router = APIRouter(prefix=PREFIX, tags=list(_TAGS), route_class=JsonRoute)

    @router.get("")
    async def list_all_keys(
        response: Response,
        principal: Annotated[Principal[User], auth.require_interactive(MANAGE_KEYS)],
        owner: str | None = None,
        status: KeyStatus | None = None,
        created_before: Time | None = None,
        unused_since: Time | None = None,
        expires_before: Time | None = None,
        label: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> AnyKeyPageSchema:
        """List the API keys of all users, by owner, without their values.

        `owner` is a user's name. A page may have fewer items than `limit`, possibly none, and a `next_cursor` all the same: go
        on until that is null.
        """
        wanted = KeyFilter(
            status=status,
            created_before=created_before,
            unused_since=unused_since,
            expires_before=expires_before,
            label=label,
        )
        page = await page_of(principal, wanted, owner, cursor, limit)
        names = await users.names(record.owner_id for record in page.items)
        at = auth.authenticator.clock.now()
        response.headers["cache-control"] = "no-store"
        return AnyKeyPageSchema(
            items=[
                AnyKeySchema(
                    **key_schema(record, at).model_dump(), owner_name=names.get(record.owner_id)
                )
                for record in page.items
            ],
            next_cursor=page.next_cursor,
        )

    async def page_of(
        principal: Principal[User],
        wanted: KeyFilter,
        owner: str | None,
        cursor: str | None,
        limit: int,
    ) -> KeyPage:
        if owner is not None:
            try:
                user = await users.get_by_name(owner)
            except UserNotFound:
                return KeyPage((), None)
            wanted = replace(wanted, owner_id=user.id)
        return await keys.list_keys(principal, wanted, cursor=cursor, limit=limit)

    return router, revokes
