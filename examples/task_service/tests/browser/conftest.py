"""A real Chromium against the real service. Without a browser the tests are skipped, visibly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.browser.support import (
    ARGUMENTS,
    CHROMIUM,
    LiveService,
    Watch,
    log_in,
)
from playwright.async_api import Browser, BrowserContext, Page, StorageState, async_playwright

Open = Callable[..., Awaitable[tuple[Page, Watch]]]
"""`open_page(scheme="light", logged_in=True, alone=False)`: a page of its own and what watches over it.

Tests without a login have their own browser, and so have tests marked `alone`, which every test that moves the clock must be.
"""


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
    """A fresh service."""
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


NewContext = Callable[..., Awaitable[BrowserContext]]


@pytest.fixture(scope="session")
def new_context(browser: Browser, live_service: LiveService) -> NewContext:
    """Makes contexts that know the service."""

    async def new_context(**options: Any) -> BrowserContext:
        return await browser.new_context(
            base_url=live_service.url,
            viewport={"width": 1440, "height": 900},
            permissions=["clipboard-read", "clipboard-write"],
            **options,
        )

    return new_context


@pytest.fixture(scope="session")
async def everyday(new_context: NewContext, login: StorageState) -> AsyncIterator[BrowserContext]:
    """The administrator's browser, with a warm cache. Each test has a tab of it, and leaves login and clock alone."""
    async with await new_context(storage_state=login) as context:
        yield context


@pytest.fixture
async def open_page(
    new_context: NewContext, everyday: BrowserContext, login: StorageState
) -> AsyncIterator[Open]:
    """Opens pages; at the end none of them may have complained."""
    watches: list[Watch] = []
    async with AsyncExitStack() as stack:

        async def open_page(
            *, scheme: str = "light", logged_in: bool = True, alone: bool = False
        ) -> tuple[Page, Watch]:
            context = everyday
            if alone or not logged_in:
                context = await stack.enter_async_context(
                    await new_context(storage_state=login if logged_in else None)
                )
            page = await context.new_page()
            stack.push_async_callback(page.close)
            await page.emulate_media(color_scheme=scheme)
            page.set_default_timeout(60_000)
            watches.append(Watch(page))
            return page, watches[-1]

        yield open_page
    for watch in watches:
        watch.assert_clean()
