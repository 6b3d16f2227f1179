"""Operations that need a recent login ask for the password, and go on where they were (RFC 9470; ASVS 5.0, 7.2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from examples.task_service.tests.browser.support import (
    HIDE,
    WAIT_MS,
    Watch,
    assert_every_state,
    log_in,
    login_cookie,
    type_into,
)
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    Caller,
    Service,
    on_a_port,
)
from playwright.async_api import Browser, BrowserContext, Page, expect

from msk_auth import AsyncAuthenticator

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

WRONG = "not the password"
USERS = "/admin/users"


@pytest.fixture
async def context(
    browser: Browser, service: Service, admin: Caller
) -> AsyncIterator[BrowserContext]:
    """A browser in which the administrator logged in 20 minutes ago, to a service whose clock can be moved."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(on_a_port(service))
        context = await stack.enter_async_context(await browser.new_context(base_url=origin))
        context.set_default_timeout(WAIT_MS)
        await context.add_cookies([login_cookie(service.tokens["ada"])])
        service.clock.advance(minutes=20)
        yield context


OpenUsers = Callable[[], Awaitable[tuple[Page, Watch]]]


@pytest.fixture
async def open_users(context: BrowserContext) -> AsyncIterator[OpenUsers]:
    """Opens the page of users; at the end it must have had no other complaint than those expected."""
    watches: list[Watch] = []

    async def open_users() -> tuple[Page, Watch]:
        page = await context.new_page()
        watches.append(Watch(page))
        watches[-1].expected |= {401, 422}
        await page.goto(USERS)
        await expect(page.get_by_role("row").filter(has_text="ulf")).to_be_visible()
        return page, watches[-1]

    yield open_users
    for watch in watches:
        watch.assert_clean()


async def _confirm(page: Page, password: str = ADMIN_PASSWORD) -> None:
    """Type the password that is asked for."""
    await type_into(page.get_by_label("Password", exact=True), password)
    await page.keyboard.press("Enter")


async def test_a_new_link_is_made_once_the_password_is_right(
    open_users: OpenUsers, service: Service
) -> None:
    page, _ = await open_users()
    button = page.get_by_role("button", name="New link: ulf")
    asked = page.get_by_role("dialog", name="Confirm your password")

    # Cancelling changes nothing, and gives the focus back.
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(asked).to_be_visible()
    await expect(asked).to_have_accessible_description(
        "This needs a login from the last 15 minutes. What you entered is kept."
    )
    await page.keyboard.press("Escape")
    await expect(page.locator("#announcer")).to_have_text(
        "Nothing was changed: the password was not confirmed."
    )
    await expect(button).to_be_focused()

    await page.keyboard.press("Enter")
    await _confirm(page, WRONG)
    await expect(page.locator("#reauthenticate-password-error")).to_have_text(
        "This is not your password."
    )
    password = page.get_by_label("Password", exact=True)
    await expect(password).to_be_focused()
    await expect(password).to_have_attribute("aria-invalid", "true")
    await password.fill("")
    await _confirm(page)
    link = page.get_by_role("dialog", name="One-time link for ulf")
    await expect(link.get_by_label("One-time link", exact=True)).to_contain_text("/set-password#")
    # It is ready before the dialog is closed: a quick hand presses it again at once.
    await expect(button).not_to_have_attribute("aria-disabled", "true")
    await page.keyboard.press("Escape")
    await expect(button).to_be_focused()
    assert await password.input_value() == ""

    # The login is recent now, and the one before has ended.
    await page.keyboard.press("Enter")
    await expect(link.get_by_label("One-time link", exact=True)).to_contain_text("/set-password#")
    ada = await service.services.users.get_by_name("ada")
    assert len(await service.services.sessions.list_open(ada.id)) == 1


async def test_a_form_that_is_filled_in_stays_filled_in(open_users: OpenUsers) -> None:
    page, _ = await open_users()
    await page.set_viewport_size({"width": 360, "height": 740})
    await page.get_by_role("button", name="New user").click()
    form = page.get_by_role("dialog", name="New user")
    await form.get_by_label("Username").fill("grace")
    await form.get_by_label("Role").select_option("Administrator")
    await page.keyboard.press("Enter")
    await expect(page.get_by_label("Password", exact=True)).to_be_focused()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").last.click()
    await expect(form.get_by_role("alert")).to_have_text(
        "Nothing was changed: the password was not confirmed."
    )
    await expect(form.get_by_label("Username")).to_have_value("grace")
    await expect(form.get_by_label("Role")).to_have_value("admin")

    await form.get_by_role("button", name="Create user").click()
    await _confirm(page)
    await expect(page.get_by_label("One-time link", exact=True)).to_contain_text("/set-password#")
    await page.get_by_role("button", name="Done").click()
    row = page.get_by_role("row").filter(has_text="grace")
    await expect(row).to_contain_text("admin")


