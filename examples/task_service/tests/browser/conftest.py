"""A real Chromium against the real service. Without a browser the tests are skipped, visibly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from examples.task_service.tests.browser.support import (
    ARGUMENTS,
    CHROMIUM,
    LiveService,
    Watch,
    log_in,
)
from playwright.async_api import Browser, Page, StorageState, async_playwright

Open = Callable[..., Awaitable[tuple[Page, Watch]]]
"""`open_page(width=1440, scheme="light", logged_in=True)`: a page of its own and what watches over it."""


@pytest.fixture(scope="session")
def chromium() -> str:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    return CHROMIUM


@pytest.fixture(scope="session")
async def browser(chromium: str, anyio_backend: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture
def new_service(chromium: str, tmp_path: Path) -> Iterator[LiveService]:
    """A service that nobody has seen yet."""
    service = LiveService(tmp_path)
    yield service
    service.stop()


@pytest.fixture(scope="session")
def live_service(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """One service for all tests, its administrator's password set."""
    service = LiveService(tmp_path_factory.mktemp("service"))
    try:
        service.set_first_password()
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="session")
async def login(browser: Browser, live_service: LiveService) -> StorageState:
    """The administrator's cookie, so that not every test logs in."""
    async with await browser.new_context(base_url=live_service.url) as context:
        page = await context.new_page()
        await page.goto("/login")
        await log_in(page)
        await page.wait_for_url("**/tasks")
        return await context.storage_state()


@pytest.fixture
async def open_page(
    browser: Browser, live_service: LiveService, login: StorageState
) -> AsyncIterator[Open]:
    """Opens pages; at the end none of them may have complained."""
    watches: list[Watch] = []
    async with AsyncExitStack() as stack:

        async def open_page(
            *, width: int = 1440, scheme: str = "light", logged_in: bool = True
        ) -> tuple[Page, Watch]:
            context = await stack.enter_async_context(
                await browser.new_context(
                    base_url=live_service.url,
                    viewport={"width": width, "height": 900},
                    color_scheme=scheme,
                    storage_state=login if logged_in else None,
                    permissions=["clipboard-read", "clipboard-write"],
                )
            )
            page = await context.new_page()
            page.set_default_timeout(20_000)
            watches.append(Watch(page))
            return page, watches[-1]

        yield open_page
    for watch in watches:
        watch.assert_clean()
