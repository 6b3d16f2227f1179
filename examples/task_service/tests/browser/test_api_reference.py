"""The reference of the API: a third-party renderer, which sends requests to the service only."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from .conftest import Open
from .support import LOOKS, LiveService, assert_accessible

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_an_operation_is_tried_as_the_person_who_is_logged_in(
    open_page: Open, live_service: LiveService, scheme: str
) -> None:
    page, _ = await open_page(scheme=scheme)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto(f"{live_service.url}/keys")
    await page.get_by_role("button", name="Account menu").click()
    await page.get_by_role("link", name="API reference", exact=True).click()
    operation = page.locator("#operations-Account-get_me")
    await expect(operation).to_be_visible()
    # The other rules find what is in the markup of the renderer.
    await assert_accessible(page, f"API reference, {scheme}", LOOKS)
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
    # Its colours follow those of the system, also while the page is open.
    dark = page.locator("html.dark-mode")
    await expect(dark).to_have_count(1 if scheme == "dark" else 0)
    await page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    await expect(dark).to_have_count(0 if scheme == "dark" else 1)
