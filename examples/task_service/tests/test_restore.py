"""A restored backup: what was open then ends, and what was refused since is refused again."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from examples.task_service.tests.accounts_support import PASSWORD, principal
from examples.task_service.tests.service_process import run
from examples.task_service.tests.service_support import refused_with
from sqlalchemy import delete, select, update

from msk_auth.errors import ConfigurationError
from task_service.accounts.audit import AuditQuery
from task_service.cli import main
from task_service.db import schema
from task_service.restore import (
    RESTORED,
    Restoration,
    list_actions,
    read_export,
    refuse_what_ended,
)
from task_service.services import Services
from task_service.tasks.models import NewTask, RunState
from task_service.tasks.worker_runs import WorkerRuns

pytestmark = pytest.mark.anyio

NEVER = "AAAAAAAAAAAA"


def line(number: int, action: str, target: str | None, **details: Any) -> str:
    at = f"2026-01-01T00:00:{number:02}Z"
    entry = {"id": number, "at": at, "action": action, "target": target, "details": details}
    return json.dumps(entry)


async def test_runs_and_logins_of_a_backup_end(services: Services) -> None:
    user = await services.users.create("ann", ["user"], password=PASSWORD)
    begun = await services.login.log_in("ann", PASSWORD)
    ann = principal(user)
    task = await services.tasks.create(
        ann, NewTask(name="hello", handler="command", params={"argv": ["echo", "hello"]})
    )
    running, queued = [await services.runs.request(ann, task.id) for _ in range(2)]
    this = schema.runs.c.id == running.id
    async with services.db.write() as connection:
        await connection.execute(update(schema.sessions).values(id_token="of the provider"))
        values = {"state": RunState.RUNNING, "claimed_by": "worker", "attempt": 1}
        await connection.execute(
            update(schema.runs).where(this).values(lease_expires_at=services.clock.now(), **values)
        )

    assert await refuse_what_ended(services, []) == Restoration(2, 1, 0, 0)
    for run_id in (running.id, queued.id):
        run = await services.runs.get(ann, run_id)
        assert (run.state, run.error) == (RunState.CANCELLED, RESTORED)
        assert run.finished_at is not None
    async with services.db.read() as connection:
        row = (await connection.execute(select(schema.runs).where(this))).one()
        ended = (await connection.execute(select(schema.sessions))).one()
    assert (row.claimed_by, row.lease_expires_at) == (None, None)
    assert ended.ended_at is not None
    assert ended.id_token is None
    with refused_with("token_revoked"):
        await services.authenticator.authenticate([f"Bearer {begun.token}"])
    (entry,) = (await services.audit.list(AuditQuery(action="database.restored"))).items
    assert dict(entry.details) == {"runs": 2, "sessions": 1, "keys": [], "users": []}

    assert await refuse_what_ended(services, []) == Restoration(0, 0, 0, 0)
    assert len((await services.audit.list(AuditQuery(action="database.restored"))).items) == 1
    # New runs are executed as ever.
    again = await services.runs.request(ann, task.id)
    worker_runs = WorkerRuns(
        services.db,
        services.clock,
        services.config,
        services.worker.notifications,
        worker_id="worker",
        lease=timedelta(seconds=15),
    )
    (acquired,) = await worker_runs.acquire(1)
    assert acquired.run_id == again.id


async def test_what_the_audit_log_refuses_is_refused_again(services: Services) -> None:
    users = [await services.users.create(name, ["user"], password=None) for name in ("ann", "bob")]
    ann, bob = (replace(principal(user), authenticated_at=services.clock.now()) for user in users)
    authenticator = services.authenticator
    revoked, leaked, reported, kept = [
        await authenticator.create_key(ann, name=str(number)) for number in range(4)
    ]
    of_bob = await authenticator.create_key(bob, name="bob's")
    entries = read_export(
        [
            line(9, "user.disabled", users[1].id),
            line(8, "user.enabled", users[1].id),
            line(7, "user.enabled", users[0].id),
            line(6, "user.disabled", users[0].id),
            line(5, "user.disabled", "usr_0000000000000000"),
            line(4, "key.leaked", reported.record.id, revoked=False),
            line(3, "key.leaked", leaked.record.id, revoked=True),
            line(2, "key.deleted", NEVER),
            line(1, "key.revoked", revoked.record.id),
        ]
    )
    assert await refuse_what_ended(services, entries) == Restoration(0, 0, 2, 1)
    for key, refusal in (
        (revoked, "key_revoked"),
        (leaked, "key_revoked"),
        (of_bob, "owner_disabled"),
    ):
        with refused_with(refusal):
            await authenticator.authenticate([f"Bearer {key.value.reveal()}"])
    for key in (reported, kept):
        await authenticator.authenticate([f"Bearer {key.value.reveal()}"])
    assert await refuse_what_ended(services, entries) == Restoration(0, 0, 0, 0)


async def test_service_accounts_that_ended_since_are_disabled_again(services: Services) -> None:
    accounts = services.service_accounts
    disabled, deleted, enabled = [
        await accounts.create(name) for name in ("disabled", "deleted", "enabled")
    ]
    entries = read_export(
        [
            line(5, "service_account.disabled", "svc_0000000000000000"),
            line(4, "service_account.enabled", enabled.id),
            line(3, "service_account.disabled", enabled.id),
            line(2, "service_account.deleted", deleted.id),
            line(1, "service_account.disabled", disabled.id),
        ]
    )
    assert await refuse_what_ended(services, entries) == Restoration(0, 0, 0, 2)
    refused = [(await accounts.get(one.id)).disabled for one in (disabled, deleted, enabled)]
    assert refused == [True, True, False]
    assert await refuse_what_ended(services, entries) == Restoration(0, 0, 0, 0)


async def exported(services: Services) -> list[str]:
    """The audit log as its export has it: the newest entry first."""
    pages = services.audit.pages(AuditQuery())
    return [entry.model_dump_json() async for page in pages for entry in page]


async def test_changes_that_are_not_repeated_are_listed(services: Services) -> None:
    # What the backup has.
    await services.config.update({"run_retention_days": 7})
    ann, bob = [
        await services.users.create(name, ["user"], password=PASSWORD) for name in ("ann", "bob")
    ]
    acts = replace(principal(ann), authenticated_at=services.clock.now())
    kept, revoked = [
        (await services.authenticator.create_key(acts, name=name)).record.id
        for name in ("kept", "revoked")
    ]
    account = await services.service_accounts.create("bot")
    last = (await services.audit.list(AuditQuery())).items[0].id
    # What happened since, oldest first.
    since = [
        ("user.roles_changed", ann.id, True),
        ("user.created", "usr_0000000000000000", True),
        ("user.password_changed", bob.id, True),
        ("config.changed", None, True),
        ("key.rotated", kept, True),
        ("key.updated", kept, True),
        ("key.expiry_set", revoked, True),
        ("key.revoked", revoked, False),  # it is revoked again
        ("service_account.described", account.id, False),  # no right depends on it
        ("service_account.deleted", account.id, False),  # it is disabled again
        ("service_account.created", "svc_0000000000000000", True),
    ]
    lines = [
        line(last + number, action, target) for number, (action, target, _) in enumerate(since, 1)
    ]
    entries = read_export([*reversed(lines), *await exported(services)])
    expected = [
        f"2026-01-01T00:00:{last + number:02}.000000Z {action} {target or ''}".rstrip()
        for number, (action, target, is_listed) in enumerate(since, 1)
        if is_listed
    ]
    for _ in range(2):
        await refuse_what_ended(services, entries)
        assert await list_actions(services, entries) == expected


async def test_a_change_whose_entry_was_purged_is_not_listed(services: Services) -> None:
    await services.config.update({"run_retention_days": 7})
    export = await exported(services)
    await services.users.create("ann", ["user"], password=PASSWORD)
    async with services.db.write() as connection:
        await connection.execute(
            delete(schema.audit).where(schema.audit.c.action == "config.changed")
        )
    assert await list_actions(services, read_export(export)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "id,at,action",
        "[]",
        '{"id": 1}',
        "1",
        "",
        "[" * 100_000,
        line(1, "key.revoked", "k").replace('"id": 1', '"id": "1"'),
        line(1, "key.leaked", "k").replace("{}", "null"),
        line(1, "key.revoked", "k").replace('"k"', "7"),
        line(1, "x", None).replace("2026-01-01T", "yesterday "),
    ],
)
def test_a_file_that_is_no_export_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^Line 2 is not an entry"):
        read_export(io.StringIO(f"{line(1, 'x', None)}\n{wrong}\n"))


def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.write_bytes(f"{line(1, 'x', None)}\n".encode() + b"SQLite format 3\0\xd3\xff\n")
    done = run(tmp_path / "data", "after-restore", "--audit", str(backup))
    assert done.exit_code == 1
    assert done.stderr == (
        "Error: Line 2 is not an entry of the audit log. Export it with format=jsonl.\n"
    )


def test_the_command_reports_what_it_did_and_what_is_left(tmp_path: Path) -> None:
    env = {"TASK_SERVICE_DATA_DIR": str(tmp_path / "data")}
    CliRunner().invoke(main, ["users", "create", "ann", "--role", "user"], env=env)
    done = CliRunner().invoke(main, ["after-restore"], env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("The newest entry of the audit log here: 2")
    assert (
        "Runs cancelled: 0. Logins ended: 0.\nKeys revoked: 0. Users disabled: 0.\n" in done.stdout
    )
    assert "run: task-service after-restore --audit FILE" in done.stdout
    done = CliRunner().invoke(
        main, ["after-restore", "--audit", "-"], env=env, input=line(9, "config.changed", None)
    )
    assert "Not repeated: 2026-01-01T00:00:09.000000Z config.changed" in done.stdout
    assert "are active" not in done.stdout
