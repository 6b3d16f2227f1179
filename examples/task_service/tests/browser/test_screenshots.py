"""The pictures of the guides: `SCREENSHOTS=docs/service/assets pytest -m pages examples/…/browser/test_screenshots.py`.

The README and the front page of the library show `keys-*.png`, which belong in `docs/assets`. `make test-pages` takes all pictures each
time, so that they keep working; they are kept only on request.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from .conftest import Open
from .support import WAIT_MS, LiveService, create_key

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

MAX_BYTES = 150_000

ALLOW = """async () => {
    const {allowed_commands: allowed} = await (await fetch("/api/admin/config")).json();
    await fetch("/api/admin/config", {
        method: "PATCH", headers: {"Content-Type": "application/json"},
        body: JSON.stringify({allowed_commands: [...new Set([...allowed, "echo", "false", "uptime", "sh"])]}),
    });
}"""

PREPARE = """async () => {
    const send = (method, path, body) => fetch(`/api${path}`, {
        method, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
    }).then((answer) => answer.json());
    const finish = async ({id}) => { while (!(await send("GET", `/runs/${id}`)).finished_at) await new Promise((soon) => setTimeout(soon, 50)); };
    const add = async (name, ...commands) => {
        const params = (argv) => ({name, handler: "command", params: {argv}});
        const task = await send("POST", "/tasks", params(commands[0]));
        for (const argv of commands) {
            await send("PATCH", `/tasks/${task.id}`, params(argv));
            await finish(await send("POST", `/tasks/${task.id}/run`));
        }
    };
    await add("Nightly report", ["echo", "report"], ["false"], ["echo", "report"], ["echo", "report"]);
    await add("Check the mirror", ["echo", "ok"], ["echo", "ok"], ["false"]);
    await add("Load of the machine", ["uptime"], ["uptime"]);
    const script = "echo 2026-09.tar; echo 2026-10.tar; echo ::progress 42 Copying 2026-11.tar; sleep 600";
    await send("POST", "/tasks", {name: "Copy the archive", handler: "command", params: {argv: ["sh", "-c", script]}});
}"""


async def answer_activity(route: Route) -> None:
    """A month of requests, on working days most, and some refused ones."""
    now = datetime.now(UTC)
    days = [
        {
            "day": f"{now - timedelta(days=ago):%Y-%m-%d}",
            "accepted": 40 + 37 * (ago * 7 % 5) if ago % 7 > 1 else 12,
            "refused": 18 if ago == 9 else 0,
        }
        for ago in range(28)
    ]
    last = {
        "at": (now - timedelta(minutes=4)).isoformat(),
        "route": "POST /api/tasks/{taskId}/run",
        "address": "203.0.113.7",
        "user_agent": "deploy/1.4",
    }
    await route.fulfill(json={"days": days, "last_request": last})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wanted = os.environ.get("SCREENSHOTS")
    chosen = Path(wanted) if wanted else tmp_path
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


async def _take(page: Page, folder: Path, name: str, *, whole: bool = False) -> None:
    await page.evaluate("document.activeElement.blur()")
    await page.mouse.move(0, 0)
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        file = folder / f"{name}-{scheme}.png"
        picture = await page.screenshot(
            path=file, animations="disabled", caret="hide", full_page=whole
        )
        assert 5_000 < len(picture) < MAX_BYTES


async def test_the_pictures_show_what_people_will_see(
    browser: Browser, live_service: LiveService, open_page: Open, folder: Path
) -> None:
    admin, _ = await open_page()
    await admin.goto("/tasks")
    await admin.evaluate(ALLOW)
    live_service.add_user("mira.sand")
    async with await browser.new_context(
        base_url=live_service.url, viewport={"width": 1120, "height": 560}
    ) as context:
        context.set_default_timeout(WAIT_MS)
        await context.add_cookies([live_service.log_in("mira.sand")])
        page = await context.new_page()
        await page.goto("/tasks")
        await page.evaluate(PREPARE)
        await page.goto("/keys")
        for name in ("deploy on main", "nightly build on ci-3", "monitoring"):
            await create_key(page, name)
        await expect(page.get_by_role("row")).to_have_count(4)
        await _take(page, folder, "keys")
        await page.get_by_role("button", name="New API Key").click()
        await page.get_by_label("Name", exact=True).fill("release pipeline")
        await _take(page, folder, "new-key")
        await page.keyboard.press("Escape")
        await page.route("**/activity?days=30", answer_activity)
        await page.get_by_role("link", name="monitoring").click()
        await expect(page.get_by_role("table", name="History")).to_be_visible()
        await expect(page.get_by_role("region", name="Requests")).to_contain_text("18 refused")
        await _take(page, folder, "key", whole=True)
        await page.goto("/tasks")
        await expect(page.get_by_role("row")).to_have_count(5)
        await _take(page, folder, "tasks")
        await page.get_by_role("link", name="Copy the archive").click()
        await page.get_by_role("button", name="Run").click()
        await expect(page.get_by_role("progressbar")).to_be_visible()
        await expect(page.get_by_role("log")).to_contain_text("2026-10.tar")
        await page.locator("#toast").evaluate("(toast) => toast.hidePopover()")
        await _take(page, folder, "run")
        await page.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("listitem")).to_contain_text("Cancelled")
