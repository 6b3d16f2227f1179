"""Pictures of every page of the task service: wide and on a phone, light and dark.

`python -m docs.tools.screenshots docs/service/assets/pages` starts the service and Chromium, fills the pages, and writes a WebP for each.
The page "The pages" of the documentation shows them. Those of the guides are taken by `test_screenshots.py`.
"""

from __future__ import annotations

import asyncio
import base64
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
from examples.task_service.tests.browser.test_screenshots import (
    ALLOW,
    PREPARE,
    answer_activity,
)
from playwright.async_api import BrowserContext, Page, async_playwright, expect

WIDTHS: Final = {"wide": (1120, 700), "phone": (390, 700)}
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
QUALITY: Final = 82
PAGES: Final = {
    "keys": "/keys",
    "account": "/account",
    "api": "/docs/operations",
    "config": "/admin/config",
    "users": "/admin/users",
    "service-accounts": "/admin/service-accounts",
    "all-keys": "/admin/keys",
    "audit": "/admin/audit",
    "system": "/admin/system",
    "missing": "/no-such-page",
}

_PEOPLE: Final = """async () => {
    const send = (path, body) => fetch(`/api/admin${path}`, {
        method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
    });
    for (const [username, role] of [["mira.sand", "user"], ["tom.okafor", "user"], ["lena.brandt", "admin"]]) await send("/users", {username, role});
    for (const [name, description] of [
        ["archive-copy", "Copies the archive to the other site every night"],
        ["deploy-bot", "Deploys from the pipeline; ask mira.sand"],
        ["status-page", "Reads the state of tasks for the status page"],
    ]) await send("/service-accounts", {name, description});
}"""


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
    for script in (ALLOW, PREPARE, _PEOPLE):
        await page.evaluate(script)
    await page.goto("/keys")
    for name in ("deploy on main", "nightly build on ci-3", "monitoring"):
        await create_key(page, name)
    await page.goto("/admin/service-accounts")
    await page.get_by_role("link", name="deploy-bot").click()
    for name in ("staging", "production"):
        await create_key(page, name)
    await page.reload()
    await expect(page.get_by_role("row")).to_have_count(3)
    await _take(page, folder, "service-account")
    for name, path in PAGES.items():
        await page.goto(path)
        await expect(page.locator("[aria-busy=true]")).to_have_count(0)
        if name == "api":
            await expect(page.locator(".opblock").first).to_be_visible()
        await _take(page, folder, name)
    await page.goto("/keys")
    await page.get_by_role("button", name="New API Key").click()
    await page.get_by_label("Name", exact=True).fill("release pipeline")
    await _take(page, folder, "new-key")
    await page.keyboard.press("Escape")
    await page.route("**/activity?days=30", answer_activity)
    await page.get_by_role("link", name="monitoring").click()
    await expect(page.get_by_role("table", name="History")).to_be_visible()
    await _take(page, folder, "key")
    await page.goto("/tasks")
    await expect(page.get_by_role("row")).to_have_count(6)
    await _take(page, folder, "tasks")
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
    # Playwright writes PNG and JPEG only. A WebP has a third of the bytes.
    chromium = await page.context.new_cdp_session(page)
    await page.evaluate("document.activeElement.style.caretColor = 'transparent'")
    for width, (pixels, height) in WIDTHS.items():
        await page.set_viewport_size({"width": pixels, "height": height})
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await page.evaluate("() => new Promise((drawn) => setTimeout(drawn, 300))")
            wanted = {"format": "webp", "quality": QUALITY}
            picture = await chromium.send("Page.captureScreenshot", wanted)
            (folder / f"{name}-{width}-{scheme}.webp").write_bytes(
                base64.b64decode(picture["data"])
            )
    await chromium.detach()


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("Install Chromium (Debian: apt-get install chromium).")
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1])))
