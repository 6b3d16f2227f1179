"""A run again, with the same or other parameters; its number, and the picture of the runs before."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from .conftest import Open
from .support import fill_arguments

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

MAKE = """async (argv) => {
    const body = JSON.stringify({name: "Repeated", handler: "command", params: {argv}});
    const answer = await fetch("/api/tasks", {method: "POST", headers: {"Content-Type": "application/json"}, body});
    return (await answer.json()).id;
}"""


async def _open_task(page: Page, *argv: str) -> None:
    await page.goto("/tasks")
    await page.goto(f"/tasks/{await page.evaluate(MAKE, list(argv))}")
    await page.get_by_role("button", name="Run R").click()
    await expect(page.get_by_role("log")).to_have_text(f"{argv[-1]}\n")


async def test_a_run_is_repeated_as_it_was_and_with_other_parameters(open_page: Open) -> None:
    page, watch = await open_page()
    await _open_task(page, "echo", "first")
    runs = page.get_by_role("listitem")
    head = page.locator("#run-head")
    await expect(runs.first).to_contain_text("#1")

    await page.get_by_role("button", name="Re-run", exact=True).click()
    await expect(runs.first).to_contain_text("Succeeded #2")
    await expect(head).to_contain_text("#2")
    await expect(page.get_by_role("log")).to_have_text("first\n")

    await page.get_by_role("button", name="Change and re-run").click()
    dialog = page.get_by_role("dialog", name="Run #2 again")
    watch.expected.add(422)
    await fill_arguments(dialog, "no-such-command")
    await dialog.get_by_role("button", name="Start run").click()
    await expect(dialog.locator("#rerun-argv-error")).not_to_be_empty()
    await fill_arguments(dialog, "echo", "second")
    await dialog.get_by_role("button", name="Start run").click()
    await expect(dialog).to_be_hidden()
    await expect(runs.first).to_contain_text("Succeeded #3")
    await expect(page.get_by_role("log")).to_have_text("second\n")
    # The task is as it was; the run that was changed keeps its parameters.
    await expect(page.locator("#params")).to_contain_text("first")
    await page.get_by_role("button", name="Re-run", exact=True).click()
    await expect(runs.first).to_contain_text("Succeeded #4")
    await expect(page.get_by_role("log")).to_have_text("second\n")
    await expect(page).to_have_url(re.compile("run=run_"))


async def test_the_runs_before_are_a_picture_with_its_text(open_page: Open) -> None:
    page, _ = await open_page()
    await _open_task(page, "echo", "drawn")
    picture = page.get_by_role("img", name="Duration and outcome of these runs")
    await expect(page.get_by_role("listitem").first).to_contain_text("Succeeded")
    # One run is no course of things.
    await expect(picture).to_have_count(0)
    await page.evaluate(
        """async () => {
            const config = await (await fetch("/api/admin/config")).json();
            await fetch("/api/admin/config", {
                method: "PATCH", headers: {"Content-Type": "application/json"},
                body: JSON.stringify({allowed_commands: [...new Set([...config.allowed_commands, "false"])]}),
            });
        }"""
    )
    await page.get_by_role("button", name="Change and re-run").click()
    dialog = page.get_by_role("dialog", name="Run #1 again")
    await dialog.get_by_role("button", name="Remove Command and arguments, 2").click()
    await fill_arguments(dialog, "false")
    await dialog.get_by_role("button", name="Start run").click()
    await expect(page.get_by_role("listitem").first).to_contain_text("Failed #2")
    await expect(picture).to_be_visible()
    await expect(page.locator("#chart figcaption")).to_contain_text("1 of 2 succeeded · median ")
    # The oldest at the left, and a mark that is no colour below what failed.
    bars = picture.locator("g")
    await expect(bars).to_have_count(2)
    await expect(bars.first.locator("title")).to_contain_text("#1: Succeeded, ")
    await expect(bars.first.locator("rect")).to_have_count(1)
    await expect(bars.last.locator("rect")).to_have_count(2)
    # A filter of the list is none of the picture.
    await page.get_by_label("Filter runs by state").select_option("Failed")
    await expect(page.get_by_role("listitem")).to_have_count(1)
    await expect(bars).to_have_count(2)


async def test_a_run_names_the_key_that_started_it(open_page: Open) -> None:
    page, _ = await open_page()
    await _open_task(page, "echo", "by a person")
    task_id = page.url.partition("/tasks/")[2].partition("?")[0]
    await page.evaluate(
        """async (task) => {
            const headers = {"Content-Type": "application/json"};
            const body = JSON.stringify({name: "nightly build", scopes: ["tasks:run"], expires_in_days: 1});
            const {key} = await (await fetch("/api/keys", {method: "POST", headers, body})).json();
            await fetch(`/api/tasks/${task}/run`, {
                method: "POST", credentials: "omit", headers: {...headers, Authorization: `Bearer ${key}`},
            });
        }""",
        task_id,
    )
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await page.get_by_role("listitem").first.get_by_role("link").click()
    await expect(page.locator("#run-head")).to_contain_text("admin with key nightly build")
