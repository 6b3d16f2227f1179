"""The live configuration: what is accepted, that it takes effect at once, and that every change is recorded."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from examples.task_service.tests.accounts_support import (
    World,
    compose,
    principal,
)
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert

from msk_auth import KeyLimits
from msk_auth.errors import InputInvalid
from task_service.accounts.config import ServiceConfig, _validated
from task_service.db import schema

pytestmark = pytest.mark.anyio

DEFAULTS = {
    "max_keys_per_user": 100,
    "default_key_lifetime_days": None,
    "max_key_lifetime_days": None,
    "keep_key_addresses": False,
    "keep_key_user_agents": False,
    "key_activity_days": 90,
    "session_lifetime_minutes": 720,
    "session_idle_minutes": 60,
    "run_timeout_seconds": 300,
    "max_concurrent_runs_per_user": 4,
    "run_retention_days": 30,
    "allowed_commands": ["echo"],
}


def _refused(patch: dict[str, Any]) -> list[str]:
    with pytest.raises(InputInvalid) as caught:
        _validated(patch)
    assert all(error.message for error in caught.value.errors)
    return [error.field for error in caught.value.errors]


def test_the_defaults() -> None:
    assert ServiceConfig().model_dump(mode="json") == DEFAULTS
    assert ServiceConfig().key_limits() == KeyLimits(max_active=100)


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_value_of_another_kind_or_size_is_refused_by_name(name: str) -> None:
    wrong: list[Any] = ["5", 5.5, 5.0, 0, -1, 10**30, {}, [1], "x", float("nan")]
    wrong.append(1 if isinstance(DEFAULTS[name], bool) else True)
    if not name.endswith("lifetime_days"):
        wrong.append(None)
    for value in wrong:
        fields = _refused({name: value})
        assert {field.partition(".")[0] for field in fields} == {name}, value


def test_there_are_at_most_200_commands_and_each_once() -> None:
    assert _refused({"allowed_commands": [f"c{number}" for number in range(201)]}) == [
        "allowed_commands"
    ]
    assert _validated({"allowed_commands": ["b", "a", "b"]}).allowed_commands == ("b", "a")


def test_unknown_settings_and_all_other_mistakes_are_named_together() -> None:
    assert _refused({"colour": 1, "run_retention_days": 0, "max_keys_per_user": "1"}) == [
        "max_keys_per_user",
        "run_retention_days",
        "colour",
    ]


def test_the_default_lifetime_is_within_the_longest() -> None:
    assert _refused({"default_key_lifetime_days": 91, "max_key_lifetime_days": 90}) == [
        "default_key_lifetime_days"
    ]
    config = _validated({"default_key_lifetime_days": 90, "max_key_lifetime_days": 90})
    assert config.key_limits() == KeyLimits(100, timedelta(days=90), timedelta(days=90))


@given(
    st.dictionaries(
        st.sampled_from([*DEFAULTS, "other"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()),
    )
)
def test_every_patch_is_accepted_whole_or_refused_by_field(patch: dict[str, Any]) -> None:
    try:
        config = _validated(patch)
    except InputInvalid:
        return

    shown = config.model_dump(mode="json")
    assert json.loads(json.dumps(shown)) == shown
    assert _validated(shown).model_dump(mode="json") == shown


async def test_a_change_takes_effect_at_once_in_every_process(it: World) -> None:
    other = compose(it.db, it.passwords)
    before = await other.config.current()
    changed = await it.config.update({"max_keys_per_user": 3, "allowed_commands": ["date"]})
    after = await other.config.current()

    assert before == ServiceConfig()
    assert after == changed
    assert (after.max_keys_per_user, after.allowed_commands) == (3, ("date",))
    assert (await other.config.key_limits()).max_active == 3
    assert it.lease_waits


async def test_a_setting_can_be_changed_again_and_back(lite: World) -> None:
    for value in (5, None, 7):
        changed = await lite.config.update({"default_key_lifetime_days": value})
        assert changed.default_key_lifetime_days == value
        assert await lite.config.current() == changed


async def test_each_change_is_recorded_with_old_and_new_value_and_none_if_nothing_changed(
    lite: World,
) -> None:
    admin = await lite.user("root", "admin")
    patch = {"run_timeout_seconds": 60, "allowed_commands": ["echo", "date"]}
    await lite.config.update(patch, by=principal(admin))
    await lite.config.update(patch, by=principal(admin))
    entries = [row for row in await lite.rows("audit", "id") if row["action"] == "config.changed"]

    assert [(entry["actor_id"], entry["target"], entry["details"]) for entry in entries] == [
        (admin.id, "allowed_commands", {"old": ["echo"], "new": ["echo", "date"]}),
        (admin.id, "run_timeout_seconds", {"old": 300, "new": 60}),
    ]
    assert {row["updated_by"] for row in await lite.rows("settings")} == {admin.id}


async def test_two_changes_that_do_not_go_together_cannot_both_be_made(it: World) -> None:
    other = compose(it.db.with_timeout(30), it.passwords)
    results = await asyncio.gather(
        it.config.update({"default_key_lifetime_days": 60}),
        other.config.update({"max_key_lifetime_days": 30}),
        return_exceptions=True,
    )
    await other.db.close()

    assert sorted(type(result).__name__ for result in results) == ["InputInvalid", "ServiceConfig"]


async def test_stored_settings_that_cannot_be_used_count_as_never_changed(
    it: World, caplog: pytest.LogCaptureFixture
) -> None:
    stored = {"max_keys_per_user": -5, "run_timeout_seconds": 60, "of_the_future": [1]}
    async with it.db.write() as connection:
        await connection.execute(
            insert(schema.settings),
            [
                {"name": name, "value": value, "updated_at": it.clock.now()}
                for name, value in stored.items()
            ],
        )
    config = await it.config.current()

    assert (config.max_keys_per_user, config.run_timeout_seconds) == (100, 60)
    assert "['max_keys_per_user', 'of_the_future']" in caplog.text
    repaired = await it.config.update({"max_keys_per_user": 50})
    assert repaired.max_keys_per_user == 50
