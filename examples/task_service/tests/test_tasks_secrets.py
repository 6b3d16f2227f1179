"""Secrets in parameters: write-only through the API, sealed in the database, sent by runs, and in no log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.runs_support import (
    ANN,
    PARAMETER_KEYS,
    Anything,
    AnythingParams,
    accounts_of,
    database,
    fresh_postgres,
)
from examples.task_service.tests.service_process import run
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    USER_PASSWORD,
    Caller,
    Service,
    expect,
    make_template,
    problem,
    running_service,
    running_worker,
    wrong_fields,
)
from examples.task_service.tests.test_handlers_http_request import Server
from examples.task_service.tests.test_handlers_http_request import serving as serving_target
from sqlalchemy import select, update

from msk_auth import SystemClock
from msk_auth.errors import ConfigurationError
from task_service import cli
from task_service.db.engine import Database
from task_service.db.schema import runs, tasks
from task_service.handlers import HandlerEnvironment, HandlerRegistry
from task_service.settings import Settings
from task_service.tasks.models import NewTask, TaskChanges
from task_service.tasks.parameters import TaskParameters
from task_service.tasks.tasks import Tasks

pytestmark = pytest.mark.anyio

MASK = {"secret": True}
VALUE = "hunter2-and-more"
HEADERS = {"Authorization": f"Bearer {VALUE}", "X-Short": "1"}


@pytest.fixture
async def target() -> AsyncIterator[Server]:
    """A server that remembers the requests and repeats each of them in its answer."""

    def repeat(request: str) -> bytes:
        return f"HTTP/1.1 418 No {VALUE}\r\nConnection: close\r\n\r\n{request}".encode()

    async with serving_target(repeat) as server:
        yield server


@asynccontextmanager
async def serving(template: Path, folder: Path, **settings: Any) -> AsyncIterator[Service]:
    """A service that may reach the target."""
    async with running_service(
        template, folder, http_allowed_networks="127.0.0.0/8", **settings
    ) as service:
        yield service


def with_headers(url: str = "https://tasks.invalid/", **more: Any) -> dict[str, Any]:
    return {
        "name": "call",
        "handler": "http_request",
        "params": {"url": url, "headers": HEADERS},
    } | more


async def stored_params(service: Service, task_id: str) -> Any:
    async with service.services.db.read() as connection:
        return await connection.scalar(select(tasks.c.params).where(tasks.c.id == task_id))


def assert_absent(value: str, folder: Path) -> None:
    """The value is in no file of the folder: not in the database, its WAL or its shared memory."""
    files = [path for path in folder.iterdir() if path.is_file()]
    assert any("sqlite3" in path.name for path in files)
    assert [path.name for path in files if value.encode() in path.read_bytes()] == []


# What is shown


async def test_a_secret_is_masked_for_every_credential(
    service: Service, admin: Caller, user: Caller, user_key: Caller
) -> None:
    created = await user.post("/api/tasks", with_headers())
    task = expect(created, 201)
    assert task["params"] == {"url": "https://tasks.invalid/", "headers": MASK}
    run = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
    answers = [created]
    for caller in (admin, user, user_key):
        answers += [
            await caller.get(f"/api/tasks/{task['id']}"),
            await caller.get("/api/tasks?recent_runs=5"),
            await caller.get(f"/api/tasks/{task['id']}/runs"),
            await caller.get(f"/api/runs/{run['id']}"),
            await caller.get("/api/runs"),
        ]
    answers += [
        await user.patch(f"/api/tasks/{task['id']}", {"name": "other"}),
        await user.post(f"/api/runs/{run['id']}/rerun"),
        await admin.get("/api/admin/audit"),
        await admin.get("/api/admin/audit/export?format=jsonl"),
    ]
    assert [answer.status_code for answer in answers if answer.status_code >= 300] == []
    for answer in answers:
        assert VALUE not in answer.text
        assert "sealed" not in answer.text
    details = expect(await admin.get(f"/api/runs/{run['id']}"), 200)
    assert details["params"] == task["params"]


# What changes keep


async def test_a_secret_stays_until_another_value_is_sent(
    service: Service, admin: Caller, user: Caller
) -> None:
    task = expect(await user.post("/api/tasks", with_headers()), 201)
    path = f"/api/tasks/{task['id']}"
    before = (await stored_params(service, task["id"]))["headers"]

    for params in (
        {"url": "https://tasks.invalid/2"},
        {"url": "https://tasks.invalid/3", "headers": MASK},
        {**task["params"]},
    ):
        assert expect(await user.patch(path, {"params": params}), 200)["params"]["headers"] == MASK
        assert (await stored_params(service, task["id"]))["headers"] == before
    expect(await user.patch(path, {"handler": "http_request"}), 200)
    assert (await stored_params(service, task["id"]))["headers"] == before

    other = {"url": "https://tasks.invalid/", "headers": {"Authorization": "another"}}
    assert expect(await user.patch(path, {"params": other}), 200)["params"]["headers"] == MASK
    assert (await stored_params(service, task["id"]))["headers"] != before
    gone = {"url": "https://tasks.invalid/", "headers": {}}
    assert expect(await user.patch(path, {"params": gone}), 200)["params"]["headers"] == {}

    query = f"/api/admin/audit?target={task['id']}"
    entries = expect(await admin.get(query), 200)["items"]
    changed = [entry["details"].get("secrets") for entry in reversed(entries)][1:]
    assert changed == [None, None, None, None, ["headers"], ["headers"]]


async def test_a_mask_is_no_value(service: Service, user: Caller) -> None:
    masked = with_headers(params={"url": "https://tasks.invalid/", "headers": MASK})
    response = await user.post("/api/tasks", masked)
    assert problem(response) == (422, "input_invalid")
    assert wrong_fields(response) == {"params.headers"}
    # With another handler there is nothing to keep either.
    task = await user.new_task()
    change = {"handler": "http_request", "params": masked["params"]}
    response = await user.patch(f"/api/tasks/{task['id']}", change)
    assert wrong_fields(response) == {"params.headers"}
    # Nor is the form in which secrets are stored.
    task = expect(await user.post("/api/tasks", with_headers()), 201)
    sealed = await stored_params(service, task["id"])
    response = await user.post("/api/tasks", with_headers(params=sealed))
    assert wrong_fields(response) == {"params.headers"}
    response = await user.patch(f"/api/tasks/{task['id']}", {"params": sealed})
    assert wrong_fields(response) == {"params.headers"}


async def test_what_is_kept_is_validated_with_the_rest(user: Caller) -> None:
    task = expect(await user.post("/api/tasks", with_headers()), 201)
    response = await user.patch(f"/api/tasks/{task['id']}", {"params": {"headers": MASK}})
    assert wrong_fields(response) == {"params.url"}
    wrong = {"url": "https://tasks.invalid/", "headers": {"Host": VALUE}}
    response = await user.patch(f"/api/tasks/{task['id']}", {"params": wrong})
    assert wrong_fields(response) == {"params.headers"}
    assert VALUE not in response.text


async def test_a_change_at_the_same_time_brings_no_replaced_secret_back(tmp_path: Path) -> None:
    waits, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Anything):
        async def check(self, params: AnythingParams) -> None:
            if params.do == "wait":
                waits.set()
                await go_on.wait()

    async def no_commands() -> tuple[str, ...]:
        return ()

    async with database("sqlite", tmp_path) as db:
        registry = HandlerRegistry([Slow(HandlerEnvironment(no_commands))])
        parameters = TaskParameters(registry, PARAMETER_KEYS)
        made = Tasks(accounts_of(db, SystemClock()), parameters)
        new = NewTask(name="Task", handler="anything", params={"token": "the first"})
        task = await made.create(ANN, new)
        changes = TaskChanges(params={"do": "wait"})
        slow = asyncio.create_task(made.patch(ANN, task.id, changes))
        await waits.wait()
        await made.patch(ANN, task.id, TaskChanges(params={"token": "the second"}))
        go_on.set()
        assert (await slow).params == {"do": "wait", "token": MASK}
        async with db.read() as connection:
            stored = await connection.scalar(select(tasks.c.params))
    opened = await parameters.prepare(task.id, "anything", stored)
    assert opened.secrets == {"the second"}


async def test_an_api_key_of_the_service_may_be_a_secret_and_nothing_else(user: Caller) -> None:
    key = (await user.new_key())["key"]
    headers = {"Authorization": f"Bearer {key}"}
    secret = with_headers(params={"url": "https://tasks.invalid/", "headers": headers})
    expect(await user.post("/api/tasks", secret), 201)
    readable = with_headers(params={"url": f"https://tasks.invalid/?key={key}"})
    assert wrong_fields(await user.post("/api/tasks", readable)) == {"params"}


# Who may keep a secret


async def test_another_user_cannot_send_a_secret_elsewhere(
    service: Service, admin: Caller, user: Caller
) -> None:
    task = expect(await user.post("/api/tasks", with_headers()), 201)
    path = f"/api/tasks/{task['id']}"
    elsewhere = {"url": "https://attacker.example/"}
    for params in (elsewhere, {**elsewhere, "headers": MASK}):
        response = await admin.patch(path, {"params": params})
        assert problem(response) == (422, "input_invalid")
        assert wrong_fields(response) == {"params.headers"}
    # What sends it nowhere else is allowed, and so is a secret of one's own.
    expect(await admin.patch(path, {"name": "renamed", "params": task["params"]}), 200)
    own = {**elsewhere, "headers": {"X-Own": "of the administrator"}}
    expect(await admin.patch(path, {"params": own}), 200)
    # It is the administrator's now.
    response = await user.patch(path, {"params": {"url": "https://tasks.invalid/"}})
    assert wrong_fields(response) == {"params.headers"}


async def test_a_new_owner_cannot_send_a_secret_elsewhere(
    service: Service, admin: Caller, user: Caller, target: Server
) -> None:
    task = expect(await user.post("/api/tasks", with_headers()), 201)
    path = f"/api/tasks/{task['id']}"
    run = expect(await user.post(f"{path}/run"), 202)
    ada = (await admin.me())["user"]["id"]
    given = expect(await admin.patch(path, {"owner_id": ada}), 200)
    assert given["params"] == task["params"]
    elsewhere = {"params": {"url": target.url}}
    assert wrong_fields(await admin.patch(path, elsewhere)) == {"params.headers"}
    response = await admin.post(f"/api/runs/{run['id']}/rerun", elsewhere)
    assert wrong_fields(response) == {"params.headers"}
    # It goes on as it is.
    expect(await admin.post(f"/api/runs/{run['id']}/rerun"), 202)
    assert target.requests == []


async def test_a_key_that_only_runs_tasks_cannot_guess_a_secret(
    service: Service, user: Caller
) -> None:
    task = expect(await user.post("/api/tasks", with_headers()), 201)
    run = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
    runner = await service.key_for(user, scopes=["tasks:run"])
    path = f"/api/runs/{run['id']}/rerun"
    expect(await runner.post(path), 202)
    expect(await runner.post(path, {"params": task["params"]}), 202)
    right = {"params": {"url": "https://tasks.invalid/", "headers": HEADERS}}
    assert problem(await runner.post(path, right)) == (403, "permission_denied")


# At rest, and in runs


async def test_a_run_sends_a_secret_that_is_in_no_file_and_no_log(
    template: Path, tmp_path: Path, target: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "data"
    async with serving(template, folder) as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        task = expect(await ulf.post("/api/tasks", with_headers(target.url)), 201)
        run = expect(await ulf.post(f"/api/tasks/{task['id']}/run"), 202)
        done = await ulf.wait_for_run(run["id"])
        assert f"authorization: Bearer {VALUE}" in target.requests[0]
        # The server has repeated it in its reason and in its body.
        assert done["error"] == "HTTP 418 No ***"
        log = await ulf.get(f"/api/runs/{run['id']}/log", headers={"Accept": "text/plain"})
        assert "authorization: Bearer ***" in log.text
        assert "x-short: 1" in log.text
        for again in ({}, {"params": {"url": f"{target.url}again"}}):
            run = expect(await ulf.post(f"/api/runs/{run['id']}/rerun", again), 202)
            await ulf.wait_for_run(run["id"])
        assert "GET /again" in target.requests[2]
        assert VALUE in target.requests[2]
        assert_absent(VALUE, folder)
    assert_absent(VALUE, folder)
    assert VALUE not in caplog.text


async def test_no_part_of_a_secret_is_in_a_long_error(template: Path, tmp_path: Path) -> None:
    """The server repeats the secret in an answer that is no HTTP, and that its error quotes."""
    # The error's 500 characters end in the middle of it.
    repeated = f"{'x' * 415}{VALUE}\r\n\r\n".encode()
    async with (
        serving_target(lambda _: repeated) as target,
        serving(template, tmp_path / "data") as service,
    ):
        ulf = await service.log_in("ulf", USER_PASSWORD)
        task = expect(await ulf.post("/api/tasks", with_headers(target.url)), 201)
        run = expect(await ulf.post(f"/api/tasks/{task['id']}/run"), 202)
        error = (await ulf.wait_for_run(run["id"]))["error"]
    assert error.startswith("The request failed (RemoteProtocolError): illegal status line: ")
    assert error.endswith("xxx***')")


async def test_a_moved_secret_is_not_opened(service: Service, admin: Caller, user: Caller) -> None:
    """A user who can write to the database cannot read a secret by moving it to a task of their own."""
    theirs = expect(await admin.post("/api/tasks", with_headers()), 201)
    own = expect(await user.post("/api/tasks", with_headers()), 201)
    moved = (await stored_params(service, theirs["id"]))["headers"]
    kept = (await stored_params(service, own["id"]))["headers"]
    changed = {"sealed": {**kept["sealed"], "text": kept["sealed"]["text"][:-8] + "AAAAAAA="}}
    another = {"sealed": {**kept["sealed"], "by": "usr_another"}}
    malformed = {"sealed": {**kept["sealed"], "text": "?"}}
    for value in (moved, changed, another, malformed):
        params = {"url": "https://tasks.invalid/", "headers": value}
        async with service.services.db.write() as connection:
            await connection.execute(
                update(tasks).where(tasks.c.id == own["id"]).values(params=params)
            )
        run = expect(await user.post(f"/api/tasks/{own['id']}/run"), 202)
        done = await user.wait_for_run(run["id"])
        assert done["state"] == "failed"
        assert "was not sealed for this task" in done["error"]


# Rotation, upgrade, restore


def rotate(folder: Path, *, forget: bool = False) -> None:
    """Give the secrets in a data folder another pepper, which is current from now on."""
    file = folder / "secrets.json"
    content = json.loads(file.read_text())
    fresh = f"2027-01-01-{secrets.token_hex(2)}"
    if forget:
        content["peppers"]["values"].clear()
    content["peppers"]["values"][fresh] = secrets.token_urlsafe(32)
    content["peppers"]["current"] = fresh
    file.write_text(json.dumps(content))


@pytest.fixture(params=["sqlite", "postgresql"])
async def older(
    request: pytest.FixtureRequest, template: Path, tmp_path: Path
) -> AsyncIterator[tuple[Path, str]]:
    """A data folder and a database with a task and a run of an older version, which stored secrets in plain text."""
    folder = tmp_path / "data"
    if request.param == "sqlite":
        url = f"sqlite:///{folder / 'task-service.sqlite3'}"
        await _fill(template, folder, url)
        yield folder, url
    else:
        async with fresh_postgres() as url:
            await make_template(tmp_path / "made", database_url=url)
            await _fill(tmp_path / "made", folder, url)
            yield folder, url


async def _fill(template: Path, folder: Path, url: str) -> None:
    async with serving(template, folder, database_url=url, execute_runs="never") as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        task = expect(await ulf.post("/api/tasks", with_headers()), 201)
        expect(await ulf.post(f"/api/tasks/{task['id']}/run"), 202)
        await ulf.new_task()
        plain = {"url": "https://tasks.invalid/", "headers": HEADERS}
        async with service.services.db.write() as connection:
            for table in (tasks, runs):
                await connection.execute(
                    update(table).where(table.c.handler == "http_request").values(params=plain)
                )


async def command(folder: Path, url: str, *words: str) -> tuple[int, str]:
    """The exit code and the output of a command."""
    done = await asyncio.to_thread(run, folder, *words, DATABASE_URL=url)
    assert VALUE not in done.output
    return done.exit_code, done.output


async def stored_everywhere(url: str) -> str:
    """All parameters in a database."""
    db = Database.open(url)
    try:
        async with db.read() as connection:
            found = [
                (await connection.scalars(select(table.c.params))).all() for table in (tasks, runs)
            ]
        return json.dumps(found)
    finally:
        await db.close()


@pytest.mark.slow
async def test_secrets_of_an_older_version_are_masked_and_sealed_by_finish(
    older: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = older
    async with serving(folder, tmp_path / "before", database_url=url) as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        listed = await ulf.get("/api/tasks?sort=name")
        assert VALUE not in listed.text
        found = {task["name"]: task for task in expect(listed, 200)["items"]}["call"]
        assert found["params"]["headers"] == MASK
        # It is the owner's, who changes the rest.
        path = f"/api/tasks/{found['id']}"
        expect(await ulf.patch(path, {"params": {"url": "https://tasks.invalid/"}}), 200)
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        elsewhere = {"params": {"url": "https://attacker.example/"}}
        assert wrong_fields(await ada.patch(path, elsewhere)) == {"params.headers"}
        # A key that only runs tasks may repeat the run.
        (run,) = expect(await ulf.get(f"{path}/runs"), 200)["items"]
        runner = await service.key_for(ulf, scopes=["tasks:run"])
        expect(await runner.post(f"/api/runs/{run['id']}/rerun"), 202)
        assert VALUE in await stored_everywhere(service.services.settings.database_url)
    code, output = await command(folder, url, "doctor")
    assert (code, "run: task-service migrate --finish" in output) == (0, True)
    code, output = await command(folder, url, "migrate")
    assert (code, "run: task-service migrate --finish" in output) == (0, True)
    assert VALUE in await stored_everywhere(url)
    code, output = await command(folder, url, "migrate", "--finish")
    assert (code, "were sealed: 3." in output) == (0, True)
    assert "run: task-service migrate --finish" not in output
    assert VALUE not in await stored_everywhere(url)
    if url.startswith("sqlite"):
        assert_absent(VALUE, folder)
    assert "were sealed" not in (await command(folder, url, "migrate", "--finish"))[1]
    assert (
        "secrets of tasks: are sealed with the current pepper"
        in (await command(folder, url, "doctor"))[1]
    )

    async with serving(folder, tmp_path / "after", database_url=url) as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        path = f"/api/tasks/{found['id']}"
        (run, *_) = expect(await ulf.get(f"{path}/runs"), 200)["items"]
        # The copies of one secret are equal, so it needs no more permission than before.
        runner = await service.key_for(ulf, scopes=["tasks:run"])
        expect(await runner.post(f"/api/runs/{run['id']}/rerun"), 202)


@pytest.mark.slow
async def test_secrets_outlive_the_pepper_that_sealed_them(
    template: Path, tmp_path: Path, target: Server
) -> None:
    async with serving(template, tmp_path / "one") as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        task = expect(await ulf.post("/api/tasks", with_headers(target.url)), 201)
        run = expect(await ulf.post(f"/api/tasks/{task['id']}/run"), 202)
        await ulf.wait_for_run(run["id"])
    rotate(tmp_path / "one")
    async with serving(tmp_path / "one", tmp_path / "two") as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        run = expect(await ulf.post(f"/api/runs/{run['id']}/rerun"), 202)
        await ulf.wait_for_run(run["id"])
    two = tmp_path / "two"
    url = f"sqlite:///{two / 'task-service.sqlite3'}"
    assert "sealed with an earlier pepper" in (await command(two, url, "doctor"))[1]
    assert "were sealed: 3." in (await command(two, url, "migrate", "--finish"))[1]
    # The first pepper is taken out.
    content = json.loads((two / "secrets.json").read_text())
    current = content["peppers"]["current"]
    content["peppers"]["values"] = {current: content["peppers"]["values"][current]}
    (two / "secrets.json").write_text(json.dumps(content))
    async with serving(two, tmp_path / "three") as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        runner = await service.key_for(ulf, scopes=["tasks:run"])
        run = expect(await runner.post(f"/api/runs/{run['id']}/rerun"), 202)
        await ulf.wait_for_run(run["id"])
    assert [VALUE in request for request in target.requests] == [True, True, True]


@pytest.mark.slow
async def test_a_secret_whose_pepper_is_lost_fails_the_run_and_is_entered_again(
    template: Path, tmp_path: Path, target: Server
) -> None:
    async with serving(template, tmp_path / "one") as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        task = expect(await ulf.post("/api/tasks", with_headers(target.url)), 201)
    rotate(tmp_path / "one", forget=True)
    two = tmp_path / "two"
    url = f"sqlite:///{two / 'task-service.sqlite3'}"
    async with serving(tmp_path / "one", two) as service:
        ulf = await service.log_in("ulf", USER_PASSWORD)
        path = f"/api/tasks/{task['id']}"
        run = expect(await ulf.post(f"{path}/run"), 202)
        done = await ulf.wait_for_run(run["id"])
        assert done["state"] == "failed"
        assert "which this process does not have" in done["error"]
        code, output = await command(two, url, "doctor")
        assert (code, "with which some are sealed: their runs fail" in output) == (1, True)
        response = await ulf.patch(path, {"params": {"url": f"{target.url}x"}})
        assert wrong_fields(response) == {"params.headers"}
        expect(await ulf.patch(path, {"params": with_headers(target.url)["params"]}), 200)
        assert (await command(two, url, "doctor"))[0] == 0
        run = expect(await ulf.post(f"{path}/run"), 202)
        await ulf.wait_for_run(run["id"])
    assert [VALUE in request for request in target.requests] == [True]
    # What cannot be opened stays as it is, in the first run.
    code, output = await command(two, url, "migrate", "--finish")
    assert (code, "were sealed" in output) == (0, False)


# Workers


@pytest.mark.slow
async def test_a_worker_opens_secrets_with_the_keys_in_its_environment(
    tmp_path: Path, target: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fresh_postgres() as url:
        await make_template(tmp_path / "made", database_url=url)
        data, none = tmp_path / "data", tmp_path / "of a worker"
        async with serving(
            tmp_path / "made", data, database_url=url, execute_runs="never"
        ) as service:
            ulf = await service.log_in("ulf", USER_PASSWORD)
            task = expect(await ulf.post("/api/tasks", with_headers(target.url)), 201)
            path = f"/api/tasks/{task['id']}/run"
            async with running_worker(none, url):
                done = await ulf.wait_for_run(expect(await ulf.post(path), 202)["id"])
                assert done["state"] == "failed"
                assert "which this process does not have" in done["error"]
                # It executes everything else.
                other = await ulf.new_task()
                run = expect(await ulf.post(f"/api/tasks/{other['id']}/run"), 202)
                assert (await ulf.wait_for_run(run["id"]))["state"] == "succeeded"

            code, line = await command(data, url, "parameter-keys")
            name, _, keys = line.strip().partition("=")
            assert (code, name) == (0, "TASK_SERVICE_PARAMETER_KEYS")
            pepper = json.loads((data / "secrets.json").read_text())["peppers"]["values"]
            assert not [value for value in pepper.values() if value in keys]
            monkeypatch.setenv(name, keys)
            monkeypatch.setenv("TASK_SERVICE_HTTP_ALLOWED_NETWORKS", "127.0.0.0/8")
            async with running_worker(none, url):
                run = expect(await ulf.post(path), 202)
                await ulf.wait_for_run(run["id"])
            assert VALUE in target.requests[0]
            assert (
                "parameter keys: they open the secrets that other processes seal"
                in (await command(data, url, "doctor"))[1]
            )

            other_id = re.sub("^[^=]+", "2020-01-01-none", keys)
            monkeypatch.setenv(name, other_id)
            with pytest.raises(ConfigurationError, match="TASK_SERVICE_PARAMETER_KEYS lacks"):
                await cli._work(Settings(data_dir=none, database_url=url), timedelta(0))
            code, output = await command(data, url, "doctor")
            assert code == 1
            assert f"TASK_SERVICE_PARAMETER_KEYS lacks {next(iter(pepper))}" in output
            monkeypatch.setenv(name, f"{keys}x")
            code, output = await command(data, url, "doctor")
            assert (code, keys in output) == (1, False)
            assert "TASK_SERVICE_PARAMETER_KEYS: write the output" in output
