"""Service accounts: owners of keys, tasks and runs that are not people, and never log in.

A service account is a row in the table of users, so it can own everything that a user can. It has the role of an ordinary
user. A constraint of the table refuses a password or a login at the identity provider.
Administrators make its keys with the library's `on_behalf_of`: :func:`may_act_for` is the rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from sqlalchemy import ColumnElement, Select, func, insert, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import AsyncAuthenticator, KeyStatus, Owner, Principal
from task_service.db import schema
from task_service.db.paging import FIRST_PAGE, Order, Page, PageRequest, Paging
from task_service.errors import ServiceAccountNotFound
from task_service.ids import is_id, new_id
from task_service.tasks.runs import cancel_runs_of

from .changes import Accounts
from .key_list import in_state
from .names import MAX_USERNAME, check_name
from .roles import KEY_PERMISSIONS, MANAGE_KEYS, ROLE_PERMISSIONS
from .users import (
    SERVICE_ACCOUNT,
    AccountQuery,
    User,
    begin_administration,
    name_taken,
    set_disabled,
    write_user,
)

_ROLE: Final = "user"

PERMISSIONS: Final = ROLE_PERMISSIONS[_ROLE] & KEY_PERMISSIONS.keys()
"""The possible permissions of a service account's keys."""

_USERS = schema.users.c
_KEYS = schema.api_keys.c
_BY_NAME: Final = Order(_USERS.username)


class ServiceAccount(BaseModel):
    """A service account. `last_used_at` is the last use of one of its keys."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    description: str | None
    disabled: bool
    created_at: datetime
    active_keys: int
    last_used_at: datetime | None


async def may_act_for(principal: Principal[User], owner: Owner[User]) -> Iterable[str] | None:
    """The library's rule for the management of other owners' keys: administrators manage those of service accounts.

    Changes also need a recent login, which :mod:`task_service.accounts.key_audit` checks when it writes the change.
    """
    if not owner.user.service_account or MANAGE_KEYS not in principal.permissions:
        return None
    return PERMISSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccounts:
    """The service accounts, and administrators' changes of them.

    Attributes:
        accounts: The database.
    """

    accounts: Accounts

    async def list(
        self, query: AccountQuery, page: PageRequest = FIRST_PAGE
    ) -> Page[ServiceAccount]:
        """A page of service accounts, by name. Deleted ones are left out.

        Args:
            query: The filter.
            page: The page, of at most 200 accounts.

        Raises:
            InputInvalid: Field `cursor`.
        """
        wanted = query.apply(self._selecting())
        paging = Paging(_BY_NAME, query, page)
        async with self.accounts.db.read() as connection:
            return await paging.read(connection, wanted, ServiceAccount.model_validate)

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
        """Add a service account, without keys.

        Args:
            name: The name, with the rules of a user's name.
            description: Its purpose.
            by: The administrator; None means the service itself or its command line.

        Raises:
            InputInvalid: The name is not acceptable.
            UsernameTaken: A user or a service account has this name.
            Problem: As for :func:`begin_administration`.
        """
        checked = check_name(name, field="name")
        account_id = new_id(SERVICE_ACCOUNT)
        async with name_taken(), self.accounts.change(by) as change:
            await begin_administration(change)
            await change.connection.execute(
                insert(schema.users).values(
                    id=account_id,
                    username=checked,
                    roles=[_ROLE],
                    service_account=True,
                    description=description or None,
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
        """Change the description of a service account, disable or enable it, or both.

        The keys of a disabled account are refused until it is enabled again. Its queued runs end immediately, and running
        runs within about a second. When this returns, every process has the change.

        Args:
            account_id: The service account.
            by: The administrator; None means the service itself or its command line.
            description: Its purpose; an empty text removes the description, None changes nothing.
            disabled: None changes nothing.

        Raises:
            ServiceAccountNotFound: There is no such service account.
            Problem: As :func:`begin_administration`.
        """
        text = description or None
        async with self.accounts.narrow(by) as change:
            await begin_administration(change, account_id)
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
                await set_disabled(change, account_id, disabled, kind="service_account", name=name)
            return await self._read(change.connection, account_id)

    async def delete(
        self,
        account_id: str,
        authenticator: AsyncAuthenticator[User],
        *,
        by: Principal[Any] | None = None,
    ) -> None:
        """Delete a service account permanently: its keys are refused and its runs end. Its name can be used again.

        Its tasks, ended runs and audit entries stay, under its name with its id appended.

        Args:
            account_id: The service account.
            authenticator: Revokes its keys.
            by: The administrator; None means the service itself or its command line.

        Raises:
            ServiceAccountNotFound: There is no such service account.
            Problem: As :func:`begin_administration`.
        """
        async with self.accounts.narrow(by) as change:
            await begin_administration(change, account_id)
            before = await self._read(change.connection, account_id)
            # No name of an account has a space, so this name is free.
            kept = f"{before.name[: MAX_USERNAME - len(account_id) - 1]} {account_id}"
            # Before the name: a unique column, whose change waits for every new row that refers to the account.
            await cancel_runs_of(change.connection, account_id, change.now)
            await write_user(
                change, account_id, username=kept, deleted_at=change.now, disabled_at=change.now
            )
            await change.record("service_account.deleted", account_id, name=before.name)
        # The keys are already refused, since their owner is gone; now they are also shown as revoked.
        await authenticator.forget_owner(account_id)

    def _selecting(self) -> Select[Any]:
        """The statement that selects the service accounts, each with a summary of its keys."""
        now = schema.to_microseconds(self.accounts.now())
        own = (_KEYS.owner_id == _USERS.id, _KEYS.deleted_at.is_(None))
        active = select(func.count()).where(*own, in_state(KeyStatus.ACTIVE, now)).scalar_subquery()
        used = select(func.max(_KEYS.last_used_at)).where(*own).scalar_subquery()
        columns: list[ColumnElement[Any]] = [
            _USERS.id,
            _USERS.username.label("name"),
            _USERS.description,
            _USERS.disabled_at.is_not(None).label("disabled"),
            _USERS.created_at,
            active.label("active_keys"),
            type_coerce(used, schema.UtcMicroseconds).label("last_used_at"),
        ]
        return select(*columns).where(_USERS.service_account.is_(True), _USERS.deleted_at.is_(None))

    async def _read(self, connection: AsyncConnection, account_id: str) -> ServiceAccount:
        if is_id(account_id, SERVICE_ACCOUNT):
            found = await connection.execute(self._selecting().where(_USERS.id == account_id))
            row = found.one_or_none()
            if row is not None:
                return ServiceAccount.model_validate(row)
        raise ServiceAccountNotFound
