"""The roles and their permissions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

Role: TypeAlias = Literal["user", "viewer", "admin"]

ADMIN: Final = "admin"
MANAGE_USERS: Final = "admin:users"
MANAGE_KEYS: Final = "admin:keys"

RECENT_LOGIN: Final = timedelta(minutes=15)
"""The maximum age of a login that makes an administrator, changes roles, makes a password link, creates a service account, or
makes, changes or revokes the key of another owner (RFC 9470)."""

_USER: Final = frozenset({"tasks:read", "tasks:write", "tasks:run", "keys:manage"})

ROLE_PERMISSIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "user": _USER,
        "viewer": frozenset({"tasks:read", "tasks:read_all", "keys:manage"}),
        ADMIN: _USER
        | {
            "tasks:read_all",
            "tasks:manage_all",
            "runs:cancel_all",
            "runs:prioritize",
            "admin:config",
            MANAGE_USERS,
            MANAGE_KEYS,
            "admin:audit",
        },
    }
)
"""The permissions of each role. A user has the permissions of all assigned roles."""

KEY_PERMISSIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tasks:read": "See your tasks, their runs and their output",
        "tasks:run": "Start and cancel runs of your tasks",
        "tasks:write": "Create, change and delete your tasks",
        "tasks:read_all": "See the tasks and runs of all users",
        "tasks:manage_all": "Also change, run, delete and hand over the tasks of all users",
        "runs:cancel_all": "Cancel the runs of all users",
        "runs:prioritize": "Start urgent runs, which go before those of other users",
    }
)
"""The permissions that an API key can have, in words; the others need a login."""
