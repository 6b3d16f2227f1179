"""What happens when a user leaves: they are disabled, their keys end or wait for a return, and their tasks get another owner."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel
from sqlalchemy import func, select

from msk_auth import AsyncAdminKeys, KeyStatus, Principal
from msk_auth.keys import KeyFilter
from task_service.db import schema
from task_service.tasks.tasks import hand_over

from .changes import Accounts, Change
from .key_list import count_active
from .users import User, Users

_TASKS = schema.tasks.c
# What the library revokes at once.
_MOST_KEYS = 200


class Belongings(BaseModel):
    """What a user has, before they leave."""

    active_keys: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Departure:
    """What was done for a user who left.

    Attributes:
        user: Who is disabled now.
        revoked_keys: How many of their keys were revoked.
        moved_tasks: How many of their tasks have another owner.
    """

    user: User
    revoked_keys: int
    moved_tasks: int


@dataclass(frozen=True, slots=True)
class Departures:
    """Lets users leave.

    Attributes:
        accounts: Holds what they have.
        users: Disables them.
        keys: Revokes their keys; it needs a recent login.
    """

    accounts: Accounts
    users: Users
    keys: AsyncAdminKeys[User]

    async def belongings(self, user_id: str) -> Belongings:
        """What a user has.

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

        Disabling and handing over is one transaction. The runs of a task follow it to its new owner.

        Args:
            user_id: The user.
            by: The administrator.
            revoke_keys: Otherwise they are refused until the user is enabled again.
            owner_id: The id of the user or service account who owns the tasks from now on; None leaves them.

        Raises:
            InputInvalid: Field `owner_id`.
            LoginTooOld: The login of the administrator is not recent.
            Problem: As :meth:`Users.change`.
        """
        moved = 0

        async def give_tasks(change: Change) -> None:
            nonlocal moved
            if owner_id is not None:
                ids = await hand_over(change.connection, user_id, owner_id)
                await change.record("task.owner_changed", *ids, old=user_id, new=owner_id)
                moved = len(ids)

        user = await self.users.change(user_id, by=by, disabled=True, beside=give_tasks)
        revoked = await self._revoke_keys(user_id, by) if revoke_keys else 0
        return Departure(user, revoked, moved)

    async def _revoke_keys(self, user_id: str, by: Principal[User]) -> int:
        revoked = 0
        active = KeyFilter(owner_id=user_id, status=KeyStatus.ACTIVE)
        while page := (await self.keys.list_keys(by, active, limit=_MOST_KEYS)).items:
            await self.keys.revoke_keys(by, [record.id for record in page])
            revoked += len(page)
        return revoked
