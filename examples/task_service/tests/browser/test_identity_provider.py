"""Logging in and out at an identity provider, which is another site, as a person does it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from examples.task_service.tests.browser.support import (
    ANSWER_SECONDS,
    HIDE,
    WAIT_MS,
    Watch,
    assert_accessible,
)
from examples.task_service.tests.oidc_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    TestProvider,
    running_provider,
)
from examples.task_service.tests.service_support import Service, on_a_port, running_service
from playwright.async_api import Browser, Page, expect

from task_service.provider_login import CALLBACK, LOGOUT
from task_service.server import bind

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

DEEP_LINK = "/keys?status=revoked"


@dataclass
class Site:
    """A service whose people log in at a provider, and a browser that is logged in at neither."""

    service: Service
    provider: TestProvider
    page: Page
    origin: str

    async def sign_in(self) -> None:
        """Fill in the provider's form, to which the button leads."""
        await self.page.get_by_role("link", name="Log in with Example ID").click()
        await expect(self.page).to_have_url(re.compile(re.escape(self.provider.issuer)))
        await self.page.get_by_label("Name").fill("grace")
        await self.page.get_by_role("button", name="Sign in").click()

    async def open_sessions(self) -> int:
        """How many the person has here."""
        grace = await self.service.services.users.get_by_name("grace")
        return len(await self.service.services.sessions.list_open(grace.id))


@pytest.fixture
async def site(browser: Browser, template: Path, tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bind("127.0.0.1", 0))
        # For the browser another host is another site, while another port is not.
        origin = f"http://localhost:{listener.getsockname()[1]}"
        provider = stack.enter_context(running_provider(origin + CALLBACK))
        provider.has_form = True
        provider.person |= {"preferred_username": "grace", "sid": "a"}
        service = await stack.enter_async_context(
            running_service(
                template,
                tmp_path / "data",
                base_url=origin,
                oidc_issuer=provider.issuer,
                oidc_client_id=CLIENT_ID,
                oidc_client_secret=CLIENT_SECRET,
                oidc_name="Example ID",
                oidc_users="groups=tasks",
            )
        )
        await stack.enter_async_context(on_a_port(service, listener))
        context = await stack.enter_async_context(await browser.new_context(base_url=origin))
        context.set_default_timeout(WAIT_MS)
        page = await context.new_page()
        watch = Watch(page)
        watch.expected.add(401)
        yield Site(service, provider, page, origin)
        watch.assert_clean()


async def test_the_way_to_the_provider_and_back_keeps_the_deep_link(site: Site) -> None:
    page = site.page
    await page.goto(DEEP_LINK)
    await page.wait_for_url("**/login?next=*")
    await site.sign_in()
    await page.wait_for_url(f"{site.origin}{DEEP_LINK}")
    await expect(page.get_by_role("heading", name="API Keys", level=1)).to_be_visible()
    # The cookie is SameSite=Strict, and the provider another site: a page of the service's own came in between.
    await page.reload()
    await expect(page).to_have_url(f"{site.origin}{DEEP_LINK}")
    (cookie,) = await page.context.cookies(site.origin)
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (
        "__Host-task_session",
        True,
        "Strict",
    )
    assert await site.open_sessions() == 1


async def test_the_form_that_leads_to_a_provider_is_accessible(site: Site) -> None:
    await site.page.goto("/login")
    await expect(site.page.get_by_role("link", name="Log in with Example ID")).to_be_visible()
    await assert_accessible(site.page, "the form with a provider")


async def test_logging_out_ends_both_sessions(site: Site) -> None:
    page = site.page
    await page.goto("/login")
    await site.sign_in()
    await page.wait_for_url("**/tasks")
    await page.get_by_role("button", name="Account menu").click()
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url(f"{site.origin}/login")
    (asked,) = site.provider.logouts
    assert asked["post_logout_redirect_uri"] == f"{site.origin}/login"
    assert await site.open_sessions() == 0
    assert await page.context.cookies(site.origin) == []
    # The provider shows its form again: its own session has ended too.
    await site.sign_in()
    await page.wait_for_url("**/tasks")
    assert await site.open_sessions() == 1


async def test_a_page_leads_to_the_login_when_the_provider_has_ended_the_session(
    site: Site,
) -> None:
    page = site.page
    await page.goto("/login?next=/keys")
    await site.sign_in()
    await page.wait_for_url("**/keys")
    await page.evaluate(HIDE, True)
    async with httpx2.AsyncClient(
        base_url=site.origin, trust_env=False, timeout=ANSWER_SECONDS
    ) as client:
        token = site.provider.logout_token(sub="1001", sid="a")
        answer = await client.post(LOGOUT, data={"logout_token": token})
    assert answer.status_code == 200
    await page.get_by_role("button", name="New API Key").click()
    form = page.get_by_role("dialog")
    await form.get_by_label("Name", exact=True).fill("too late")
    await form.get_by_role("button", name="Create key").click()
    await page.wait_for_url("**/login?next=%2Fkeys&reason=session-ended")
    await expect(page.get_by_role("status")).to_contain_text("Your session has ended")
