"""Users, sessions and audit entries as the API shows them. Times are RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from .audit import AuditEntry
from .config import config_json
from .sessions import LoginSession
from .users import User

__all__ = ["audit_json", "config_json", "session_json", "user_json"]


def user_json(user: User) -> dict[str, Any]:
    """A user, for administrators."""
    return {
        "id": user.id,
        "username": user.username,
        "roles": list(user.roles),
        "disabled": user.disabled,
        "created_at": _rfc3339(user.created_at),
        "last_login_at": _rfc3339(user.last_login_at),
        "has_password": user.has_password,
    }


def session_json(session: LoginSession, *, current_id: str | None) -> dict[str, Any]:
    """A session, for its user; `current` marks the one of the request itself."""
    return {
        "id": session.id,
        "authenticated_at": _rfc3339(session.authenticated_at),
        "last_seen_at": _rfc3339(session.last_seen_at),
        "expires_at": _rfc3339(session.expires_at),
        "address": session.address,
        "user_agent": session.user_agent,
        "current": session.id == current_id,
    }


def audit_json(entry: AuditEntry) -> dict[str, Any]:
    """An entry of the audit log, for administrators."""
    return {
        "id": entry.id,
        "at": _rfc3339(entry.at),
        "action": entry.action,
        "actor": None
        if entry.actor_id is None
        else {"id": entry.actor_id, "username": entry.actor_name},
        "credential": {"kind": entry.credential_kind, "id": entry.credential_id},
        "target": entry.target,
        "address": entry.address,
        "details": dict(entry.details),
    }


def _rfc3339(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
