"""Several processes on one PostgreSQL: each of them sees the changes of the others."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from argon2.profiles import CHEAPEST
from click.testing import CliRunner
from examples.task_service.tests.runs_support import fresh_postgres, migrated
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    Service,
    expect,
    make_template,
    problem,
    run_elsewhere,
    running_service,
    running_worker,
)
from examples.task_service.tests.waiting import eventually
from sqlalchemy import text
from tests.databases import postgres_database

from msk_auth.errors import ConfigurationError
from task_service.accounts.throttle import PER_PAIR
from task_service.app import create_app
from task_service.cli import main
from task_service.db.engine import Database
from task_service.deployment import agree_on_secrets, check_secrets, forget_secrets
from task_service.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@dataclass
class Deployment:
    url: str
    folder: Path
    count: int = 0

    @asynccontextmanager
    async def process(self, **settings: Any) -> AsyncIterator[Service]:
        """One more process that serves, with the same secrets."""
        self.count += 1
        async with running_service(
            self.folder / "template",
            self.folder / f"data {self.count}",
            database_url=self.url,
            **settings,
        ) as service:
            yield service

    @asynccontextmanager
    async def worker(self, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A `task-service worker` in a process of its own, which needs no data folder."""
        without = self.folder / "of a worker"
        async with running_worker(without, self.url, *words) as process:
            yield process
        assert not without.exists()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The name of a database with users in it, and the data folder that goes with it; each test gets a copy."""
    folder = tmp_path_factory.mktemp("machines") / "data"
    with postgres_database() as url:
        plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
        run_elsewhere(make_template(folder, database_url=plain))
        yield str(url.database), folder


@pytest.fixture
async def deployment(prepared: tuple[str, Path], tmp_path: Path) -> AsyncIterator[Deployment]:
    database, folder = prepared
    shutil.copytree(folder, tmp_path / "template")
    async with fresh_postgres(database) as url:
        yield Deployment(url, tmp_path)


async def _execute(service: Service, statement: str) -> None:
    async with service.services.db.write() as connection:
        await connection.execute(text(statement))


async def test_a_key_used_twice_at_once_in_two_processes_makes_one_run(
    deployment: Deployment,
) -> None:
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(deployment.process(execute_runs="never"))
            for _ in range(2)
        ]
        ada = [await service.log_in("ada", ADMIN_PASSWORD) for service in services]
        task = await ada[0].new_task()
        answers = await asyncio.gather(
            *(
                person.post(
                    f"/api/tasks/{task['id']}/run",
                    headers={"Idempotency-Key": f"key {number}".replace(" ", "-")},
                )
                for number in range(3)
                for person in ada * 4
            )
        )
        ids = {expect(answer, 202)["id"] for answer in answers}
        assert len(ids) == 3
        runs = expect(await ada[1].get(f"/api/tasks/{task['id']}/runs"), 200)["items"]
        assert {run["id"] for run in runs} == ids


async def test_guessing_at_two_processes_is_no_way_around_the_limit(deployment: Deployment) -> None:
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(deployment.process(execute_runs="never"))
            for _ in range(2)
        ]
        wrong = {"username": "ada", "password": "not this one"}
        for number in range(PER_PAIR):
            answered = await services[number % 2].caller().post("/api/auth/login", wrong)
            assert problem(answered) == (401, "login_failed")
        for service in services:
            answered = await service.caller().post("/api/auth/login", wrong)
            assert problem(answered) == (429, "too_many_attempts")
            assert 0 < int(answered.headers["retry-after"]) <= 900


async def test_a_server_executes_runs_only_while_there_is_no_worker(deployment: Deployment) -> None:
    async with deployment.process() as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        task = await ada.new_task()
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        assert (await ada.wait_for_run(run["id"]))["state"] == "succeeded"

        assert expect(await ada.get("/api/admin/system"), 200)["worker"]["elsewhere"] == 0
        # It sends no heartbeats: this one counts however long the test takes.
        await _execute(
            service,
            "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() + interval '1 hour')",
        )
        assert expect(await ada.get("/api/admin/system"), 200)["worker"]["elsewhere"] == 1
        runner = service.services.worker.runner
        # It asks once a second whether there is one.
        await eventually(lambda: not runner._may_acquire)
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        # Longer than it ever waits before it looks again.
        await asyncio.sleep(1.5)
        assert expect(await ada.get(f"/api/runs/{run['id']}"), 200)["state"] == "queued"

        await _execute(
            service, "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 minute'"
        )
        assert (await ada.wait_for_run(run["id"]))["state"] == "succeeded"


async def test_never_executes_no_runs_and_always_listens_to_the_queue(
    deployment: Deployment,
) -> None:
    async with deployment.process(execute_runs="never") as front:
        ada = await front.log_in("ada", ADMIN_PASSWORD)
        task = await ada.new_task()
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        await asyncio.sleep(1.5)
        assert expect(await ada.get(f"/api/runs/{run['id']}"), 200)["state"] == "queued"
        async with deployment.process(execute_runs="always"):
            assert (await ada.wait_for_run(run["id"]))["state"] == "succeeded"


async def test_a_run_elsewhere_is_followed_cancelled_within_seconds_and_given_back(
    deployment: Deployment,
) -> None:
    async with (
        deployment.process(execute_runs="never") as service,
        deployment.worker("--concurrency", "1", "--grace", "0") as worker,
    ):
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        expect(await ada.patch("/api/admin/config", {"allowed_commands": ["sh"]}), 200)
        # Longer than any wait of this test.
        argv = ["sh", "-c", "echo begun; sleep 600"]
        task = await ada.new_task(params={"argv": argv})
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        principal = await service.services.authenticator.authenticate(
            [ada.http.headers["authorization"].encode()]
        )
        output = ""
        async with asyncio.timeout(60):
            # As the route does; the test's transport gives an answer only when it is complete.
            async for item in service.services.logs.follow(run["id"]):
                output += getattr(item, "text", "")
                if output == "begun\n":
                    break
        await service.services.runs.get(principal, run["id"])
        cancelled = expect(await ada.post(f"/api/runs/{run['id']}/cancel"), 200)
        assert cancelled["state"] == "running"
        assert (await ada.wait_for_run(run["id"]))["state"] == "cancelled"

        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        await ada.wait_for_run(run["id"], "running")
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
        again = expect(await ada.get(f"/api/runs/{run['id']}"), 200)
        assert (again["state"], again["attempt"]) == ("queued", 0)


async def test_a_second_signal_ends_a_worker_that_waits_for_its_runs(
    deployment: Deployment,
) -> None:
    async with (
        deployment.process(execute_runs="never") as service,
        deployment.worker("--grace", "86400") as worker,
    ):
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        expect(await ada.patch("/api/admin/config", {"allowed_commands": ["sleep"]}), 200)
        task = await ada.new_task(params={"argv": ["sleep", "600"]})
        run = expect(await ada.post(f"/api/tasks/{task['id']}/run"), 202)
        await ada.wait_for_run(run["id"], "running")
        worker.send_signal(signal.SIGTERM)

        async def has_left_the_queue() -> bool:
            system = expect(await ada.get("/api/admin/system"), 200)
            return system["worker"]["elsewhere"] == 0

        await eventually(has_left_the_queue)
        assert worker.returncode is None
        worker.send_signal(signal.SIGINT)
        # Not the status of a signal's default, which the first process of a container does not have.
        assert await asyncio.wait_for(worker.wait(), 60) == 0
        assert expect(await ada.get(f"/api/runs/{run['id']}"), 200)["state"] == "running"


async def test_a_process_with_other_secrets_does_not_serve(
    deployment: Deployment, tmp_path: Path
) -> None:
    async with deployment.process(execute_runs="never") as service:
        other = create_app(
            Settings(data_dir=tmp_path / "foreign", database_url=deployment.url),
            password_hashing=CHEAPEST,
        )
        with pytest.raises(ConfigurationError, match=r"Copy secrets\.json from a machine"):
            async with other.router.lifespan_context(other):
                pass
        await other.state.services.close()

        await forget_secrets(service.services.db)
        other = create_app(
            Settings(data_dir=tmp_path / "foreign", database_url=deployment.url),
            password_hashing=CHEAPEST,
        )
        async with other.router.lifespan_context(other):
            pass
        # A process with the old ones does not start again.
        with pytest.raises(ConfigurationError, match="or differ from those of the keys and logins"):
            await service.services.agree_on_secrets()


@pytest.mark.parametrize("words", [["migrate"], ["users", "create", "eva", "--role", "user"]])
async def test_the_first_command_on_a_database_decides_on_its_secrets(
    tmp_path: Path, words: list[str]
) -> None:
    async with fresh_postgres() as url:
        for folder, code in (("first", 0), ("second", 1)):
            environment = {
                "TASK_SERVICE_DATA_DIR": str(tmp_path / folder),
                "TASK_SERVICE_DATABASE_URL": url,
            }
            done = await asyncio.to_thread(CliRunner().invoke, main, words, env=environment)
            assert done.exit_code == code, done.output
        assert "Copy secrets.json from a machine that serves it" in done.output


OLD, KEY = {"old": "a" * 64}, {"token:k1": "b" * 64}
AGREED = OLD | KEY


@pytest.mark.parametrize(
    ("old", "kept", "new"), [("old", KEY, "new"), ("token:k1", OLD, "token:k2")]
)
async def test_a_new_secret_beside_an_old_one_is_recognised(
    agreeing: Database, old: str, kept: dict[str, str], new: str
) -> None:
    for fingerprints, fits in (
        (AGREED, True),
        (AGREED | {new: "f" * 64}, True),
        (kept, False),
        (kept | {new: "f" * 64}, False),
        (AGREED | {old: "0" * 64}, False),
    ):
        await forget_secrets(agreeing)
        await agree_on_secrets(agreeing, AGREED, frozenset())
        if fits:
            await agree_on_secrets(agreeing, fingerprints, frozenset())
        else:
            with pytest.raises(ConfigurationError, match="or differ from those of the keys"):
                await agree_on_secrets(agreeing, fingerprints, frozenset())


async def test_a_process_that_lacks_what_another_one_uses_does_not_start(
    agreeing: Database,
) -> None:
    """The whole rotation of a pepper, and that of the key of the logins."""
    db = agreeing
    for old, new in (("old", "new"), ("token:k1", "token:k2")):
        (other,) = AGREED.keys() - {old}
        both = AGREED | {new: "f" * 64}
        before, after = frozenset({old, other}), frozenset({new, other})
        shorter = {name: value for name, value in both.items() if name != old}
        await forget_secrets(db)
        await agree_on_secrets(db, AGREED, before)
        # Distributed and not used: a process without it may still start.
        await agree_on_secrets(db, both, before)
        await agree_on_secrets(db, AGREED, before)
        await agree_on_secrets(db, both, after)
        with pytest.raises(ConfigurationError, match=f"lacks {new}, which other processes use"):
            await agree_on_secrets(db, AGREED, before)
        with pytest.raises(ConfigurationError, match=f"lacks {new}, which"):
            await check_secrets(db, AGREED)
        await agree_on_secrets(db, both, before)
        with pytest.raises(ConfigurationError, match=f"lacks {old}, which"):
            await agree_on_secrets(db, shorter, after)
        await forget_secrets(db)
        await agree_on_secrets(db, shorter, after)
        await agree_on_secrets(db, both, after)


@pytest.fixture
async def agreeing(tmp_path: Path) -> AsyncIterator[Database]:
    """A database on which processes agree on their secrets."""
    async with migrated("postgresql", tmp_path) as url:
        db = Database.open(url)
        yield db
        await db.close()


async def test_one_process_on_sqlite_loads_no_queue_and_no_tracing(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from task_service.app import create_app\n"
        "from task_service.settings import Settings\n"
        "assert 'psycopg' not in sys.modules\n"
        "async def main():\n"
        "    app = create_app(Settings(data_dir=Path(sys.argv[1])))\n"
        "    async with app.router.lifespan_context(app):\n"
        "        queue = {'procrastinate', 'psycopg'}\n"
        "        tracing = {'task_service.tracing', 'opentelemetry.sdk', 'google.protobuf'}\n"
        "        print(*sorted((queue | tracing) & sys.modules.keys()))\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(tmp_path / "data")), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode().split() in ([], ["psycopg"])
