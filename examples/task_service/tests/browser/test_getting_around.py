"""Ctrl-K, the shortcuts, messages; pages without layout shift, and without requests while they are hidden."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, Route, expect

from .conftest import NewContext, Open
from .support import HIDE, SEND, LiveService, assert_fits, hold, log_in, pause_clock, type_into

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


async def test_control_k_leads_to_pages_tasks_and_keys(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    task = {"name": "Rotate the logs", "handler": "command", "params": {"argv": ["echo"]}}
    made = await page.evaluate(SEND, ["/tasks", task])
    key = await page.evaluate(SEND, ["/keys", {"name": "logs of ci", "expires_in_days": 1}])

    await page.goto("/account")
    await page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Go to a page, a task or a key")
    options = page.get_by_role("dialog", name="Go to").get_by_role("option")
    await expect(options.first).to_have_text("TasksPage")
    await type_into(field, "rotate the")
    await expect(options).to_have_text(["Rotate the logsTask"])
    await expect(options).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/tasks/{made['id']}")

    # A screen reader reads out what the arrows choose, and Enter leads there.
    await page.get_by_role("button", name="Go to").click()
    await field.fill("logs")
    await expect(options).to_have_count(2)
    await page.keyboard.press("ArrowUp")
    chosen = page.locator("#palette [aria-selected=true]")
    await expect(chosen).to_contain_text("logs of ci")
    await expect(field).to_have_attribute(
        "aria-activedescendant", await chosen.get_attribute("id") or ""
    )
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/keys/{key['id']}")


async def test_what_is_typed_before_the_search_has_come_is_searched(open_page: Open) -> None:
    page, _ = await open_page(alone=True)
    go_on = await hold(page, "**/overlays/palette.js")
    await page.goto("/tasks")
    await expect(page.get_by_role("table")).to_be_visible()
    await page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Go to a page, a task or a key")
    await type_into(field, "configur")
    go_on.set()
    options = page.get_by_role("dialog", name="Go to").get_by_role("option")
    await expect(options).to_have_text(["ConfigurationPage"])
    await expect(field).to_have_value("configur")


async def test_each_page_is_offered_once(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.keyboard.press("Control+k")
    options = page.get_by_role("dialog", name="Go to").get_by_role("option")
    await expect(options.filter(has_text="API Keys")).to_have_count(1)


async def test_a_search_for_nothing_says_so_and_escape_goes_back(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    opener = page.get_by_role("button", name="Go to")
    await opener.click()
    await page.get_by_role("combobox", name="Go to").fill("no place of this name")
    dialog = page.get_by_role("dialog", name="Go to")
    await expect(dialog.get_by_role("status")).to_have_text("Nothing was found.")
    await expect(dialog.get_by_role("combobox")).to_have_attribute("aria-expanded", "false")
    await page.keyboard.press("Enter")
    await expect(dialog).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(dialog).to_be_hidden()
    await expect(opener).to_be_focused()


async def test_the_shortcuts_are_listed_and_single_keys_can_be_switched_off(
    open_page: Open,
) -> None:
    page, _ = await open_page(alone=True)
    await page.goto("/tasks")
    await expect(page.get_by_role("table")).to_be_visible()
    await page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(dialog.locator("dt")).to_have_text(["Ctrl K", "?", "N", "/", "Esc"])
    await expect(dialog.locator("dd").nth(2)).to_have_text("New task")
    await expect(dialog.locator("dd").nth(3)).to_have_text("Search by name or id")
    await dialog.get_by_label("Use shortcuts of a single key").uncheck()
    await page.keyboard.press("Escape")
    await page.reload()
    await expect(page.get_by_role("table")).to_be_visible()
    for key in ("n", "?"):
        await page.keyboard.press(key)
        await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("dialog", name="Go to")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Menu of").click()
    await page.get_by_role("button", name="Keyboard shortcuts").click()
    await dialog.get_by_label("Use shortcuts of a single key").check()
    await page.keyboard.press("Escape")
    await page.keyboard.press("n")
    await expect(page.get_by_role("dialog", name="New task")).to_be_visible()


async def test_a_message_is_read_aloud_and_dismissed(open_page: Open) -> None:
    page, watch = await open_page(alone=True)
    watch.expected.add(503)
    await page.goto("/tasks")
    task = {"name": "Read me aloud", "handler": "command", "params": {"argv": ["echo"]}}
    await page.evaluate(SEND, ["/tasks", task])
    await page.reload()

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, json={"detail": "Try again soon.", "code": "busy"})

    await page.route("**/run", refuse)
    # No news takes the place of the message, which goes when the test lets time pass.
    await page.evaluate(HIDE, True)
    await pause_clock(page)
    run = page.get_by_role("button", name="Run Read me aloud")
    message = page.get_by_role("region", name="Message")
    for dismiss in ("button", "Escape"):
        await run.click()
        await expect(message).to_contain_text("Try again soon.")
        await page.clock.run_for(100)
        await expect(page.get_by_role("status")).to_have_text("Try again soon.")
        # A problem does not go by itself.
        await page.clock.run_for(60_000)
        await expect(message).to_be_visible()
        if dismiss == "button":
            await message.get_by_role("button", name="Dismiss the message").click()
        else:
            await page.keyboard.press("Escape")
        await expect(message).to_be_hidden()
    await page.unroute("**/run")
    await run.click()
    await expect(message).to_contain_text("was started.")
    # Nor does one that is pointed at; else it does.
    await message.hover()
    await page.clock.run_for(20_000)
    await expect(message).to_be_visible()
    await page.mouse.move(0, 0)
    await page.clock.run_for(20_000)
    await expect(message).to_be_hidden()


PAGES = [
    "/tasks",
    "/tasks/{task}",
    "/runs",
    "/keys",
    "/keys/{key}",
    "/account",
    "/docs",
    "/admin/config",
    "/admin/users",
    "/admin/keys",
    "/admin/audit",
    "/admin/system",
]

WEIGHT = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .reduce((sum, {transferSize}) => sum + transferSize, 0)"""


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_weighs_less_than_100_kb_in_a_browser_that_has_nothing_yet(
    open_page: Open, path: str
) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    tasks = await page.evaluate("fetch('/api/tasks').then((a) => a.json())")
    key = await page.evaluate(SEND, ["/keys", {"name": "light", "expires_in_days": 30}])
    fresh, _ = await open_page(alone=True)
    await fresh.goto(path.format(task=tasks["items"][0]["id"], key=key["id"]))
    await expect(fresh.locator("[aria-busy=true]")).to_have_count(0)
    weight = await fresh.evaluate(WEIGHT)
    assert 20_000 < weight < 100_000, f"{weight} bytes"