async def test_an_administrator_is_made_by_keyboard_alone(open_users: OpenUsers) -> None:
    page, _ = await open_users()
    button = page.get_by_role("button", name="Change role: ulf")
    await button.focus()
    await page.keyboard.press("Enter")
    confirm = page.get_by_role("dialog", name="Change the role of ulf?")
    await expect(confirm.get_by_role("button", name="Cancel")).to_be_focused()
    await page.keyboard.press("Shift+Tab")
    await page.keyboard.type("Admin")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await _confirm(page)
    await expect(page.locator("#announcer")).to_have_text("ulf: administrator now.")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(button).to_be_focused()


async def test_what_is_sent_while_the_login_is_replaced_is_sent_again(
    open_users: OpenUsers, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, _ = await open_users()
    other, _ = await open_users()
    replaced, go_on = asyncio.Event(), asyncio.Event()

    async def await_lease_expiry(_: object) -> None:
        replaced.set()
        await go_on.wait()

    # Between the end of the old session and the answer that brings the new cookie, as with a lease.
    monkeypatch.setattr(AsyncAuthenticator, "await_lease_expiry", await_lease_expiry)
    await page.get_by_role("button", name="New link: ulf").click()
    await _confirm(page)
    await asyncio.wait_for(replaced.wait(), 60)
    asked = asyncio.create_task(
        other.evaluate(
            "async () => (await (await import('/static/x/api.js')).api('/auth/me')).user.username"
        )
    )
    async with other.expect_response("**/api/auth/me") as refused:
        pass
    assert (await refused.value).status == 401
    go_on.set()
    assert await asked == "ada"
    await expect(page.get_by_label("One-time link", exact=True)).to_contain_text("/set-password#")
    for each in (page, other):
        assert each.url.endswith(USERS)


async def test_a_session_that_ends_while_the_password_is_asked_for_leads_to_the_login_and_back(
    open_users: OpenUsers, service: Service
) -> None:
    page, _ = await open_users()
    await page.get_by_role("button", name="New user").click()
    form = page.get_by_role("dialog", name="New user")
    await form.get_by_label("Username").fill("grace")
    await form.get_by_label("Role").select_option("Administrator")
    await form.get_by_role("button", name="Create user").click()
    await expect(page.get_by_label("Password", exact=True)).to_be_focused()
    await page.evaluate(HIDE, True)
    service.clock.advance(hours=2)
    await _confirm(page)
    await page.wait_for_url("**/login?next=%2Fadmin%2Fusers&reason=session-ended")
    await log_in(page, "ada", ADMIN_PASSWORD)
    await expect(form.get_by_label("Username")).to_have_value("grace")
    await form.get_by_role("button", name="Create user").click()
    await expect(page.get_by_label("One-time link", exact=True)).to_contain_text("/set-password#")


async def _states(page: Page, watch: Watch) -> AsyncIterator[str]:
    watch.expected.add(429)
    await page.get_by_role("button", name="New link: ulf").click()
    password = page.get_by_label("Password", exact=True)
    await expect(password).to_be_focused()
    yield "password asked for"
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator("#reauthenticate-password-error")).to_have_text("Fill in this field.")
    yield "password missing"
    await password.fill(WRONG)
    await page.keyboard.press("Enter")
    await expect(page.locator("#reauthenticate-password-error")).to_contain_text("not your")
    yield "password wrong"
    for _ in range(10):
        async with page.expect_response("**/api/auth/reauthenticate") as answered:
            await page.keyboard.press("Enter")
        await (await answered.value).finished()
        await expect(page.get_by_role("button", name="Continue")).not_to_have_attribute(
            "aria-disabled", "true"
        )
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Try again in")
    yield "too many wrong passwords"


async def test_the_dialog_is_accessible_and_fits_in_every_state(open_users: OpenUsers) -> None:
    page, watch = await open_users()
    await assert_every_state(page, _states(page, watch))
