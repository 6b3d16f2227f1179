"""The configuration that administrators change while the service runs.

It is read from the database each time, so a change takes effect immediately, in every process.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select

from msk_auth import KeyLimits, Principal
from msk_auth.errors import InputInvalid
from task_service.db import schema
from task_service.db.engine import lock_table
from task_service.handlers.command import (
    DEFAULT_ALLOWED_COMMANDS,
    LISTED_COMMAND,
    check_listed_command,
    harmless_of,
)
from task_service.validation import input_invalid

from .changes import Accounts

_log = logging.getLogger(__name__)

MAX_SESSION_LIFETIME: Final = timedelta(days=30)
"""The longest session an administrator can allow, and so the longest lifetime of a login token."""

_NOT_PERMITTED: Final = (
    "This process executes runs, and such a command could read the service's secrets. Let workers execute them"
    " (TASK_SERVICE_EXECUTE_RUNS=never here), or accept the risk with TASK_SERVICE_COMMANDS=listed."
)

_SETTINGS = schema.settings.c
_MINUTE: Final = timedelta(minutes=1)


def _each_once(commands: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(commands))


_Days = Annotated[int, Field(ge=1, le=3650)]
_Minutes = Annotated[int, Field(ge=1, le=MAX_SESSION_LIFETIME // _MINUTE)]
_Command = Annotated[
    str,
    AfterValidator(check_listed_command),
    Field(json_schema_extra={"pattern": f"^({LISTED_COMMAND})$"}),
]


class ServiceConfig(BaseModel):
    """The settings at one moment.

    Attributes:
        max_keys_per_user: The maximum number of a user's active API keys.
        default_key_lifetime_days: The lifetime of a key that requests none; None means that such a key does not expire.
        max_key_lifetime_days: The longest lifetime of a key; None means no limit, and permits keys that do not expire.
        keep_key_addresses: Whether the service keeps the address of a key's last request.
        keep_key_user_agents: Whether the service keeps the `User-Agent` of a key's last request.
        key_activity_days: How long the service keeps a key's last request and its number of requests on each day.
        session_lifetime_minutes: The maximum lifetime of a session, even if it is used.
        session_idle_minutes: The maximum time between two requests of a session.
        run_timeout_seconds: The maximum duration of a run, and the default timeout of a task.
        max_concurrent_runs_per_user: How many runs of a user's tasks execute at once; others stay queued.
        run_retention_days: How long the service keeps finished runs and their logs.
        allowed_commands: The commands that the handler `command` may run: absolute paths, or bare names.
    """

    # Strict: "100", 100.0 and true are not numbers of keys.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_keys_per_user: Annotated[int, Field(ge=1, le=100_000)] = 100
    default_key_lifetime_days: _Days | None = None
    max_key_lifetime_days: _Days | None = None
    keep_key_addresses: bool = False
    keep_key_user_agents: bool = False
    key_activity_days: _Days = 90
    session_lifetime_minutes: _Minutes = 720
    session_idle_minutes: _Minutes = 60
    run_timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    max_concurrent_runs_per_user: Annotated[int, Field(ge=1, le=100)] = 4
    run_retention_days: Annotated[int, Field(ge=1, le=3650)] = 30
    allowed_commands: Annotated[
        tuple[_Command, ...], Field(max_length=200), AfterValidator(_each_once)
    ] = DEFAULT_ALLOWED_COMMANDS

    def key_limits(self) -> KeyLimits:
        """The limits of new keys."""
        return KeyLimits(
            max_active=self.max_keys_per_user,
            default_lifetime=_days(self.default_key_lifetime_days),
            max_lifetime=_days(self.max_key_lifetime_days),
        )


class ConfigStore:
    """Reads and changes the configuration.

    Args:
        accounts: The database of the changed settings; other settings have their defaults.
        permits_listed_commands: False if this process may execute only the default commands: then others cannot be allowed.
    """

    def __init__(
        self,
        accounts: Accounts,
        *,
        permits_listed_commands: bool = True,
    ) -> None:
        self._accounts = accounts
        self._permits_listed_commands = permits_listed_commands
        self._read_settings = accounts.db.prepare(select(_SETTINGS.name, _SETTINGS.value))

    async def current(self) -> ServiceConfig:
        """The present settings."""
        rows = await self._read_settings()
        return _from_stored({row.name: row.value for row in rows})

    async def key_limits(self) -> KeyLimits:
        """The present limits of new keys, for the library's authenticator."""
        return (await self.current()).key_limits()

    async def update(
        self, patch: Mapping[str, Any], *, by: Principal[Any] | None = None
    ) -> ServiceConfig:
        """Change some settings. When this returns, every process uses them.

        Args:
            patch: The names of settings and their new JSON values.
            by: The administrator.

        Raises:
            InputInvalid: A setting is unknown, a value is invalid, or two values conflict; nothing was changed.
        """
        async with self._accounts.narrow(by) as change:
            connection = change.connection
            # Two concurrent valid changes may conflict.
            await lock_table(connection, schema.settings)
            rows = await connection.execute(select(_SETTINGS.name, _SETTINGS.value))
            old = _from_stored({row.name: row.value for row in rows}).model_dump(mode="json")
            config = _validated({**old, **patch})
            permitted = (
                self._permits_listed_commands
                or harmless_of(config.allowed_commands) == config.allowed_commands
            )
            if "allowed_commands" in patch and not permitted:
                raise InputInvalid.of("allowed_commands", _NOT_PERMITTED)
            new = config.model_dump(mode="json")
            for name in sorted(name for name in new if new[name] != old[name]):
                values = {
                    "value": new[name],
                    "updated_at": change.now,
                    "updated_by": None if by is None else by.owner.id,
                }
                put = self._accounts.db.insert(schema.settings).values(name=name, **values)
                await connection.execute(
                    put.on_conflict_do_update(index_elements=["name"], set_=values)
                )
                await change.record("config.changed", name, old=old[name], new=new[name])
        return config


def _validated(values: Mapping[str, Any]) -> ServiceConfig:
    try:
        # JSON has lists for tuples. A lone surrogate is not valid JSON text and is refused below.
        config = ServiceConfig.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise input_invalid(error) from None
    longest, default = config.max_key_lifetime_days, config.default_key_lifetime_days
    if longest is not None and default is not None and default > longest:
        raise InputInvalid.of(
            "default_key_lifetime_days",
            f"This is longer than max_key_lifetime_days. Choose {longest} or less.",
        )
    return config


def _from_stored(stored: Mapping[str, Any]) -> ServiceConfig:
    """The settings in the database, with the default for each that this version cannot use."""
    try:
        return ServiceConfig.model_validate_json(json.dumps(stored))
    except ValidationError as error:
        broken = {found["loc"][0] for found in error.errors(include_url=False, include_input=False)}
        _log.error("ignoring invalid settings in the database: %s", sorted(map(str, broken)))
        usable = {name: value for name, value in stored.items() if name not in broken}
        return ServiceConfig.model_validate_json(json.dumps(usable))


def _days(days: int | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)
