"""The reference of the API: a third-party renderer, which sends requests to the service only."""

from __future__ import annotations

import pytest
from playwright.async_api import Locator, Page, expect

from .conftest import Open
from .support import LOOKS, LiveService, assert_accessible

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


async def test_an_operation_is_tried_as_the_person_who_is_logged_in(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page(scheme="dark")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{live_service.url}/keys")
    await page.get_by_role("button", name="Account menu").click()
    await page.get_by_role("link", name="API reference", exact=True).click()
    await page.get_by_role("link", name="Show operations").press("Enter")
    operation = page.locator("#operations-Account-get_me")
    await operation.get_by_role("button", name="/api/auth/me").first.click()
    await operation.get_by_role("button", name="Try it out").click()
    await operation.get_by_role("button", name="Execute").click()
    body = operation.locator(".live-responses-table .highlight-code")
    await expect(body).to_contain_text('"username": "admin"')
    assert {url for url in asked if not url.startswith((live_service.url, "data:"))} == set()
    # Nothing secret is shown or kept: the browser sends the cookie by itself.
    await expect(operation.locator(".curl")).not_to_contain_text("Authorization")
    await expect(page.get_by_role("button", name="Authorize")).to_have_count(0)
    assert await page.evaluate("localStorage.length") == 0
    # What is open can be linked to.
    assert page.url == f"{live_service.url}/docs/operations#/Account/get_me"
    # Its colours follow those of the system, also while the page is open.
    dark = page.locator("html.dark-mode")
    for scheme, count in (("dark", 1), ("light", 0), ("dark", 1)):
        await page.emulate_media(color_scheme=scheme)
        await expect(dark).to_have_count(count)


async def test_the_reference_is_accessible_in_every_scheme(
    open_page: Open, live_service: LiveService
) -> None:
    """The markup and the colours of a renderer that is not ours, with what the page adds to both."""
    page, _ = await open_page()
    await page.goto(f"{live_service.url}/docs")
    await assert_accessible(page, "API reference without its operations")
    await page.goto(f"{live_service.url}/docs/operations")
    # With parameters, with a body, with a warning's colours, and with an answer, among others that are closed.
    for operation in ("Tasks-list_tasks", "Tasks-create_task", "Tasks-delete_task"):
        await _open(page, operation)
    tried = await _open(page, "Account-get_me")
    await tried.get_by_role("button", name="Execute").click()
    await expect(tried.locator(".live-responses-table .highlight-code")).to_be_visible()
    await page.get_by_role("button", name="Schemas").click()
    await assert_accessible(page, "API reference, light")
    # Other colours, but the same tree.
    await page.emulate_media(color_scheme="dark")
    await expect(page.locator("html.dark-mode")).to_have_count(1)
    await assert_accessible(page, "API reference, dark", LOOKS)
    await page.emulate_media(forced_colors="active")
    await assert_accessible(page, "API reference, forced colours", LOOKS)


async def _open(page: Page, operation: str) -> Locator:
    block = page.locator(f"#operations-{operation}")
    await block.locator("button[aria-expanded=false]").first.click()
    await block.get_by_role("button", name="Try it out").click()
    return block
