"""Tasks and runs as they are lived with: errors beside fields, live output, cancelling."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from playwright.async_api import Page, Route, expect

from .conftest import Open
from .support import fill_arguments

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

MARKUP = '<img src=x onerror="alert(1)"> & <b>bold</b>'

SAVE_TASK = """async ([id, task]) => {
    const answer = await fetch(`/api/tasks/${id ?? ""}`.replace(/\\/$/, ""), {
        method: id ? "PATCH" : "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(task),
    });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
}"""

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
    await dialog.get_by_label("Handler").select_option("command")
    await fill_arguments(dialog, *argv)
    await dialog.get_by_role("button", name="Create task").click()


async def test_what_the_service_refuses_is_said_beside_the_field(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected.add(422)
    await page.goto("/tasks")
    await page.get_by_role("button", name="New task").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("Internal")
    await dialog.get_by_label("Handler").select_option("http_request")
    url = dialog.get_by_label("URL")
    await url.fill("gopher://example.org/")
    await dialog.get_by_role("button", name="Add entry").click()
    header = dialog.get_by_label("Headers, name 1")
    await dialog.get_by_label("Headers, value 1").fill("text/plain")
    await dialog.get_by_role("button", name="Create task").click()
    await expect(header).to_have_attribute("aria-invalid", "true")
    await expect(dialog.get_by_text("Entry 1 has a value and no name.")).to_be_visible()
    await header.fill("Accept")
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
    await expect(page.get_by_label("Command that runs this task")).to_contain_text("curl -X POST")
    time = page.locator("time").first
    await expect(time).to_have_text("just now")
    assert (await time.get_attribute("datetime") or "").endswith("Z")
    assert "2" in (await time.get_attribute("title") or "")


async def test_a_task_that_is_not_there_is_said_in_words(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected.add(404)
    await page.goto("/tasks/tsk_none")
    await expect(page.get_by_role("alert").first).to_contain_text("no task with this id")
    await expect(page.get_by_text("Run it from a program")).to_be_hidden()
    await page.get_by_role("link", name="All tasks").click()
    await expect(page.get_by_role("table")).to_be_visible()


def _arguments() -> st.SearchStrategy[list[str]]:
    # What JSON, UTF-8 and a program's argument can hold.
    text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12)
    return st.lists(text, max_size=4).map(lambda rest: ["echo", *rest])


def _requests() -> st.SearchStrategy[dict[str, object]]:
    token = st.text("abcXYZ-09", min_size=1, max_size=8)
    value = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
    body = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
    headers = st.dictionaries(token.map("X-{}".format), value.map(str.strip), max_size=3)
    return st.fixed_dictionaries(
        {"url": st.just("https://example.org/"), "headers": headers, "body": body}
    )


_TASKS = st.one_of(
    st.fixed_dictionaries(
        {"handler": st.just("command"), "params": st.fixed_dictionaries({"argv": _arguments()})}
    ),
    st.fixed_dictionaries({"handler": st.just("http_request"), "params": _requests()}),
)


async def test_edit_and_save_changes_nothing(open_page: Open) -> None:
    """For any parameters: lines, empty texts and spaces come back as they were."""
    page, _ = await open_page()
    await page.goto("/tasks")
    examples: list[dict[str, object]] = [
        {"handler": "command", "params": {"argv": ["echo", "", "two\nlines", "a\r\nb", " x "]}}
    ]

    @seed(20)
    @settings(max_examples=12, database=None, deadline=None, phases=[Phase.generate])
    @given(_TASKS)
    def collect(task: dict[str, object]) -> None:
        examples.append(task)

    collect()
    made = await page.evaluate(SAVE_TASK, [None, {"name": "Round trip", **examples[0]}])
    await page.goto(f"/tasks/{made['id']}")
    for example in examples:
        before = await page.evaluate(SAVE_TASK, [made["id"], example])
        await page.reload()
        await page.get_by_role("button", name="Edit").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        after = await page.evaluate(f"fetch('/api/tasks/{made['id']}').then((a) => a.json())")
        assert after["params"] == before["params"], example


async def test_arguments_are_edited_one_by_one(open_page: Open) -> None:
    page, _ = await open_page()
    await _new_task(page, "By parts", "echo", "one\nline and another", "", "last")
    await page.get_by_role("link", name="By parts", exact=True).click()
    await page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Remove Command and arguments, 4").click()
    await expect(dialog.get_by_label("Command and arguments, 3", exact=True)).to_be_focused()
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_have_count(0)
    task_id = page.url.rpartition("/")[2]
    task = await page.evaluate(f"fetch('/api/tasks/{task_id}').then((answer) => answer.json())")
    assert task["params"] == {"argv": ["echo", "one\nline and another", ""]}


async def test_a_permalink_shows_its_run_however_many_are_newer(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    task = {"name": "Often", "handler": "command", "params": {"argv": ["echo", "first output"]}}
    made = await page.evaluate(SAVE_TASK, [None, task])
    run = """async (id) => {
        const send = (method, path) => fetch(`/api${path}`, {method}).then((answer) => answer.json());
        const run = await send("POST", `/tasks/${id}/run`);
        while (!(await send("GET", `/runs/${run.id}`)).finished_at) await new Promise((soon) => setTimeout(soon, 20));
        return run.id;
    }"""
    first = await page.evaluate(run, made["id"])
    await page.evaluate(
        SAVE_TASK, [made["id"], {"params": {"argv": ["echo", "other"]}, "handler": "command"}]
    )
    for _number in range(26):
        await page.evaluate(run, made["id"])
    await page.goto(f"/tasks/{made['id']}?run={first}")
    await expect(page.get_by_role("listitem")).to_have_count(25)
    log = page.get_by_role("log")
    await expect(log).to_have_text("first output\n")
    await page.evaluate(run, made["id"])
    # The list is read again; the run of the link stays.
    await expect(page.get_by_role("listitem").first).to_contain_text("just now")
    await expect(log).to_have_text("first output\n")
    assert page.url.endswith(f"?run={first}")
    await page.get_by_role("listitem").first.get_by_role("link").click()
    await expect(log).to_have_text("other\n")


async def test_a_service_that_is_away_is_said_until_it_is_back(open_page: Open) -> None:
    page, watch = await open_page(alone=True)
    watch.expected.add(502)
    await page.goto("/tasks")
    await expect(page.get_by_role("table")).to_be_visible()
    notice = page.get_by_role("alert").filter(has_text="The service cannot be reached")
    await expect(notice).to_be_hidden()

    async def away(route: Route) -> None:
        await route.fulfill(status=502, body="<h1>Bad Gateway</h1>", content_type="text/html")

    await page.route("**/api/**", away)
    await page.route("**/healthz", away)
    await page.get_by_role("button", name="New task").click()
    await expect(notice).to_be_visible()
    await page.unroute("**/api/**")
    await page.unroute("**/healthz")
    await expect(notice).to_be_hidden()
