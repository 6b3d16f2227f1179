"""Reports of failed runs: signed, sent at least once by one of the processes, and again until the receiver takes them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests import runs_support
from examples.task_service.tests.runs_support import ANN, acquire, database, failing
from examples.task_service.tests.test_handlers_http_request import answer, serving
from httpx2 import ConnectError

from msk_auth.errors import StoreUnavailable
from task_service import failure_webhook
from task_service.failure_webhook import FailureWebhook, post
from task_service.tasks.models import RunState
from task_service.tasks.worker_runs import MAX_ATTEMPTS, Outcome

pytestmark = pytest.mark.anyio

URL = "https://hooks.example.org/T0/secret-path"
SECRET = bytes(range(32))
DAY = 86_400


@dataclass
class Receiver:
    """Who gets the reports, and what it answers."""

    status: int = 200
    error: Exception | None = None
    got: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)
    has_some: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        assert url == URL
        self.got.append((body, headers))
        self.has_some.set()
        if self.error is not None:
            raise self.error
        return self.status

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body, _ in self.got]


@dataclass(kw_only=True)
class World(runs_support.World):
    receiver: Receiver = field(default_factory=Receiver)
    task_id: str = ""

    def webhook(self) -> FailureWebhook:
        return FailureWebhook(
            self.db,
            self.clock,
            url=URL,
            secret=SECRET,
            base_url="https://tasks.example.org",
            post=self.receiver.post,
        )

    async def ended(self, outcome: Outcome) -> str:
        """A run that a worker has ended so."""
        run = await self.runs.request(ANN, self.task_id)
        worker = self.worker()
        assert await worker.finish(await acquire(worker), outcome)
        return run.id


@pytest.fixture(params=["sqlite", "postgresql"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with database(request.param, tmp_path) as db:
        made = World(db)
        made.task_id = (await made.new_task(name="Nightly", params={}, timeout_seconds=7)).id
        yield made


async def test_a_failed_run_is_reported_once_and_signed(world: World) -> None:
    run_id = await world.ended(Outcome(RunState.FAILED, exit_code=3, error="It broke."))
    for webhook in (world.webhook(), world.webhook()):
        await webhook.send_due()

    [(body, headers)] = world.receiver.got
    assert json.loads(body) == {
        "type": "run.failed",
        "timestamp": "2026-01-01T00:00:00Z",
        "data": {
            "run_id": run_id,
            "task_id": world.task_id,
            "task_name": "Nightly",
            "owner_id": ANN.owner.id,
            "state": "failed",
            "attempt": 1,
            "exit_code": 3,
            "error": "It broke.",
            "url": f"https://tasks.example.org/tasks/{world.task_id}?run={run_id}",
        },
    }
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == f"run_{run_id}"
    assert headers["webhook-timestamp"] == "1767225600"
    signed = b"run_%s.1767225600.%s" % (run_id.encode(), body)
    expected = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest())
    assert headers["webhook-signature"] == f"v1,{expected.decode()}"


async def test_its_repr_has_neither_the_secret_nor_the_address(world: World) -> None:
    text = repr(world.webhook())
    assert "secret-path" not in text
    assert repr(SECRET) not in text


async def test_a_timed_out_run_is_reported_and_others_are_not(world: World) -> None:
    timed_out = await world.ended(Outcome(RunState.TIMED_OUT, error="Too long."))
    await world.ended(Outcome(RunState.SUCCEEDED, exit_code=0))
    await world.ended(Outcome(RunState.CANCELLED))
    await world.webhook().send_due()
    assert [(each["type"], each["data"]["run_id"]) for each in world.receiver.reports] == [
        ("run.timed_out", timed_out)
    ]


async def test_a_run_that_brought_down_every_worker_is_reported(world: World) -> None:
    run = await world.runs.request(ANN, world.task_id)
    for _ in range(MAX_ATTEMPTS):
        worker = world.worker()
        await acquire(worker)
        assert await worker.reclaim(await worker.observed_leases()) == 1
    await world.webhook().send_due()
    [report] = world.receiver.reports
    assert (report["data"]["run_id"], report["data"]["state"]) == (run.id, "failed")


@pytest.mark.parametrize(
    "receiver",
    [Receiver(status=500), Receiver(error=ConnectError("no")), Receiver(error=TimeoutError())],
)
async def test_a_report_that_was_not_taken_is_repeated_later_and_later(
    world: World, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    world.receiver = Receiver(receiver.status, receiver.error)
    run_id = await world.ended(Outcome(RunState.FAILED))
    sent: list[int] = []
    for second in range(0, 1000, 20):
        before = len(world.receiver.got)
        await world.webhook().send_due()
        sent += [second] * (len(world.receiver.got) - before)
        world.clock.advance(20)
    assert sent == [0, 60, 120, 240, 480, 960]
    assert {headers["webhook-id"] for _, headers in world.receiver.got} == {f"run_{run_id}"}
    # Such an address is a secret itself.
    assert run_id in caplog.text
    assert "secret-path" not in caplog.text

    world.receiver.status, world.receiver.error = 204, None
    for _ in range(2):
        world.clock.advance(1000)
        await world.webhook().send_due()
    assert len(world.receiver.got) == len(sent) + 1


async def test_a_run_that_failed_more_than_a_day_ago_is_not_reported(world: World) -> None:
    # As where the webhook is switched on later.
    for _ in range(3):
        await world.ended(Outcome(RunState.FAILED))
    world.clock.advance(DAY + 1)
    new = await world.ended(Outcome(RunState.FAILED))
    for _ in range(2):
        await world.webhook().send_due()
    assert [each["data"]["run_id"] for each in world.receiver.reports] == [new]


async def test_an_outage_of_the_database_loses_no_report(world: World) -> None:
    run_id = await world.ended(Outcome(RunState.FAILED))
    with failing(world.db), pytest.raises(StoreUnavailable):
        await world.webhook().send_due()
    stopping = asyncio.Event()
    sending = asyncio.create_task(world.webhook().send_periodically(stopping))
    await world.receiver.has_some.wait()
    stopping.set()
    await sending
    assert [each["data"]["run_id"] for each in world.receiver.reports] == [run_id]


async def test_a_report_is_posted_as_it_is_and_no_redirect_is_followed() -> None:
    async with serving(lambda _: answer("307 Elsewhere", b"", "Location: /other")) as server:
        assert await post(f"{server.url}hook", b"{}", {"webhook-id": "run_1"}) == 307
    [request] = server.requests
    assert request.startswith("POST /hook HTTP/1.1\r\n")
    assert "webhook-id: run_1\r\n" in request
    assert request.endswith("\r\n\r\n{}")


async def test_a_receiver_that_never_ends_its_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failure_webhook, "_TIMEOUT_SECONDS", 0.3)

    left, closed = asyncio.Event(), asyncio.Event()

    async def trickle(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n")
        with suppress(ConnectionError):
            for number in range(40):
                writer.write(b"x-%d: 1\r\n" % number)
                await writer.drain()
                if left.is_set():
                    break
                await asyncio.sleep(0.05)
            writer.write(b"\r\n")
        writer.close()
        closed.set()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        try:
            with pytest.raises(TimeoutError):
                await post(f"http://127.0.0.1:{port}/hook", b"{}", {})
        finally:
            left.set()
            await closed.wait()
