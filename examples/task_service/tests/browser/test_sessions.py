"""The login in the browser: its end, what survives it, and what another site can do with it (nothing)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.async_api import Page, expect

from .conftest import NewContext, Open
from .support import HIDE, USERNAME, LiveService, create_key, log_in, revealed_key

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


async def _own_login(open_page: Open, path: str) -> Page:
    """A page with a login of its own, which the test may end."""
    page, watch = await open_page(alone=True)
    watch.expected.add(401)
    await page.goto(path)
    return page


async def _end_session(page: Page) -> None:
    """The page does not notice by itself, but by what the test does next."""
    await page.evaluate(HIDE, True)
    await page.context.clear_cookies()


async def test_a_half_filled_form_survives_the_end_of_the_session(open_page: Open) -> None:
    page = await _own_login(open_page, "/keys")
    await page.get_by_role("button", name="New API Key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("half-filled")
    await dialog.get_by_label("Lifetime").select_option("custom")
    await dialog.get_by_label("days", exact=True).fill("12")
    await dialog.get_by_label("Only these:").check()
    await dialog.get_by_label("tasks:run").check()
    await dialog.get_by_label("Only these tasks").check()
    await dialog.get_by_label("Say hello").first.check()
    await dialog.get_by_text("Description, labels and networks").click()
    await dialog.get_by_label("Labels").fill("env:prod")
    await _end_session(page)
    await dialog.get_by_role("button", name="Create key").click()
    await page.wait_for_url("**/login?next=%2Fkeys&reason=session-ended")
    await expect(page.get_by_role("status")).to_contain_text("Your session has ended")

    await log_in(page)
    await page.wait_for_url("**/keys")
    await expect(dialog.get_by_label("Name", exact=True)).to_have_value("half-filled")
    await expect(dialog.get_by_label("days", exact=True)).to_have_value("12")
    await expect(dialog.get_by_label("tasks:run")).to_be_checked()
    await expect(dialog.get_by_label("tasks:write")).not_to_be_checked()
    await expect(dialog.get_by_label("Say hello").first).to_be_checked()
    await expect(dialog.get_by_label("Labels")).to_have_value("env:prod")
    await expect(dialog.get_by_label("Labels")).to_be_visible()
    await dialog.get_by_role("button", name="Create key").click()
    await page.get_by_role("button", name="I have saved this key").click()
    row = page.get_by_role("row").filter(has_text="half-filled")
    await expect(row).to_contain_text("tasks:run")
    await expect(row).to_contain_text("in 12 days")
    await expect(row).to_contain_text("Only 1 task")
    assert await page.evaluate("sessionStorage.length") == 0


async def test_secrets_in_a_form_do_not_survive_it(open_page: Open) -> None:
    page = await _own_login(open_page, "/tasks")
    await page.get_by_role("button", name="New task").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("Calls out")
    await dialog.get_by_label("Handler").select_option("http_request")
    await dialog.get_by_label("URL").fill("https://example.org/")
    await dialog.get_by_role("button", name="Add entry").click()
    await dialog.get_by_label("Headers, name 1").fill("X-Password")
    await dialog.get_by_label("Headers, value 1").fill("hunter2")
    await dialog.get_by_label("Timeout in seconds").fill("77")
    await dialog.get_by_label("Body").fill(f"key=msk_{'A' * 12}_{'B' * 38}")
    await _end_session(page)
    await dialog.get_by_role("button", name="Create task").click()
    await page.wait_for_url("**/login?**")
    stored = await page.evaluate("JSON.stringify({...sessionStorage})")
    assert "https://example.org/" in stored
    assert "hunter2" not in stored
    assert "msk_" not in stored
    await log_in(page)
    await page.wait_for_url("**/tasks")
    await expect(dialog.get_by_label("URL")).to_have_value("https://example.org/")
    await expect(dialog.get_by_label("Headers, value 1")).to_have_count(0)
    await expect(dialog.get_by_label("Timeout in seconds")).to_have_value("77")
    await expect(dialog.get_by_label("Body")).to_have_value("")


async def test_a_page_that_only_looks_on_notices_the_end_too(open_page: Open) -> None:
    page = await _own_login(open_page, "/tasks")
    await page.clock.install()
    await page.reload()
    await expect(page.get_by_role("table")).to_be_visible()
    await page.context.clear_cookies()
    await page.clock.fast_forward(6000)
    await page.wait_for_url("**/login?next=%2Ftasks&reason=session-ended")


async def test_after_logging_out_back_shows_nothing(open_page: Open) -> None:
    page = await _own_login(open_page, "/keys")
    await create_key(page, "seen before")
    await page.get_by_role("link", name="Tasks").click()
    await page.wait_for_url("**/tasks")
    await page.get_by_role("button", name="Menu of").click()
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url("**/login")
    for _ in range(2):
        await page.go_back()
        await page.wait_for_url("**/login?next=**")
        await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        assert "seen before" not in await page.content()


async def test_leaving_with_an_unsaved_key_asks_first_and_forgets_it(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    await page.get_by_role("button", name="New API Key").click()
    await page.get_by_label("Name", exact=True).fill("left behind")
    await page.get_by_role("button", name="Create key").click()
    key = await revealed_key(page)
    asked: list[str] = []

    async def leave(dialog) -> None:
        asked.append(dialog.type)
        await dialog.accept()

    page.on("dialog", leave)
    await page.goto("/tasks")
    assert asked == ["beforeunload"]
    await page.go_back()
    await expect(page.get_by_role("row").filter(has_text="left behind").first).to_be_visible()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert key not in await page.content()


@pytest.fixture
def other_site(live_service: LiveService) -> Iterator[str]:
    """A page of another origin whose forms aim at the service. A port makes an origin, not a site, so SameSite does
    not help here: what refuses is the service."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            action = self.path.partition("?")[2]
            body = f'<form method="post" action="{live_service.url}{action}"><input name="username" value="x"><input name="password" value="y"><button>Win</button></form><a href="{live_service.url}{action}">Look</a>'
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def test_a_form_on_another_origin_changes_nothing(open_page: Open, other_site: str) -> None:
    page, watch = await open_page()
    watch.expected.add(403)
    for target in ("/logout", "/login", "/api/auth/logout", "/api/keys"):
        await page.goto(f"{other_site}/?{target}")
        async with page.expect_response(f"**{target}") as answered:
            await page.get_by_role("button", name="Win").click()
        assert (await answered.value).status == 403, target
    await page.goto("/tasks")
    await expect(page.get_by_role("table")).to_be_visible()


