"""Tasks and runs as they are lived with: errors beside fields, live output, cancelling."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from .conftest import Open

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

MARKUP = '<img src=x onerror="alert(1)"> & <b>bold</b>'

ALLOW_SH = """async () => {
    const config = await (await fetch("/api/admin/config")).json();
    await fetch("/api/admin/config", {
        method: "PATCH", headers: {"Content-Type": "application/json"},
        body: JSON.stringify({allowed_commands: [...config.allowed_commands, "sh"]}),
    });
}"""


async def _new_task(page: Page, name: str, *argv: str) -> None:
    await page.goto("/tasks")
    await page.get_by_role("button", name="New task").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill(name)
    await dialog.get_by_label("What it does").select_option("command")
    await dialog.get_by_label("Command and arguments").fill("\n".join(argv))
    await dialog.get_by_role("button", name="Create task").click()


async def test_what_the_service_refuses_is_said_beside_the_field(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected.add(422)
    await page.goto("/tasks")
    await page.get_by_role("button", name="New task").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("Internal")
    await dialog.get_by_label("What it does").select_option("http_request")
    url = dialog.get_by_label("URL")
    await url.fill("gopher://example.org/")
    await dialog.get_by_label("Headers").fill("no colon here")
    await dialog.get_by_role("button", name="Create task").click()
    await expect(dialog.get_by_label("Headers")).to_have_attribute("aria-invalid", "true")
    await expect(dialog.get_by_text("Each line needs a colon")).to_be_visible()
    await dialog.get_by_label("Headers").fill("Accept: text/plain")
    await dialog.get_by_role("button", name="Create task").click()
    await expect(url).to_have_attribute("aria-invalid", "true")
    await expect(url).to_be_focused()
    error = dialog.locator("#param-url-error")
    await expect(error).not_to_be_empty()
    assert "param-url-error" in (await url.get_attribute("aria-describedby") or "")
    await expect(dialog).to_be_visible()


async def test_markup_in_names_and_output_is_text(open_page: Open) -> None:
    page, _ = await open_page()
    await _new_task(page, MARKUP, "echo", MARKUP)
    await page.get_by_role("link", name=MARKUP, exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP)
    assert await page.title() == f"{MARKUP} · Task Service"
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("log")).to_have_text(f"{MARKUP}\n")
    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("dialog")).to_contain_text(MARKUP)
    await page.keyboard.press("Escape")
    await page.goto("/keys")
    await page.get_by_role("button", name="New API Key").click()
    await page.get_by_label("Name", exact=True).fill(MARKUP)
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_role("dialog")).to_contain_text(MARKUP)
    await page.get_by_role("button", name="I have saved this key").click()
    await expect(page.get_by_role("row").filter(has_text=MARKUP)).to_have_count(1)
    assert await page.locator("img, b").count() == 0


async def test_a_run_is_watched_live_and_cancelled(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    await _new_task(page, "Waits", "sh", "-c", "echo ::progress 42.5 Copying; echo on; sleep 60")
    await page.get_by_role("button", name="Run Waits").click()
    await expect(page.locator("#announcer")).to_have_text("Waits was started.")
    row = page.get_by_role("row").filter(has_text="Waits")
    await expect(row).to_contain_text("Running")
    await page.get_by_role("link", name="Running").click()
    await expect(page.get_by_role("listitem")).to_contain_text("Running")
    # How far it has come, for eyes and for screen readers; and not as a line of the output.
    bar = page.get_by_role("progressbar", name="42 % · Copying")
    await expect(bar).to_have_js_property("value", 0.425)
    await expect(page.get_by_role("log")).to_have_text("on\n")
    # The parameters have the names that their handler gives them.
    await expect(page.get_by_role("term").filter(has_text="Command and arguments")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("listitem")).to_contain_text("Cancelled")
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    await expect(page.get_by_role("progressbar")).to_have_count(0)


async def test_a_time_has_the_exact_one_behind(open_page: Open) -> None:
    page, _ = await open_page()
    await _new_task(page, "Timed", "echo", "now")
    await page.get_by_role("link", name="Timed", exact=True).click()
    # How to start it, for whoever has just made it.
    await expect(page.get_by_label("Command that starts this task")).to_contain_text("curl -X POST")
    time = page.locator("time").first
    await expect(time).to_have_text("just now")
    assert (await time.get_attribute("datetime") or "").endswith("Z")
    assert "2" in (await time.get_attribute("title") or "")


async def test_a_task_that_is_not_there_is_said_in_words(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected.add(404)
    await page.goto("/tasks/tsk_none")
    await expect(page.get_by_role("alert").first).to_contain_text("no task with this id")
    await expect(page.get_by_text("Start it from a program")).to_be_hidden()
    await page.get_by_role("link", name="All tasks").click()
    await expect(page.get_by_role("table")).to_be_visible()
