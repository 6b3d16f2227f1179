"""The pictures of the documentation: `SCREENSHOTS=docs/assets pytest examples/…/browser/test_screenshots.py`.

They are taken in every test run, so that they can be taken when somebody wants them; only then are they kept.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from .support import LiveService, create_key, log_in

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

MAX_BYTES = 150_000

PREPARE = """async () => {
    const send = (method, path, body) => fetch(`/api${path}`, {
        method, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
    }).then((answer) => answer.json());
    await send("PATCH", "/admin/config", {allowed_commands: ["echo", "false", "uptime"]});
    const finish = async ({id}) => { while (!(await send("GET", `/runs/${id}`)).finished_at); };
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
}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wanted = os.environ.get("SCREENSHOTS")
    chosen = Path(wanted) if wanted else tmp_path
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


async def _take(page: Page, file: Path) -> None:
    await page.evaluate("document.activeElement.blur()")
    picture = await page.screenshot(path=file, animations="disabled", caret="hide")
    assert 5_000 < len(picture) < MAX_BYTES


async def test_the_pictures_show_what_people_will_see(
    browser: Browser, new_service: LiveService, folder: Path
) -> None:
    new_service.set_first_password()
    async with await browser.new_context(
        base_url=new_service.url, viewport={"width": 1120, "height": 560}
    ) as context:
        page = await context.new_page()
        await page.goto("/login")
        await log_in(page)
        await page.wait_for_url("**/tasks")
        await page.evaluate(PREPARE)
        await page.goto("/keys")
        for name in ("deploy on main", "nightly build on ci-3", "monitoring"):
            await create_key(page, name)
        await expect(page.get_by_role("row")).to_have_count(4)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            await page.goto("/tasks")
            await expect(page.get_by_role("row")).to_have_count(5)
            await _take(page, folder / f"tasks-{scheme}.png")
            await page.goto("/keys")
            await expect(page.get_by_role("row")).to_have_count(4)
            await _take(page, folder / f"keys-{scheme}.png")
            await page.get_by_role("button", name="New API Key").click()
            await page.get_by_label("Name", exact=True).fill("release pipeline")
            await _take(page, folder / f"new-key-{scheme}.png")
