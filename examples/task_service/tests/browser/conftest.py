"""A real Chromium against the real service. Without a browser the tests are skipped, visibly."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.browser.support import (
    ARGUMENTS,
    CHROMIUM,
    USERNAME,
    WAIT_MS,
    LiveService,
    Watch,
)
from playwright.async_api import Browser, BrowserContext, Page, async_playwright

Open = Callable[..., Awaitable[tuple[Page, Watch]]]
"""`open_page(user="admin", scheme="light", alone=False)`: a page of its own and what watches over it.

The user has logged in a few minutes ago at most; None is no user. Pages of another user than the administrator have their own
browser and session, and so have pages that are `alone`, as a test must be that ends its session or moves the clock.
"""

_RECENT_SECONDS = 300


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


NewContext = Callable[..., Awaitable[BrowserContext]]


@pytest.fixture(scope="session")
def new_context(browser: Browser, live_service: LiveService) -> NewContext:
    """Makes contexts that know the service."""

    async def new_context(**options: Any) -> BrowserContext:
        context = await browser.new_context(
            base_url=live_service.url,
            viewport={"width": 1440, "height": 900},
            permissions=["clipboard-read", "clipboard-write"],
            **options,
        )
        context.set_default_timeout(WAIT_MS)
        return context

    return new_context


class Everyday:
    """The administrator's browser, with a warm cache. Each test has a tab of it, and leaves login and clock alone."""

    def __init__(self, context: BrowserContext, service: LiveService) -> None:
        self._context = context
        self._service = service
        self._logged_in_at = -math.inf

    async def new_page(self) -> Page:
        """A tab, after a new login if the last one is too old for changes of users and roles."""
        if time.monotonic() - self._logged_in_at > _RECENT_SECONDS:
            self._logged_in_at = time.monotonic()
            await self._context.add_cookies([self._service.log_in(USERNAME)])
        return await self._context.new_page()


@pytest.fixture(scope="session")
async def everyday(new_context: NewContext, live_service: LiveService) -> AsyncIterator[Everyday]:
    """One browser for most tests."""
    async with await new_context() as context:
        yield Everyday(context, live_service)


@pytest.fixture
async def open_page(
    new_context: NewContext, everyday: Everyday, live_service: LiveService
) -> AsyncIterator[Open]:
    """Opens pages; at the end none of them may have complained."""
    watches: list[Watch] = []
    async with AsyncExitStack() as stack:

        async def open_page(
            *, user: str | None = USERNAME, scheme: str = "light", alone: bool = False
        ) -> tuple[Page, Watch]:
            if alone or user != USERNAME:
                context = await stack.enter_async_context(await new_context())
                if user is not None:
                    await context.add_cookies([live_service.log_in(user)])
                page = await context.new_page()
            else:
                page = await everyday.new_page()
            stack.push_async_callback(page.close)
            await page.emulate_media(color_scheme=scheme)
            watches.append(Watch(page))
            return page, watches[-1]

        yield open_page
    for watch in watches:
        watch.assert_clean()
