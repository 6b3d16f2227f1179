"""Which users an administrator wants to see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select, String, cast, or_, select

from msk_auth import InputInvalid
from task_service.db import schema

from .roles import check_roles
from .usernames import MAX_USERNAME, normalised_username

_USERS = schema.users.c


@dataclass(frozen=True, slots=True)
class UserQuery:
    """Which users to list; None means any.

    Attributes:
        search: In whose name this stands, or whose id it is. A part of an id finds nobody: ids are random, and a
            letter typed for a name stands in most of them.
        role: Who has this role.
        disabled: Who is disabled, or who is not.
    """

    search: str | None = None
    role: str | None = None
    disabled: bool | None = None


EVERYBODY: Final = UserQuery()


def found_by(query: UserQuery) -> Select[Any]:
    """The rows of these users.

    Raises:
        InputInvalid: Field `search` or `role`.
    """
    statement = select(schema.users)
    if query.search is not None:
        if len(query.search) > MAX_USERNAME:
            raise InputInvalid.of("search", f"Search for {MAX_USERNAME} characters at most.")
        statement = statement.where(
            or_(
                _USERS.username.contains(normalised_username(query.search), autoescape=True),
                _USERS.id == query.search.strip(),
            )
        )
    if query.role is not None:
        (role,) = check_roles([query.role], field="role")
        # Roles are a JSON array of plain words: one of them stands in it between quotes.
        statement = statement.where(
            cast(_USERS.roles, String).contains(f'"{role}"', autoescape=True)
        )
    if query.disabled is not None:
        is_disabled = _USERS.disabled_at.is_not(None)
        statement = statement.where(is_disabled if query.disabled else ~is_disabled)
    return statement
