"""The work of `task-service after-restore` on a database restored from a backup, before the service starts on it.

A backup has runs that have ended since and would be executed again, and logins, keys and users that are refused now. All
runs and logins end here. The refused keys and users are in an export of the audit log that is newer than the backup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import func, select, update

from msk_auth import KeyStatus
from msk_auth.errors import ConfigurationError, NotFound

from .accounts.audit import TIME
from .accounts.changes import Change
from .accounts.users import SERVICE_ACCOUNT
from .db.schema import audit, runs, sessions
from .ids import is_id
from .services import Services
from .tasks.models import RunState

RESTORED: Final = "The database was restored from a backup."
"""The error of a run that `after-restore` ended."""

_REFUSED_KEY: Final = frozenset({"key.revoked", "key.deleted"})
_DISABLED: Final = frozenset(
    {"user.disabled", "service_account.disabled", "service_account.deleted"}
)
_ENABLED: Final = frozenset({"user.enabled", "service_account.enabled"})
_NOT_REPEATED: Final = frozenset(
    {
        "config.changed",
        "key.expiry_set",
        "key.rotated",
        "key.updated",
        "service_account.created",
        "user.created",
        "user.password_changed",
        "user.password_set",
        "user.roles_changed",
    }
)


class AuditedChange(BaseModel):
    """The used fields of an entry in an export of the audit log; older versions write fewer fields."""

    model_config = ConfigDict(strict=True)

    id: int
    at: datetime
    action: str
    target: str | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Restoration:
    """The numbers of ended runs and logins, revoked keys, and disabled users and service accounts."""

    runs: int
    sessions: int
    keys: int
    users: int


def read_export(lines: Iterable[str]) -> list[AuditedChange]:
    """The entries of an export of the audit log in the format `jsonl`, oldest first.

    Raises:
        ConfigurationError: A line is not an entry of the audit log.
    """
    entries: list[AuditedChange] = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(AuditedChange.model_validate_json(line))
        except ValidationError:
            raise ConfigurationError(
                f"Line {number} is not an entry of the audit log. Export it with format=jsonl."
            ) from None
    return sorted(entries, key=lambda entry: entry.id)


async def refuse_what_ended(services: Services, entries: Sequence[AuditedChange]) -> Restoration:
    """End runs and logins of a restored database, revoke keys and disable users. A second call changes nothing.

    Args:
        services: The services on the restored database, which no other process uses.
        entries: The entries from :func:`read_export` since the backup, perhaps with older entries.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    now = services.clock.now()
    refused_keys = sorted(
        {
            str(entry.target)
            for entry in entries
            if entry.action in _REFUSED_KEY
            or (entry.action == "key.leaked" and entry.details.get("revoked"))
        }
    )
    # The last entry about a user decides.
    last = {
        str(entry.target): entry.action for entry in entries if entry.action in _DISABLED | _ENABLED
    }
    disabled_users = sorted(user_id for user_id, action in last.items() if action in _DISABLED)
    keys = 0
    for key_id in refused_keys:
        record = await services.key_store.find(key_id)
        # A key made after the backup is unknown now.
        if record is None or record.status(now) is not KeyStatus.ACTIVE:
            continue
        # The entry of the restoration names the keys.
        await services.key_store.revoke(
            key_id, owner_id=record.owner_id, at=now, change=lambda _: ()
        )
        keys += 1
    users = 0
    for user_id in disabled_users:
        store = services.service_accounts if is_id(user_id, SERVICE_ACCOUNT) else services.users
        # A user made after the backup is unknown now.
        with suppress(NotFound):
            if not (await store.get(user_id)).disabled:
                await store.change(user_id, disabled=True)
                users += 1
    async with services.db.write() as connection:
        # No worker could answer a request to cancel a running run.
        ended_runs = await connection.execute(
            update(runs)
            .where(runs.c.state.in_((RunState.QUEUED, RunState.RUNNING)))
            .values(
                state=RunState.CANCELLED,
                finished_at=now,
                error=RESTORED,
                claimed_by=None,
                lease_expires_at=None,
            )
        )
        ended_sessions = await connection.execute(
            update(sessions)
            .where(sessions.c.ended_at.is_(None))
            .values(ended_at=now, id_token=None)
        )
        done = Restoration(ended_runs.rowcount, ended_sessions.rowcount, keys, users)
        if done != Restoration(0, 0, 0, 0):
            change = Change(connection, None, now, services.audit)
            await change.record(
                "database.restored",
                None,
                runs=done.runs,
                sessions=done.sessions,
                keys=refused_keys,
                users=disabled_users,
            )
    return done


async def list_actions(services: Services, entries: Sequence[AuditedChange]) -> list[str]:
    """The changes since the backup that `after-restore` does not repeat, oldest first.

    Args:
        services: The services on the restored database.
        entries: As for :func:`refuse_what_ended`.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with services.db.read() as connection:
        # Entries before the oldest one were purged.
        oldest = await connection.scalar(select(func.min(audit.c.id)))
        found = await connection.execute(
            select(audit.c.id, audit.c.at).where(audit.c.action.in_(_NOT_REPEATED))
        )
        known = {(row.id, row.at) for row in found}
    return [
        f"{entry.at:{TIME}} {entry.action} {entry.target or ''}".rstrip()
        for entry in entries
        if entry.action in _NOT_REPEATED
        and (entry.id, entry.at) not in known
        and entry.id >= (oldest or 0)
    ]
