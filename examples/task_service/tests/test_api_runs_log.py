"""A run's log as it goes on, over a real connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    expect,
    on_a_port,
    wrong_fields,
)
from examples.task_service.tests.waiting import eventually

from task_service.tasks import run_log

pytestmark = pytest.mark.anyio

TALKATIVE = "for n in 1 2 3; do echo line $n; sleep 0.3; done"
ENDLESS = "while :; do echo on; sleep 0.2; done"


@dataclass(frozen=True)
class Event:
    name: str
    data: dict
    id: str | None


@pytest.fixture(autouse=True)
async def _shell_allowed(admin: Caller) -> None:
    expect(await admin.patch("/api/admin/config", {"allowed_commands": ["sh", "echo"]}), 200)


@asynccontextmanager
async def following(
    origin: str, credential: str, run_id: str, **headers: str
) -> AsyncIterator[httpx2.Response]:
    headers["Authorization"] = f"Bearer {credential}"
    async with (
        httpx2.AsyncClient(base_url=origin, timeout=60) as http,
        http.stream("GET", f"/api/runs/{run_id}/log", headers=headers) as response,
    ):
        yield response


async def events(response: httpx2.Response) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line == "" and fields:
            yield Event(fields["event"], json.loads(fields["data"]), fields.get("id"))
            fields = {}
        elif not line.startswith(":") and line:
            name, _, value = line.partition(": ")
            fields[name] = value


async def start(user: Caller, script: str) -> str:
    task = await user.new_task(params={"argv": ["sh", "-c", script]})
    return expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)["id"]


async def test_the_middle_of_a_long_output_is_said_to_be_missing(
    user: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEAD_BYTES", "TAIL_BYTES"):
        monkeypatch.setattr(run_log, name, 50_000)
    flood = "head -c 600000 /dev/zero | tr '\\0' '\\n'"
    run_id = await start(user, f"echo the beginning; {flood}; echo the end")
    run = await user.wait_for_run(run_id)
    missing = run["log_missing_bytes"]
    assert missing == run["log_missing_lines"]
    answered = await user.get(f"/api/runs/{run_id}/log", headers={"Accept": "text/plain"})
    note = f"\n[{missing:,} bytes of the output are not kept.]\n"
    first, noted, rest = answered.text.partition(note)
    assert noted
    assert first.startswith("the beginning\n")
    assert rest.endswith("\nthe end\n")
    assert len(first + rest) + missing == 600_000 + len("the beginning\nthe end\n")
    assert len(first + rest) >= 100_000 - run_log.MAX_LINE_BYTES


async def test_the_log_comes_as_it_is_written_and_ends_with_the_run(
    service: Service, user: Caller
) -> None:
    run_id = await start(user, TALKATIVE)
    key = (await user.new_key())["key"]
    async with on_a_port(service) as origin, following(origin, key, run_id) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        seen = [event async for event in events(response)]
    *log, end = seen
    assert "".join(event.data["text"] for event in log) == "line 1\nline 2\nline 3\n"
    assert [event.id for event in log] == [str(event.data["seq"]) for event in log]
    assert log[0].data.keys() == {"seq", "stream", "text", "at"}
    assert (end.name, end.data["state"]) == ("end", "succeeded")
    # As in a list: what the run executes is in the answer about it alone.
    run = expect(await user.get(f"/api/runs/{run_id}"), 200)
    assert end.data == {name: run[name] for name in run.keys() - {"handler", "params"}}


async def test_a_client_that_comes_back_misses_nothing(service: Service, user: Caller) -> None:
    run_id = await start(user, TALKATIVE)
    token = user.token
    async with on_a_port(service) as origin:
        async with following(origin, token, run_id) as response:
            first = await anext(events(response))
        async with following(origin, token, run_id, **{"Last-Event-ID": first.id}) as response:
            rest = [event async for event in events(response) if event.name == "log"]
    texts = [first.data["text"], *(event.data["text"] for event in rest)]
    assert "".join(texts) == "line 1\nline 2\nline 3\n"


async def test_a_bad_last_event_id_is_refused(user: Caller) -> None:
    run_id = await start(user, "echo")
    for last in ("-1", "one", "9" * 40, "1;2"):
        response = await user.get(f"/api/runs/{run_id}/log", headers={"Last-Event-ID": last})
        assert wrong_fields(response) == {"Last-Event-ID"}, last


@pytest.mark.parametrize("ended", ["key revoked", "session ended", "owner disabled"])
async def test_a_stream_ends_soon_after_its_credential(
    service: Service, user: Caller, admin: Caller, ended: str
) -> None:
    """Guarantee G2, for an answer that had begun before."""
    run_id = await start(user, ENDLESS)
    created = await user.new_key()
    credential = created["key"] if ended != "session ended" else user.token
    async with (
        on_a_port(service) as origin,
        following(origin, credential, run_id) as response,
        asyncio.timeout(60),
    ):
        stream = events(response)
        assert (await anext(stream)).name == "log"
        match ended:
            case "key revoked":
                expect(await user.post(f"/api/keys/{created['id']}/revoke"), 200)
            case "session ended":
                assert (await user.post("/api/auth/logout")).status_code == 204
            case "owner disabled":
                user_id = (await user.me())["user"]["id"]
                path = f"/api/admin/users/{user_id}"
                expect(await admin.patch(path, {"disabled": True}), 200)
        rest = [event.name async for event in stream]
    # The run goes on, or its end is not for this reader any more.
    assert "end" not in rest


async def test_a_stopping_service_ends_its_streams(service: Service, user: Caller) -> None:
    run_id = await start(user, ENDLESS)
    async with on_a_port(service) as origin, following(origin, user.token, run_id) as response:
        stream = events(response)
        assert (await anext(stream)).name == "log"
        service.services.stopping.set()
        async with asyncio.timeout(60):
            assert "end" not in [event.name async for event in stream]


async def test_a_client_that_leaves_leaves_nothing_behind(service: Service, user: Caller) -> None:
    run_id = await start(user, ENDLESS)
    notifications = service.services.logs.notifications
    async with on_a_port(service) as origin:
        for _ in range(3):
            async with following(origin, user.token, run_id) as response:
                assert (await anext(events(response))).name == "log"
                assert run_id in notifications._subscribers
        await eventually(lambda: run_id not in notifications._subscribers)


async def test_head_of_a_log_does_not_wait_for_the_run(service: Service, user: Caller) -> None:
    run_id = await start(user, ENDLESS)
    async with asyncio.timeout(60):
        response = await user.request("HEAD", f"/api/runs/{run_id}/log")
    assert (response.status_code, response.content) == (200, b"")


async def test_a_silent_log_sends_heartbeats(service: Service, user: Caller) -> None:
    run_id = await start(user, "sleep 600")
    async with on_a_port(service) as origin, following(origin, user.token, run_id) as response:
        line = asyncio.ensure_future(anext(response.aiter_lines()))
        async with asyncio.timeout(60):
            while not line.done():
                # The silence may begin after the headers arrived.
                service.clock.advance(seconds=15)
                await asyncio.wait([line], timeout=0.5)
        assert (await line).startswith(":")


async def test_a_command_reports_its_progress(service: Service, user: Caller) -> None:
    run_id = await start(
        user, "echo copied; echo ::progress 40 Copying; while [ ! -e stop ]; do sleep 0.1; done"
    )
    async with on_a_port(service) as origin, following(origin, user.token, run_id) as response:
        seen = events(response)
        async with asyncio.timeout(60):
            report = await anext(event async for event in seen if event.name == "progress")
        assert report.data == {"fraction": 0.4, "text": "Copying"}
        # A client that reconnects sends the number of the last line of the log.
        assert report.id is None
    expect(await user.post(f"/api/runs/{run_id}/cancel"), 200)
    run = await user.wait_for_run(run_id)
    assert "progress" not in run
    log = await user.get(f"/api/runs/{run_id}/log", headers={"Accept": "text/plain"})
    assert log.text == "copied\n"
