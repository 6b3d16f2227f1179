"""Departures of users: disables a user, revokes or keeps the user's keys, and gives the tasks to another owner."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel
from sqlalchemy import func, select

from msk_auth import AsyncAuthenticator, KeyStatus, Principal
from msk_auth.keys import KeyFilter
from task_service.db import schema
from task_service.tasks.tasks import hand_over

from .changes import Accounts, Change
from .key_list import count_active
from .roles import MANAGE_KEYS, RECENT_LOGIN
from .users import User, Users

_TASKS = schema.tasks.c
# The library revokes at most as many at once.
_MOST_KEYS = 200


class Belongings(BaseModel):
    """The numbers of a user's keys and tasks, before the user leaves."""

    active_keys: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Departure:
    """The result of a user's departure.

    Attributes:
        user: The user, now disabled.
        revoked_keys: The number of revoked keys.
        moved_tasks: The number of tasks with a new owner.
    """

    user: User
    revoked_keys: int
    moved_tasks: int


@dataclass(frozen=True, slots=True)
class Departures:
    """Lets users leave.

    Attributes:
        accounts: The database.
        users: Disables users.
        authenticator: Revokes their keys; this needs a recent login.
    """

    accounts: Accounts
    users: Users
    authenticator: AsyncAuthenticator[User]

    async def belongings(self, user_id: str) -> Belongings:
        """The numbers of a user's keys and tasks.

        Raises:
            UserNotFound: There is no such user.
        """
        user = await self.users.get(user_id)
        async with self.accounts.db.read() as connection:
            own = (_TASKS.owner_id == user.id, _TASKS.deleted_at.is_(None))
            tasks = await connection.scalar(
                select(func.count()).select_from(schema.tasks).where(*own)
            )
            active = await count_active(connection, user.id, self.accounts.now())
        return Belongings(active_keys=active, tasks=tasks or 0)

    async def leave(
        self, user_id: str, *, by: Principal[User], revoke_keys: bool, owner_id: str | None
    ) -> Departure:
        """Disable a user, hand over their tasks, and revoke their keys. Safe to repeat.

        One transaction disables the user and hands over the tasks. A task's runs get its new owner, too.

        Args:
            user_id: The user.
            by: The administrator.
            revoke_keys: False keeps the keys, which are refused until the user is enabled again.
            owner_id: The id of the tasks' new owner, a user or service account; None changes no task.

        Raises:
            InputInvalid: Field `owner_id`.
            LoginTooOld: The login of the administrator is not recent.
            Problem: As for :meth:`Users.change`.
        """
        moved = 0

        async def give_tasks(change: Change) -> None:
            nonlocal moved
            if owner_id is not None:
                ids = await hand_over(change.connection, user_id, owner_id)
                await change.record("task.owner_changed", *ids, old=user_id, new=owner_id)
                moved = len(ids)

        heirs = () if owner_id is None else (owner_id,)
        user = await self.users.change(
            user_id, by=by, disabled=True, beside=give_tasks, beside_ids=heirs
        )
        revoked = await self._revoke_keys(user_id, by) if revoke_keys else 0
        return Departure(user, revoked, moved)

    async def _revoke_keys(self, user_id: str, by: Principal[User]) -> int:
        keys = self.authenticator.admin_keys(MANAGE_KEYS, max_age=RECENT_LOGIN)
        revoked = 0
        active = KeyFilter(owner_id=user_id, status=KeyStatus.ACTIVE)
        while page := (await keys.list_keys(by, active, limit=_MOST_KEYS)).items:
            await keys.revoke_keys(by, [record.id for record in page])
            revoked += len(page)
        return revoked
