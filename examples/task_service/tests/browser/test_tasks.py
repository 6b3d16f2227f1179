"""Tasks and runs as they are lived with: errors beside fields, live output, cancelling."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from playwright.async_api import Page, Request, Route, expect

from .conftest import Open
from .support import ANSWER_SECONDS, HIDE, LiveService, assert_accessible, fill_arguments

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

MARKUP = '<img src=x onerror="alert(1)"> & <b>bold</b>'

SAVE_TASK = """async ([id, task]) => {
    const answer = await fetch(`/api/tasks/${id ?? ""}`.replace(/\\/$/, ""), {
        method: id ? "PATCH" : "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(task),
    });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
}"""

FINISH_RUN = """async (id) => {
    const send = (method, path) => fetch(`/api${path}`, {method}).then((answer) => answer.json());
    const run = await send("POST", `/tasks/${id}/run`);
    while (!(await send("GET", `/runs/${run.id}`)).finished_at) await new Promise((soon) => setTimeout(soon, 20));
    return run.id;
}"""

WAIT_FOR_LINE = """async ([log, line]) => {
    const read = async () => (await fetch(log, {headers: {Accept: "text/plain"}})).text();
    while (!(await read()).includes(line)) await new Promise((soon) => setTimeout(soon, 20));
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


async def test_an_error_is_shown_beside_its_field(open_page: Open) -> None:
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
    await _new_task(page, "Waits", "sh", "-c", "echo ::progress 42.5 Copying; echo on; sleep 600")
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
    # No message says that it is still being cancelled.
    await expect(page.locator("#announcer")).to_have_text("Waits: Cancelled.")


async def test_a_button_that_is_pressed_is_not_replaced_before_it_is_released(
    open_page: Open,
) -> None:
    """The page of an active run is drawn anew each second, and a press on a button that is gone is no click."""
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    task = {"name": "Pressed", "handler": "command", "params": {"argv": ["sh", "-c", "sleep 600"]}}
    made = await page.evaluate(SAVE_TASK, [None, task])
    await page.goto(f"/tasks/{made['id']}")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("listitem")).to_contain_text("Running")
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def answer_later(route: Route) -> None:
        asked.set()
        await go_on.wait()
        await route.continue_()

    await page.route("**/runs?*", answer_later)
    await asyncio.wait_for(asked.wait(), ANSWER_SECONDS)
    await page.get_by_role("button", name="Cancel").hover()
    await page.mouse.down()
    async with page.expect_response("**/runs?*"):
        go_on.set()
    await page.evaluate("() => new Promise((done) => setTimeout(done, 100))")
    await page.mouse.up()
    await expect(page.get_by_role("listitem")).to_contain_text("Cancelled")


async def test_a_time_has_the_exact_one_behind(open_page: Open) -> None:
    page, _ = await open_page()
    await _new_task(page, "Timed", "echo", "now")
    await page.get_by_role("link", name="Timed", exact=True).click()
    # How to start it, for a user who has just created it.
    await expect(page.get_by_label("Command that runs this task")).to_contain_text("curl -X POST")
    time = page.locator("time").first
    await expect(time).to_have_text(re.compile("^(just now|[1-9] minutes? ago)$"))
    assert (await time.get_attribute("datetime") or "").endswith("Z")
    assert "2" in (await time.get_attribute("title") or "")


async def test_an_unknown_task_has_a_message(open_page: Open) -> None:
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
    return st.lists(text, max_size=12).map(lambda rest: ["echo", *rest])


def _requests() -> st.SearchStrategy[dict[str, object]]:
    token = st.text("abcXYZ-09", min_size=1, max_size=8)
    value = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
    body = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
    headers = st.dictionaries(token.map("X-{}".format), value.map(str.strip), max_size=8)
    return st.fixed_dictionaries(
        {"url": st.just("https://example.org/"), "headers": headers, "body": body}
    )


_TASKS = st.tuples(
    st.fixed_dictionaries(
        {"handler": st.just("command"), "params": st.fixed_dictionaries({"argv": _arguments()})}
    ),
    st.fixed_dictionaries({"handler": st.just("http_request"), "params": _requests()}),
)