SHIFT = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
    const moved = new PerformanceObserver(() => {});
    moved.observe({type: "layout-shift", buffered: true});
    const entries = moved.takeRecords().filter(({hadRecentInput}) => !hadRecentInput);
    done([entries.reduce((sum, {value}) => sum + value, 0), entries.flatMap(
        ({sources}) => sources.map(({node}) => node?.outerHTML?.slice(0, 120) ?? String(node)))]);
})))"""

PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.mark.parametrize("width", [390, 1440])
async def test_nothing_moves_when_the_data_comes(
    open_page: Open, live_service: LiveService, width: int
) -> None:
    """The API answers once the page has been painted without it."""
    page, _ = await open_page()
    await page.set_viewport_size({"width": width, "height": 900})
    await page.goto("/tasks")
    tasks = await page.evaluate("fetch('/api/tasks').then((a) => a.json())")
    key = await page.evaluate(SEND, ["/keys", {"name": "still", "expires_in_days": 30}])
    for path in PAGES:
        await _open_slowly(page, path.format(task=tasks["items"][-1]["id"], key=key["id"]))
        shift, moved = await page.evaluate(SHIFT)
        assert shift < 0.02, f"{path} at {width}: {moved}"


async def test_nothing_moves_where_there_is_nothing_yet(
    open_page: Open, live_service: LiveService
) -> None:
    live_service.add_user("still")
    page, _ = await open_page(user="still")
    for path in ("/tasks", "/keys"):
        await _open_slowly(page, path)
        await expect(page.get_by_role("heading", name="yet")).to_be_visible()
        shift, moved = await page.evaluate(SHIFT)
        assert shift < 0.02, f"{path}: {moved}"


async def _open_slowly(page: Page, path: str) -> None:
    painted = await hold(page, "**/api/**")
    await page.goto(path)
    await page.evaluate(PAINTED)
    painted.set()
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await page.unroute("**/api/**")


async def test_a_page_asks_for_news_only_while_it_is_looked_at(open_page: Open) -> None:
    """What an idle page asked would keep its session from ending."""
    page, _ = await open_page(alone=True)
    await page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.goto("/keys")
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    news = "**/api/keys?*"
    async with page.expect_response(news):
        await page.clock.fast_forward(31_000)

    await page.evaluate(HIDE, True)
    asked.clear()
    for _ in range(3):
        await page.clock.fast_forward(31_000)
    assert asked == []
    # Shown again, it asks at once.
    async with page.expect_response(news):
        await page.evaluate(HIDE, False)

    # Not used for longer than ten minutes.
    await page.clock.fast_forward(601_000)
    asked.clear()
    for _ in range(3):
        await page.clock.fast_forward(31_000)
    assert asked == []
    await page.keyboard.press("Escape")
    async with page.expect_response(news):
        await page.clock.fast_forward(31_000)


async def test_a_login_needs_no_javascript(new_context: NewContext) -> None:
    async with await new_context(java_script_enabled=False) as context:
        page = await context.new_page()
        await page.goto("/login")
        await expect(page.get_by_text("JavaScript")).to_have_count(0)
        await log_in(page)
        await page.wait_for_url("**/tasks")


TEXT = """() => ["body", "h1", "button", "code, kbd"].map(
    (part) => parseFloat(getComputedStyle(document.querySelector(part)).fontSize))"""


async def test_text_has_the_size_that_the_browser_is_set_to(open_page: Open) -> None:
    page, _ = await open_page(alone=True)
    await page.goto("/keys")
    usual = await page.evaluate(TEXT)
    client = await page.context.new_cdp_session(page)
    await client.send("Page.setFontSizes", {"fontSizes": {"standard": 24, "fixed": 20}})
    await page.reload()
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    assert await page.evaluate(TEXT) == [size * 1.5 for size in usual]
    for width in (390, 1440):
        await page.set_viewport_size({"width": width, "height": 900})
        await assert_fits(page, f"large text at {width}")
