"""The same service on PostgreSQL: the API, and a worker in a process of its own beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    expect,
    make_template,
    problem,
    running_service,
    running_worker,
)
from tests.databases import postgres_database

pytestmark = pytest.mark.anyio


@pytest.fixture
def database_url() -> Iterator[str]:
    with postgres_database() as url:
        yield url.set(drivername="postgresql").render_as_string(hide_password=False)


async def test_the_api_on_postgresql(tmp_path: Path, database_url: str) -> None:
    await make_template(tmp_path / "template", database_url=database_url)
    async with running_service(
        tmp_path / "template", tmp_path / "data", database_url=database_url
    ) as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        created = await ada.new_key(name="CI")
        program = service.caller(created["key"])
        task = await program.new_task()
        headers = {"Idempotency-Key": "once"}
        answers = await asyncio.gather(
            *(program.post(f"/api/tasks/{task['id']}/run", headers=headers) for _ in range(5))
        )
        (run_id,) = {expect(answer, 202)["id"] for answer in answers}
        assert (await program.wait_for_run(run_id))["state"] == "succeeded"
        text = await program.get(f"/api/runs/{run_id}/log", headers={"Accept": "text/plain"})
        assert text.text == "hello\n"
        expect(await ada.patch("/api/admin/config", {"max_keys_per_user": 3}), 200)
        keys = await asyncio.gather(*(ada.post("/api/keys", {"name": "k"}) for _ in range(6)))
        assert sorted(key.status_code for key in keys) == [201] * 2 + [409] * 4
        expect(await ada.post(f"/api/keys/{created['id']}/revoke"), 200)
        assert problem(await program.get("/api/tasks")) == (401, "key_revoked")
        actions = {e["action"] for e in expect(await ada.get("/api/admin/audit"), 200)["items"]}
        assert {"key.created", "key.revoked", "run.requested", "config.changed"} <= actions
        assert expect(await service.caller().get("/readyz"), 200) == {"status": "ok"}


async def test_a_worker_executes_what_others_took(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_template(tmp_path / "template", database_url=database_url)

    async def execute_nothing(_: object, stop: asyncio.Event) -> None:
        await stop.wait()

    monkeypatch.setattr("task_service.worker.Worker.execute_runs", execute_nothing)
    async with running_service(
        tmp_path / "template", tmp_path / "data", database_url=database_url
    ) as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        task = await ada.new_task()
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        async with running_worker(tmp_path / "of the worker", database_url):
            assert (await ada.wait_for_run(run["id"]))["state"] == "succeeded"
