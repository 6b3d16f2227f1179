"""Every page, dialog and state: accessible in light and dark, and no wider than the window."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from playwright.async_api import Page, expect

from .conftest import Open
from .support import (
    PASSWORD,
    LiveService,
    Watch,
    assert_accessible,
    assert_fits,
    create_key,
    log_in,
)

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


NEWCOMER = "newcomer"

States = Callable[[Page, Watch], AsyncIterator[str]]


async def _public_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    await page.goto("/login")
    yield "login"
    await page.goto("/login?reason=session-ended&next=/keys")
    yield "login with a reason"
    watch.expected |= {401, 422}
    await page.get_by_label("User name").fill("nobody-" + "x" * 50)
    await page.get_by_label("Password").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert").first).to_be_visible()
    yield "login refused"
    await page.goto("/set-password")
    await expect(page.get_by_text("one-time link")).to_be_visible()
    yield "set password without a link"
    await page.goto("/set-password#not-a-token")
    await page.reload()
    await page.goto("/login")
    await page.goto("/set-password#not-a-token")
    await page.get_by_role("button", name="Set password").click()
    await expect(page.get_by_text("Please").first).to_be_visible()
    yield "set password with errors"


# As `runs.js` does when the event comes; that it does is seen in test_tasks.py.
SHOW_PROGRESS = """() => {
    const label = document.querySelector("#progress");
    label.hidden = false;
    label.querySelector("span").textContent = "42 % · Copying";
    label.querySelector("progress").value = 0.42;
}"""


async def _task_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    await page.goto("/tasks")
    await expect(page.get_by_role("table")).to_be_visible()
    yield "tasks"
    await page.get_by_role("button", name="Menu of").click()
    await expect(page.get_by_role("button", name="Log out")).to_be_visible()
    yield "menu"
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="New task").click()
    dialog = page.get_by_role("dialog")
    for handler in await dialog.get_by_label("What it does").locator("option").all_inner_texts():
        await dialog.get_by_label("What it does").select_option(label=handler)
        yield f"new task: {handler}"
    await dialog.get_by_role("button", name="Create task").click()
    await expect(dialog.get_by_text("Please").first).to_be_visible()
    yield "new task with errors"
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="Say hello", exact=True).click()
    await expect(page.get_by_role("button", name="Edit")).to_be_visible()
    await page.get_by_text("Start it from a program").click()
    yield "task"
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("listitem").first).to_contain_text("Succeeded")
    await expect(page.get_by_role("log")).to_contain_text("Hello")
    yield "task with a run"
    await page.evaluate(SHOW_PROGRESS)
    yield "task whose run reports its progress"
    await page.get_by_role("button", name="Delete").click()
    yield "delete task"
    await page.keyboard.press("Escape")
    watch.expected.add(404)
    await page.goto("/tasks/tsk_none")
    await expect(page.get_by_role("alert").first).to_be_visible()
    yield "task that is not there"


async def _key_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    await page.goto("/keys")
    await create_key(page, "a key with a long name " * 4)
    await expect(page.get_by_role("table")).to_be_visible()
    yield "keys"
    await page.get_by_label("Search by name or id").fill("no such key")
    await expect(page.get_by_text("No key matches.")).to_be_visible()
    yield "no key found"
    await page.get_by_label("Search by name or id").fill("")
    await page.get_by_role("button", name="New API Key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Lifetime").select_option("custom")
    await dialog.get_by_label("Only this:").check()
    await dialog.get_by_role("button", name="Create key").click()
    await expect(dialog.get_by_text("Please").first).to_be_visible()
    yield "new key with errors"
    await dialog.get_by_label("Name", exact=True).fill("short-lived")
    await dialog.get_by_label("days", exact=True).fill("3")
    await dialog.get_by_role("button", name="Create key").click()
    await expect(page.get_by_label("The key’s value")).to_be_visible()
    yield "value revealed"
    await page.get_by_role("button", name="Copy key").click()
    await expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("Copied.")
    yield "value copied"
    await page.get_by_role("button", name="I have saved this key").click()
    row = page.get_by_role("row").filter(has_text="short-lived").first
    await expect(row).to_contain_text("in 3 days")
    await row.get_by_role("button", name="Rotate").click()
    yield "rotate"
    await page.keyboard.press("Escape")
    await row.get_by_role("button", name="Revoke").click()
    yield "revoke"
    await page.get_by_role("button", name="Revoke key").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.get_by_role("button", name="Revoked").click()
    await expect(page.get_by_role("row").nth(1)).to_contain_text("Revoked")
    yield "revoked keys"


async def _admin_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    watch.expected |= {404, 409, 422}
    await page.goto("/admin/config")
    keys = page.get_by_label("Active keys of one user")
    await expect(keys).not_to_have_value("")
    yield "configuration"
    await keys.fill("0")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#max_keys_per_user-error")).not_to_be_empty()
    yield "configuration with an error"
    await page.goto("/admin/users")
    await expect(page.get_by_role("table")).to_be_visible()
    await page.get_by_role("button", name="New user").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Create user").click()
    await expect(dialog.get_by_text("Please")).to_be_visible()
    yield "new user with an error"
    await dialog.get_by_label("User name").fill("somebody")
    await dialog.get_by_role("button", name="Create user").click()
    await expect(page.get_by_label("The link")).to_contain_text("/set-password#")
    yield "invitation link"
    await page.get_by_role("button", name="Done").click()
    await page.get_by_role("button", name="Disable: somebody").first.click()
    yield "disable a user"
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(page.get_by_role("table").get_by_text("Disabled").first).to_be_visible()
    yield "users"
    await page.get_by_label("Search by name or id").fill("nobody of this name")
    await expect(page.get_by_text("No user matches.")).to_be_visible()
    yield "no user found"
    await page.goto("/admin/audit")
    await expect(page.get_by_role("table")).to_be_visible()
    yield "audit log"
    await page.get_by_label("By user").fill("nobody of this name")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Nothing like this happened")).to_be_visible()
    yield "nothing found in the audit log"
    await page.goto("/admin/system")
    await expect(page.get_by_text("SQLite")).to_be_visible()
    yield "system"


async def _own_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    watch.expected |= {403, 422}
    await page.goto("/account")
    await expect(page.get_by_role("table")).to_be_visible()
    yield "account"
    await page.get_by_role("button", name="Change password").click()
    await expect(page.get_by_text("Please").first).to_be_visible()
    yield "account with errors"
    await page.goto("/keys")
    await create_key(page, "looked at")
    await page.get_by_role("button", name="History looked at").first.click()
    await expect(page.get_by_role("dialog").get_by_role("table")).to_be_visible()
    yield "trail of a key"


NEW_TASK = """async () => {
    const task = {name: "Hello", handler: "command", params: {argv: ["echo"]}};
    const made = await fetch("/api/tasks", {
        method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(task),
    });
    return (await made.json()).id;
}"""


async def _newcomer_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    """Somebody who has nothing yet, and no say in anything."""
    watch.expected.add(403)
    await page.goto("/tasks")
    await log_in(page, NEWCOMER)
    await expect(page.get_by_role("heading", name="No tasks yet")).to_be_visible()
    yield "no tasks"
    await page.goto("/keys")
    await expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
    yield "no keys"
    await page.goto("/admin/users")
    await expect(page.get_by_role("link", name="Back to the tasks")).to_be_visible()
    yield "page for others"
    await page.goto("/tasks/" + await page.evaluate(NEW_TASK))
    await expect(page.get_by_text("It has not run yet.")).to_be_visible()
    await expect(page.get_by_label("Command that starts this task")).to_be_visible()
    yield "task that has not run"


# Each scheme at one width: what axe sees at another width is the same tree in the same colours.
_SCHEMES = {1440: "light", 360: "dark"}


@pytest.mark.parametrize(
    "states",
    [
        _public_states,
        _newcomer_states,
        _task_states,
        _key_states,
        _admin_states,
        _own_states,
    ],
)
async def test_every_state_is_accessible_and_fits(
    open_page: Open, live_service: LiveService, states: States
) -> None:
    if states is _newcomer_states:
        live_service.add_user(NEWCOMER, PASSWORD)
    page, watch = await open_page(logged_in=states not in {_public_states, _newcomer_states})
    seen = 0
    async for state in states(page, watch):
        for width in (360, 768, 1440):
            await page.set_viewport_size({"width": width, "height": 900})
            await assert_fits(page, f"{state} at {width}")
            if width in _SCHEMES:
                await page.emulate_media(color_scheme=_SCHEMES[width])
                await assert_accessible(page, f"{state}, {_SCHEMES[width]}, at {width}")
        seen += 1
    assert seen >= 3


async def test_motion_stops_for_whoever_prefers_that(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    script = "() => document.body.append(Object.assign(document.createElement('i'), {className: 'badge running'}))"
    await page.evaluate(script)
    name = "() => getComputedStyle(document.querySelector('i.badge'), '::before').animationName"
    assert await page.evaluate(name) == "pulse"
    await page.emulate_media(reduced_motion="reduce")
    assert await page.evaluate(name) == "none"


async def test_on_paper_there_is_the_list_and_nothing_to_press(open_page: Open) -> None:
    page, _ = await open_page(scheme="dark")
    await page.goto("/tasks")
    await expect(page.get_by_role("table")).to_be_visible()
    await page.emulate_media(media="print")
    await expect(page.get_by_role("table")).to_be_visible()
    await expect(page.locator(".topbar")).to_be_hidden()
    await expect(page.get_by_role("button")).to_have_count(0)