async def test_a_secret_is_kept_or_replaced_and_never_shown(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    params = {"url": "https://example.org/", "headers": {"Authorization": "geheim 1"}}
    task = {"name": "Calls", "handler": "http_request", "params": params}
    made = await page.evaluate(SAVE_TASK, [None, task])
    await page.goto(f"/tasks/{made['id']}")
    facts = page.locator("#params")
    await expect(facts).to_contain_text("A secret is set.")
    dialog = page.get_by_role("dialog")

    await page.get_by_role("button", name="Edit").click()
    await expect(dialog).to_contain_text("It is not shown.")
    await dialog.get_by_label("URL").fill("https://example.org/2")
    await dialog.get_by_role("button", name="Save").click()
    await expect(facts).to_contain_text("https://example.org/2")
    await expect(facts).to_contain_text("A secret is set.")

    await page.get_by_role("button", name="Edit").click()
    await dialog.get_by_role("button", name="Replace Headers").click()
    await expect(dialog.get_by_role("button", name="Add entry")).to_be_focused()
    await page.keyboard.press("Enter")
    await dialog.get_by_label("Headers, name 1").fill("Authorization")
    await dialog.get_by_label("Headers, value 1").fill("geheim 2")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_have_count(0)
    await expect(facts).to_contain_text("A secret is set.")
    assert "geheim" not in await page.content()

    await page.get_by_role("button", name="Edit").click()
    await dialog.get_by_role("button", name="Replace Headers").click()
    await dialog.get_by_role("button", name="Save").click()
    await expect(facts).not_to_contain_text("A secret is set.")


async def test_edit_and_save_changes_nothing(open_page: Open) -> None:
    """For any parameters: lines, empty texts and spaces come back as they were."""
    page, _ = await open_page()
    await page.goto("/tasks")
    examples: list[dict[str, object]] = [
        {"handler": "command", "params": {"argv": ["echo", "", "two\nlines", "a\r\nb", " x "]}}
    ]

    @seed(20)
    @settings(max_examples=3, database=None, deadline=None, phases=[Phase.generate])
    @given(_TASKS)
    def collect(tasks: tuple[dict[str, object], ...]) -> None:
        examples.extend(tasks)

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


async def test_what_a_form_would_refuse_is_kept_if_it_is_not_edited(open_page: Open) -> None:
    """A handler of an older version stored it, or a program did."""
    page, _ = await open_page()
    await page.goto("/tasks")
    made = await page.evaluate(
        SAVE_TASK, [None, {"name": "Old", "handler": "command", "params": {"argv": ["echo"]}}]
    )
    text = {"type": "string"}
    schema = {
        "type": "object",
        "required": ["retries", "size"],
        "properties": {
            "retries": {"type": "integer", "minimum": 1},
            "size": {"type": "number"},
            "labels": {"type": "object", "additionalProperties": text},
            "level": {"enum": ["low", "high"]},
            "tags": {"type": "array", "items": {**text, "title": "Tag"}},
            "note": {**text, "title": "Note"},
        },
    }
    refused = {
        "retries": 0,
        "size": "large",
        "labels": {"": "nameless", " twice": "1", "twice": "2"},
        "level": "middle",
    }
    stored = {**made, "params": {**refused, "note": "before"}}
    sent: list[dict[str, object]] = []

    async def answer_handlers(route: Route) -> None:
        item = {"name": "command", "title": None, "description": None, "params_schema": schema}
        await route.fulfill(json={"items": [item]})

    async def answer_task(route: Route) -> None:
        if route.request.method == "PATCH":
            sent.append(route.request.post_data_json)
        await route.fulfill(json=stored)

    await page.route("**/api/handlers", answer_handlers)
    await page.route(f"**/api/tasks/{made['id']}", answer_task)
    await page.goto(f"/tasks/{made['id']}")
    await page.get_by_role("button", name="Edit").click()
    await expect(page.get_by_role("button", name="Add tag")).to_be_visible()
    await page.get_by_label("Note").fill("after")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert [body["params"] for body in sent] == [{**refused, "note": "after"}]


async def test_short_parameters_stand_beside_each_other(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    params = {"url": "https://example.org/a/longer/path", "method": "PUT", "headers": {"A": "b"}}
    task = {"name": "Wide", "handler": "http_request", "params": params}
    made = await page.evaluate(SAVE_TASK, [None, task])
    await page.goto(f"/tasks/{made['id']}")
    await expect(page.get_by_role("term").filter(has_text="Method")).to_be_visible()
    tops = {
        await one.locator("dt").inner_text(): (await one.bounding_box() or {})["y"]
        for one in await page.locator("#params > div").all()
    }
    assert tops["URL"] < tops["Method"] == tops["Headers"]


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


async def test_a_permalink_shows_its_run_however_many_are_newer(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    task = {"name": "Often", "handler": "command", "params": {"argv": ["echo", "first output"]}}
    made = await page.evaluate(SAVE_TASK, [None, task])
    first = await page.evaluate(FINISH_RUN, made["id"])
    await page.evaluate(
        SAVE_TASK, [made["id"], {"params": {"argv": ["echo", "other"]}, "handler": "command"}]
    )
    live_service.repeat_run(await page.evaluate(FINISH_RUN, made["id"]), 25)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/api")[2]))
    await page.goto(f"/tasks/{made['id']}?run={first}")
    await expect(page.get_by_role("listitem")).to_have_count(25)
    log = page.get_by_role("log")
    await expect(log).to_have_text("first output\n")
    newest = await page.evaluate(FINISH_RUN, made["id"])
    # The list is read again; the run of the link stays.
    link = page.get_by_role("listitem").first.get_by_role("link")
    await expect(link).to_have_attribute("href", re.compile(newest))
    await expect(log).to_have_text("first output\n")
    assert page.url.endswith(f"?run={first}")
    assert f"/runs/{first}" in asked
    await link.click()
    await expect(log).to_have_text("other\n")
    # A run that the list has is not fetched once more.
    asked.clear()
    listed = page.url.partition("?run=")[2]
    await page.reload()
    await expect(log).to_have_text("other\n")
    assert f"/runs/{listed}/log" in asked
    assert f"/runs/{listed}" not in asked


async def test_an_unreachable_service_has_a_message_until_it_answers(open_page: Open) -> None:
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


async def test_output_has_colours_lines_times_search_and_a_download(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    script = r"printf 'plain \033[1;31mred\033[0m <b>x</b>\n\033[38;5;2mgreen\033[m\033[2K\nlast\n'"
    await _new_task(page, "Colourful", "sh", "-c", script)
    await page.get_by_role("link", name="Colourful", exact=True).click()
    await page.get_by_role("button", name="Run").click()
    log = page.get_by_role("log")
    # Sequences are no text, and markup is.
    await expect(log).to_have_text("plain red <b>x</b>\ngreen\nlast\n")
    await expect(log.locator(".colour-1.mark-1")).to_have_text("red")
    await expect(log.locator(".colour-2")).to_have_text("green\n")
    lines = log.locator(".line")
    await expect(lines).to_have_count(3)
    await expect(page.get_by_role("listitem").first).to_contain_text("Succeeded")

    await page.get_by_label("Search the output").fill("GREEN")
    await expect(log.locator(".found")).to_have_text("green\n")
    await expect(page.get_by_text("1 line", exact=True)).to_be_visible()
    await page.keyboard.press("Enter")
    await expect(lines.nth(1)).to_have_class(re.compile("pointed"))

    # A line's number is its permalink.
    await log.get_by_role("link", name="Line 3").click()
    await expect(page).to_have_url(re.compile(r"[?]run=run_\w+#L3$"))
    await page.reload()
    await expect(lines.nth(2)).to_have_class(re.compile("pointed"))
    await expect(page.get_by_label("Follow")).not_to_be_checked()

    await page.get_by_label("Times").check()
    shown = await lines.first.evaluate("(line) => getComputedStyle(line, '::before').content")
    assert re.search(r"\d\d:\d\d:\d\d", shown)
    await page.get_by_label("Wrap").uncheck()
    await expect(log).to_have_css("white-space", "pre")
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Download").click()
    download = await downloading.value
    assert download.suggested_filename.startswith("run_")
    text = (await download.path()).read_text()
    assert text == "plain \x1b[1;31mred\x1b[0m <b>x</b>\n\x1b[38;5;2mgreen\x1b[m\x1b[2K\nlast\n"


async def test_output_after_an_unfinished_sequence_is_shown(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    script = r"printf 'first\n\033]0;a title without its end\nmore\nlast\n'"
    await _new_task(page, "Unfinished", "sh", "-c", script)
    await page.get_by_role("link", name="Unfinished", exact=True).click()
    await page.get_by_role("button", name="Run").click()
    lines = page.get_by_role("log").locator(".line")
    await expect(lines).to_have_count(4)
    await expect(lines.last).to_have_text("last\n")


async def test_a_hidden_tab_that_follows_a_run_holds_no_connection(
    open_page: Open, tmp_path: Path
) -> None:
    """Browsers open six connections to one host: six tabs in the background would block all others."""
    page, _ = await open_page()
    streams: list[str] = []

    def note(request: Request) -> None:
        if request.resource_type == "eventsource":
            streams.append(request.url)

    page.on("request", note)
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    go_on = tmp_path / "go on"
    script = 'echo begun; until [ -e "$0" ]; do sleep 0.1; done; echo over; sleep 600'
    task = {
        "name": "Long",
        "handler": "command",
        "params": {"argv": ["sh", "-c", script, str(go_on)]},
    }
    made = await page.evaluate(SAVE_TASK, [None, task])
    await page.goto(f"/tasks/{made['id']}")
    await page.get_by_role("button", name="Run").click()
    log = page.get_by_role("log")
    await expect(log).to_have_text("begun\n")
    await expect(page).to_have_url(re.compile("run="))
    (stream,) = streams

    async with page.expect_event("requestfailed", lambda request: request.url == stream):
        await page.evaluate(HIDE, True)
    go_on.touch()
    await page.evaluate(WAIT_FOR_LINE, [stream, "over"])
    await expect(log).to_have_text("begun\n")
    assert streams == [stream]
    # What was written meanwhile comes when the tab is shown again, and nothing twice.
    await page.evaluate(HIDE, False)
    await expect(log).to_have_text("begun\nover\n")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("listitem")).to_contain_text("Cancelled")


async def test_a_long_output_shows_its_end_or_the_line_of_the_address(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    script = "seq -f '%099.0f' 50000"
    task = {"name": "Long output", "handler": "command", "params": {"argv": ["sh", "-c", script]}}
    made = await page.evaluate(SAVE_TASK, [None, task])
    run_id = await page.evaluate(FINISH_RUN, made["id"])
    await page.goto(f"/tasks/{made['id']}")
    # A line's number is that which it has in the whole output.
    await expect(page.locator("#L50000")).to_contain_text("0050000")
    await expect(page.locator("#L50001")).to_have_count(0)
    await expect(page.get_by_text("Earlier lines are in the download.")).to_be_visible()

    await page.goto(f"/tasks/{made['id']}?run={run_id}#L20000")
    await page.reload()
    await expect(page.get_by_text("Later lines are in the download.")).to_be_visible()
    await expect(page.locator("#L20000")).to_contain_text("0020000")
    await expect(page.locator("#L20000")).to_be_in_viewport(ratio=1)
    await expect(
        page.get_by_text(re.compile(r"\d (K|M)iB of the output \(lines: [\d,]+\) are not kept"))
    ).to_have_count(1)


async def test_a_gap_in_the_output_leaves_room_for_its_numbers_and_says_what_is_searched(
    open_page: Open,
) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    # Few long lines, and a million short ones that are not kept.
    script = "seq -f '%0999.0f' 4000; yes | head -n 1000000; echo needle; seq -f '%0999.0f' 2200"
    task = {"name": "With a gap", "handler": "command", "params": {"argv": ["sh", "-c", script]}}
    made = await page.evaluate(SAVE_TASK, [None, task])
    await page.evaluate(FINISH_RUN, made["id"])
    await page.goto(f"/tasks/{made['id']}")
    found = page.get_by_role("search", name="Output").get_by_role("status")
    await page.get_by_role("searchbox", name="Search the output").fill("needle")
    last = page.locator("#L1006201")
    await expect(last).to_contain_text("2200")
    await expect(found).to_have_text("0 lines of those shown")
    number = await last.locator(".number").bounding_box()
    text = await last.locator(".stdout").first.bounding_box()
    assert number is not None
    assert text is not None
    assert number["height"] < 24
    assert number["x"] + number["width"] <= text["x"]


async def test_the_live_end_is_in_view_at_900_pixels(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; done; sleep 600"
    await _new_task(page, "Many lines", "sh", "-c", script)
    await page.get_by_role("link", name="Many lines", exact=True).click()
    await page.get_by_role("button", name="Run").click()
    last = page.locator("#L300")
    await expect(last).to_contain_text("line 300")
    await expect(last).to_be_in_viewport(ratio=1)
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("listitem")).to_contain_text("Cancelled")


async def test_what_failed_is_one_click_away_and_the_address_keeps_the_filters(
    open_page: Open,
) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.evaluate(ALLOW_SH)
    await _new_task(page, "Breaks at night", "sh", "-c", "exit 3")
    await page.get_by_role("button", name="Run Breaks at night").click()
    # The message leads to the run, also when the run is over.
    await expect(page.locator("#announcer")).to_have_text("Breaks at night: Failed.")
    await assert_accessible(page, "message with a link", ["color-contrast"])
    # On a phone it has the width of the page.
    await page.set_viewport_size({"width": 390, "height": 844})
    box = await page.get_by_role("link", name="View run").bounding_box()
    assert box is not None
    assert box["height"] < 30
    await page.set_viewport_size({"width": 1440, "height": 900})
    await page.get_by_role("link", name="View run").click()
    await expect(page.get_by_role("listitem").first).to_contain_text("Failed")
    run = page.url.partition("run=")[2]

    await page.get_by_role("link", name="Runs", exact=True).click()
    await page.get_by_role("link", name="Failed in the last 24 hours").click()
    await expect(page.get_by_label("State")).to_have_value("failed timed_out")
    await page.reload()
    link = page.get_by_role("link", name="Breaks at night #1")
    await expect(link).to_be_visible()
    await page.get_by_label("Key", exact=True).fill("AAAAAAAAAAAA")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No runs match.")).to_be_visible()
    await page.get_by_label("Key", exact=True).fill("")
    await page.keyboard.press("Enter")
    await link.click()
    await expect(page).to_have_url(re.compile(f"run={run}"))