async def test_a_script_on_another_origin_can_neither_make_a_key_nor_read_the_answer(
    new_context: NewContext, live_service: LiveService, other_site: str
) -> None:
    async with await new_context() as context:
        await context.add_cookies([live_service.log_in(USERNAME)])
        page = await context.new_page()
        await page.goto(f"{other_site}/?/")
        send = """async ([url, method]) => fetch(url, {
            method, credentials: "include", mode: "no-cors", body: method === "GET" ? null : '{"name": "stolen"}',
        }).then((answer) => answer.type, String)"""
        for method in ("POST", "GET"):
            outcome = await page.evaluate(send, [f"{live_service.url}/api/keys", method])
            assert outcome == "TypeError: Failed to fetch"  # Cross-Origin-Resource-Policy
        await page.goto("/keys")
        listed = await page.evaluate("async () => (await fetch('/api/keys?limit=100')).text()")
        assert '"items"' in listed
        assert "stolen" not in listed


async def test_a_link_on_another_site_leads_to_the_page(open_page: Open, other_site: str) -> None:
    page, _ = await open_page()
    await page.goto(f"{other_site.replace('127.0.0.1', 'localhost')}/?/keys")  # another site indeed
    await page.get_by_role("link", name="Look").click()
    await expect(page.get_by_role("heading", name="API Keys")).to_be_visible()
