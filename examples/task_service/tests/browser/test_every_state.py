"""Every page, dialog and state: accessible in light and dark, and no wider than the window.

Those of keys and of users are in `test_every_state_of_keys_and_users.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, Route, expect

from .conftest import Open
from .support import USERNAME, LiveService, States, Watch, assert_every_state

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


NEWCOMER = "newcomer"


async def _public_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    await page.goto("/login")
    yield "login"
    await page.goto("/login?reason=session-ended&next=/keys")
    yield "login with a reason"
    watch.expected |= {401, 410, 422}
    await page.get_by_label("Username").fill("nobody-" + "x" * 50)
    await page.get_by_label("Password").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_role("alert").first).to_be_visible()
    yield "login refused"
    await page.goto("/set-password")
    await expect(page.get_by_text("one-time link")).to_be_visible()
    yield "set password without a link"
    await page.goto("/login")
    await page.goto("/set-password#not-a-token")
    await expect(page.get_by_role("alert").first).to_contain_text("used already or has expired")
    await expect(page.get_by_label("New password")).to_be_hidden()
    yield "set password with a dead link"

    async def answer(route: Route) -> None:
        await route.fulfill(json={"username": "mira.sand"})

    await page.route("**/api/auth/password-link", answer)
    await page.goto("/login")
    await page.goto("/set-password#a-token")
    await expect(page.get_by_text("For the account mira.sand.")).to_be_visible()
    await page.get_by_role("button", name="Set password").click()
    await expect(page.get_by_text("Fill in this field.").first).to_be_visible()
    yield "set password with errors"
    await page.get_by_label("New password").fill("short")
    await page.get_by_role("button", name="Set password").click()
    await expect(page.locator("#password-error")).to_have_text("Use at least 12 characters.")


# As `runs.js` does when the event comes; that it does is seen in test_tasks.py.
SHOW_PROGRESS = """() => {
    const label = document.querySelector("#progress");
    label.hidden = false;
    label.querySelector("span").textContent = "42 % · Copying";
    label.querySelector("progress").value = 0.42;
}"""


NEW_TASK_WITH_SECRET = """async () => {
    const params = {url: "https://example.org/", headers: {Authorization: "geheim"}};
    const made = await fetch("/api/tasks", {
        method: "POST", headers: {"Content-Type": "application/json"},
        body: JSON.stringify({name: "Calls out", handler: "http_request", params}),
    });
    return (await made.json()).id;
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
    await expect(dialog).to_be_visible()
    for handler in await dialog.get_by_label("Handler").locator("option").all_inner_texts():
        await dialog.get_by_label("Handler").select_option(label=handler)
        yield f"new task: {handler}"
    await dialog.get_by_role("button", name="Create task").click()
    await expect(dialog.get_by_text("Fill in this field.").first).to_be_visible()
    yield "new task with errors"
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="Say hello", exact=True).click()
    # The page opens it for a task without runs, once it knows that there are none.
    await expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    await page.locator("details").evaluate("(details) => { details.open = true; }")
    yield "task"
    await page.get_by_role("button", name="Run R").click()
    await expect(page.get_by_role("listitem").first).to_contain_text("Succeeded")
    await expect(page.get_by_role("log")).to_contain_text("Hello")
    yield "task with a run"
    await page.get_by_role("button", name="Change and re-run").click()
    await expect(page.get_by_role("button", name="Start run")).to_be_visible()
    yield "run again with changes"
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    await page.get_by_role("combobox", name="Go to").fill("say hello")
    await expect(page.get_by_role("dialog").get_by_role("option", name="Say hello")).to_be_visible()
    yield "go to"
    await page.get_by_role("combobox", name="Go to").fill("no place of this name")
    await expect(page.get_by_text("Nothing was found.")).to_be_visible()
    yield "go to nothing"
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    yield "shortcuts"
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Re-run", exact=True).click()
    await expect(page.get_by_role("region", name="Message")).to_be_visible()
    await expect(page.get_by_role("img", name="Duration and outcome")).to_be_visible()
    yield "message, and a picture of the runs"
    await page.evaluate(SHOW_PROGRESS)
    yield "task whose run reports its progress"
    await page.get_by_role("button", name="Delete").click()
    yield "delete task"
    await page.keyboard.press("Escape")
    await page.goto(f"/tasks/{await page.evaluate(NEW_TASK_WITH_SECRET)}")
    await expect(page.get_by_text("A secret is set.")).to_be_visible()
    yield "task with a secret"
    await page.get_by_role("button", name="Edit").click()
    await expect(page.get_by_role("button", name="Replace Headers")).to_be_visible()
    yield "edit a task with a secret"
    await page.get_by_role("button", name="Replace Headers").click()
    await page.get_by_role("button", name="Add entry").click()
    yield "replace a secret"
    await page.keyboard.press("Escape")
    watch.expected.add(404)
    await page.goto("/tasks/tsk_none")
    await expect(page.get_by_role("alert").first).to_be_visible()
    yield "task that is not there"


NEW_TASK = """async () => {
    const task = {name: "Hello", handler: "command", params: {argv: ["echo"]}};
    const made = await fetch("/api/tasks", {
        method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(task),
    });
    return (await made.json()).id;
}"""


async def _newcomer_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    """A user without tasks, keys and permissions."""
    watch.expected.add(403)
    await page.goto("/tasks")
    await expect(page.get_by_role("heading", name="No tasks yet")).to_be_visible()
    yield "no tasks"
    await page.goto("/keys")
    await expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
    yield "no keys"
    await page.goto("/admin/users")
    await expect(page.get_by_role("link", name="Back to tasks")).to_be_visible()
    yield "page for others"
    await page.goto("/tasks/" + await page.evaluate(NEW_TASK))
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    await expect(page.get_by_label("Command that runs this task")).to_be_visible()
    yield "task that has not run"


@pytest.mark.parametrize("states", [_public_states, _newcomer_states, _task_states])
async def test_every_state_is_accessible_and_fits(
    open_page: Open, live_service: LiveService, states: States
) -> None:
    if states is _newcomer_states:
        live_service.add_user(NEWCOMER)
    users = {_public_states: None, _newcomer_states: NEWCOMER, _task_states: USERNAME}
    page, watch = await open_page(user=users[states])
    await assert_every_state(page, states(page, watch))


async def test_motion_stops_if_the_user_prefers_reduced_motion(open_page: Open) -> None:
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
