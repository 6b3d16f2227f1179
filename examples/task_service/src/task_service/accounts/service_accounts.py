"""Service accounts: owners of keys, tasks and runs that are no people, and that never log in.

A service account is a row in the table of the users, so what belongs to a user can belong to one. It has the role of an ordinary
user. No statement gives it a password or a login at the identity provider, and a constraint of the table refuses both.
Administrators make its keys on its behalf, by the library's `on_behalf_of`: :func:`may_act_for` is the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Select, func, insert, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import AsyncAuthenticator, KeyStatus, Owner, Principal
from msk_auth.errors import InputInvalid
from task_service.db import schema
from task_service.db.paging import FIRST_PAGE, Order, Page, PageRequest, Paging
from task_service.errors import ServiceAccountNotFound
from task_service.ids import is_id, new_id
from task_service.tasks.runs import cancel_runs_of

from .changes import Accounts
from .key_list import in_state
from .roles import KEY_PERMISSIONS, MANAGE_KEYS, ROLE_PERMISSIONS
from .users import (
    MAX_USERNAME,
    SERVICE_ACCOUNT,
    User,
    begin_administration,
    check_name,
    name_contains,
    name_taken,
    write_user,
)

MAX_DESCRIPTION: Final = 500

_ROLE: Final = "user"

PERMISSIONS: Final = ROLE_PERMISSIONS[_ROLE] & KEY_PERMISSIONS.keys()
"""What the keys of a service account can be allowed to do."""

_USERS = schema.users.c
_KEYS = schema.api_keys.c
_BY_NAME: Final = Order(_USERS.username)


class ServiceAccount(BaseModel):
    """A service account. `last_used_at` is when one of its keys was used last."""

    id: str
    name: str
    description: str | None
    disabled: bool
    created_at: datetime
    active_keys: int
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class ServiceAccountQuery:
    """Which service accounts to list, by name; None means any.

    Attributes:
        search: A part of the name, or a whole id.
        disabled: Those that are disabled, or that are not.
    """

    search: str | None = None
    disabled: bool | None = None


async def may_act_for(principal: Principal[User], owner: Owner[User]) -> Iterable[str] | None:
    """The library's rule of who manages the keys of another owner: administrators those of service accounts.

    That their login is recent is checked where the change is written, by :mod:`task_service.accounts.key_audit`: to read needs
    none.
    """
    if not owner.user.service_account or MANAGE_KEYS not in principal.permissions:
        return None
    return PERMISSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccounts:
    """The service accounts, and what administrators change about them.

    Attributes:
        accounts: Holds them.
    """

    accounts: Accounts

    async def list(
        self,
        query: ServiceAccountQuery,
        page: PageRequest = FIRST_PAGE,
    ) -> Page[ServiceAccount]:
        """A page of service accounts, by name. Deleted ones are left out.

        Args:
            query: Which of them.
            page: Which page of them, of 200 at most.

        Raises:
            InputInvalid: Field `cursor`.
        """
        wanted = self._selecting()
        if query.search is not None:
            wanted = wanted.where(name_contains(query.search))
        if query.disabled is not None:
            is_disabled = _USERS.disabled_at.is_not(None)
            wanted = wanted.where(is_disabled if query.disabled else ~is_disabled)
        paging = Paging(_BY_NAME, query, page)
        async with self.accounts.db.read() as connection:
            return await paging.read(connection, wanted, _account)

    async def get(self, account_id: str) -> ServiceAccount:
        """The service account with this id.

        Raises:
            ServiceAccountNotFound: There is none.
        """
        async with self.accounts.db.read() as connection:
            return await self._read(connection, account_id)

    async def create(
        self, name: str, description: str | None = None, *, by: Principal[Any] | None = None
    ) -> ServiceAccount:
        """Add a service account. It has no keys yet.

        Args:
            name: As that of a user.
            description: What it is for, 500 characters at most.
            by: The administrator; None means the service itself or its command line.

        Raises:
            InputInvalid: The name or the description is not acceptable.
            UsernameTaken: There is a user or a service account of that name.
            Problem: As :func:`begin_administration`.
        """
        checked = check_name(name, field="name")
        text = _check_description(description)
        account_id = new_id(SERVICE_ACCOUNT)
        async with name_taken(), self.accounts.change(by) as change:
            await begin_administration(change)
            await change.connection.execute(
                insert(schema.users).values(
                    id=account_id,
                    username=checked,
                    roles=[_ROLE],
                    service_account=True,
                    description=text,
                    created_at=change.now,
                )
            )
            await change.record("service_account.created", account_id, name=checked)
            return await self._read(change.connection, account_id)

    async def change(
        self,
        account_id: str,
        *,
        by: Principal[Any] | None = None,
        description: str | None = None,
        disabled: bool | None = None,
    ) -> ServiceAccount:
        """Describe a service account, disable or enable it, or both at once.

        Its keys are refused while it is disabled and accepted again afterwards. Its runs end: queued ones at once, running ones
        within about a second. When this returns, every process has the change.

        Args:
            account_id: The service account.
            by: The administrator; None means the service itself or its command line.
            description: What it is for; an empty text takes the description away, None leaves it.
            disabled: None leaves it.

        Raises:
            InputInvalid: The description is not acceptable.
            ServiceAccountNotFound: There is no such service account.
            Problem: As :func:`begin_administration`.
        """
        text = _check_description(description)
        async with self.accounts.narrow(by) as change:
            await begin_administration(change)
            before = await self._read(change.connection, account_id)
            name = before.name
            if description is not None and text != before.description:
                await write_user(change, account_id, description=text)
                await change.record(
                    "service_account.described",
                    account_id,
                    name=name,
                    changed={"description": {"old": before.description, "new": text}},
                )
            if disabled is not None and disabled != before.disabled:
                await write_user(change, account_id, disabled_at=change.now if disabled else None)
                if disabled:
                    await cancel_runs_of(change.connection, account_id, change.now)
                action = "service_account.disabled" if disabled else "service_account.enabled"
                await change.record(action, account_id, name=name)
            return await self._read(change.connection, account_id)

    async def delete(
        self,
        account_id: str,
        authenticator: AsyncAuthenticator[User],
        *,
        by: Principal[Any] | None = None,
    ) -> None:
        """Delete a service account for good: its keys are refused and its runs end. Its name can be used again.

        Its tasks, the runs that are over and the entries of the audit log stay, under its name with its id added.

        Args:
            account_id: The service account.
            authenticator: Revokes its keys.
            by: The administrator; None means the service itself or its command line.

        Raises:
            ServiceAccountNotFound: There is no such service account.
            Problem: As :func:`begin_administration`.
        """
        async with self.accounts.narrow(by) as change:
            await begin_administration(change)
            before = await self._read(change.connection, account_id)
            # No name of an account has a space, so this one is taken by none.
            kept = f"{before.name[: MAX_USERNAME - len(account_id) - 1]} {account_id}"
            await write_user(
                change, account_id, username=kept, deleted_at=change.now, disabled_at=change.now
            )
            await cancel_runs_of(change.connection, account_id, change.now)
            await change.record("service_account.deleted", account_id, name=before.name)
        # Refused already, as their owner is gone; from here on they are also shown as revoked.
        await authenticator.forget_owner(account_id)

    def _selecting(self) -> Select[Any]:
        """The statement that selects the service accounts, each with a summary of its keys."""
        now = schema.to_microseconds(self.accounts.now())
        own = (_KEYS.owner_id == _USERS.id, _KEYS.deleted_at.is_(None))
        active = select(func.count()).where(*own, in_state(KeyStatus.ACTIVE, now))
        used = select(func.max(_KEYS.last_used_at)).where(*own)
        return select(
            schema.users,
            active.correlate(schema.users).scalar_subquery().label("active_keys"),
            type_coerce(
                used.correlate(schema.users).scalar_subquery(), schema.UtcMicroseconds
            ).label("last_used_at_of_keys"),
        ).where(_USERS.service_account.is_(True), _USERS.deleted_at.is_(None))

    async def _read(self, connection: AsyncConnection, account_id: str) -> ServiceAccount:
        if is_id(account_id, SERVICE_ACCOUNT):
            found = await connection.execute(self._selecting().where(_USERS.id == account_id))
            row = found.one_or_none()
            if row is not None:
                return _account(row)
        raise ServiceAccountNotFound


def _check_description(description: str | None) -> str | None:
    """A description as it is stored; None if there is nothing in it.

    Raises:
        InputInvalid: Field `description`.
    """
    text = (description or "").strip()
    if len(text) > MAX_DESCRIPTION or not text.isprintable():
        raise InputInvalid.of(
            "description",
            f"A description has {MAX_DESCRIPTION} visible characters at most, on one line.",
        )
    return text or None


def _account(row: Any) -> ServiceAccount:
    return ServiceAccount(
        id=row.id,
        name=row.username,
        description=row.description,
        disabled=row.disabled_at is not None,
        created_at=row.created_at,
        active_keys=row.active_keys,
        last_used_at=row.last_used_at_of_keys,
    )
