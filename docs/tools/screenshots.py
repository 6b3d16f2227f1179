"""Pictures of every page of the task service: wide and on a phone, light and dark.

`python docs/tools/screenshots.py FOLDER` starts the service and Chromium, fills the pages, and writes a PNG for each. They are
for looking at; those of the documentation are taken by `test_screenshots.py`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

from examples.task_service.tests.browser.support import (
    ARGUMENTS,
    CHROMIUM,
    PASSWORD,
    USERNAME,
    LiveService,
    create_key,
    log_in,
)
from examples.task_service.tests.browser.test_screenshots import ALLOW, PREPARE
from playwright.async_api import BrowserContext, Page, async_playwright, expect

WIDTHS: Final = {"wide": 1280, "phone": 390}
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PAGES: Final = {
    "tasks": "/tasks",
    "keys": "/keys",
    "account": "/account",
    "api": "/docs",
    "config": "/admin/config",
    "users": "/admin/users",
    "all-keys": "/admin/keys",
    "audit": "/admin/audit",
    "system": "/admin/system",
    "missing": "/no-such-page",
}

_NEWEST: Final = (
    """async (path) => (await (await fetch(`/api${path}?limit=1`)).json()).items[0].id"""
)


async def main(folder: Path) -> None:
    """Write the pictures into a folder."""
    with tempfile.TemporaryDirectory() as data:
        service = LiveService(Path(data))
        try:
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                async with await browser.new_context(base_url=service.url) as context:
                    await _public(context, service, folder)
                    await _behind_the_login(context, folder)
                await browser.close()
        finally:
            service.stop()


async def _public(context: BrowserContext, service: LiveService, folder: Path) -> None:
    page = await context.new_page()
    await page.goto("/login")
    await _take(page, folder, "login")
    await page.goto(f"/set-password#{service.token}")
    await expect(page.get_by_label("New password")).to_be_visible()
    await _take(page, folder, "set-password")
    service.set_first_password()
    await page.goto("/login")
    await log_in(page, USERNAME, PASSWORD)
    await page.wait_for_url("**/tasks")
    await page.close()


async def _behind_the_login(context: BrowserContext, folder: Path) -> None:
    page = await context.new_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW)
    await page.evaluate(PREPARE)
    await page.goto("/keys")
    for name in ("deploy on main", "nightly build on ci-3", "monitoring"):
        await create_key(page, name)
    for name, path in PAGES.items():
        await page.goto(path)
        await expect(page.locator("[aria-busy=true]")).to_have_count(0)
        if name == "api":
            await expect(page.locator(".opblock").first).to_be_visible()
        await _take(page, folder, name)
    await page.goto("/keys")
    key = await page.evaluate(_NEWEST, "/keys")
    await page.get_by_role("button", name="New API Key").click()
    await _take(page, folder, "new-key")
    await page.keyboard.press("Escape")
    await page.get_by_role("checkbox").first.check()
    await _take(page, folder, "keys-selected")
    await page.goto(f"/keys/{key}")
    await expect(page.get_by_role("table")).to_be_visible()
    await _take(page, folder, "key")
    await page.goto("/tasks")
    await page.get_by_role("button", name="New task").click()
    await _take(page, folder, "new-task")
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("option", name="Nightly report")).to_be_visible()
    await _take(page, folder, "go-to")
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="Nightly report").click()
    await expect(page.get_by_role("log")).not_to_be_empty()
    await _take(page, folder, "task")


async def _take(page: Page, folder: Path, name: str) -> None:
    for width, pixels in WIDTHS.items():
        await page.set_viewport_size({"width": pixels, "height": 844})
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            file = folder / f"{name}-{width}-{scheme}.png"
            await page.screenshot(path=file, animations="disabled", caret="hide")


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("Install Chromium (Debian: apt-get install chromium).")
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1])))
