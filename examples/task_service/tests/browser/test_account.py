"""One's own account: where one is logged in, the password, the trail of a key, the history of a task."""

from __future__ import annotations

import re

import httpx2
import pytest
from playwright.async_api import expect

from .conftest import Open
from .support import ANSWER_SECONDS, PASSWORD, SEND, LiveService

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

NEW_PASSWORD = "eleven amber kites in march"


async def test_logins_are_ended_and_the_password_is_changed(
    open_page: Open, live_service: LiveService
) -> None:
    live_service.add_user("walker")
    page, watch = await open_page(user="walker")
    watch.expected |= {401, 422}

    # A program's login is ended by itself, at once.
    answer = httpx2.post(
        f"{live_service.url}/api/auth/login",
        json={"username": "walker", "password": PASSWORD},
        headers={"User-Agent": "curl/8.0"},
        timeout=ANSWER_SECONDS,
    )
    ended = answer.json()["access_token"]
    other = live_service.log_in("walker")["value"]
    await page.goto("/account")
    await expect(page.get_by_role("row").filter(has_text="this session")).to_have_count(1)
    await page.get_by_role("button", name="End the session on curl").click()
    await expect(page.locator("#announcer")).to_have_text("The session was ended.")
    await expect(page.get_by_role("row").filter(has_text="curl")).to_have_count(0)
    assert live_service.request("GET", "/api/auth/me", ended) == 401

    # All others at once.
    assert live_service.request("GET", "/api/auth/me", other) == 200
    await page.get_by_role("button", name="End all other sessions").click()
    confirm = page.get_by_role("dialog", name="End all other sessions?")
    await confirm.get_by_role("button", name="End sessions").click()
    await expect(page.get_by_role("row")).to_have_count(2)
    assert live_service.request("GET", "/api/auth/me", other) == 401

    # The password, with the present one.
    current = page.get_by_label("Current password")
    repeated = page.get_by_label("Confirm new password")
    await current.fill("not my password at all")
    await page.get_by_label("New password", exact=True).fill(NEW_PASSWORD)
    await repeated.fill("something else entirely")
    await page.keyboard.press("Enter")
    await expect(page.locator("#repeated-error")).to_have_text("The passwords do not match.")
    await repeated.fill(NEW_PASSWORD)
    await page.keyboard.press("Enter")
    await expect(page.locator("#current-error")).to_contain_text("not your current password")
    await expect(current).to_be_focused()
    await current.fill(PASSWORD)
    await page.keyboard.press("Enter")
    await expect(page.locator("#announcer")).to_contain_text("Your password was changed")
    await expect(current).to_have_value("")
    log_in_path = "/api/auth/login"
    assert live_service.request("POST", log_in_path, username="walker", password=PASSWORD) == 401
    assert (
        live_service.request("POST", log_in_path, username="walker", password=NEW_PASSWORD) == 200
    )


async def test_a_key_shows_its_trail_and_when_the_old_value_was_seen(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    body = {"name": "with a past", "scopes": ["tasks:write"], "expires_in_days": 90}
    key = (await page.evaluate(SEND, ["/keys", body]))["key"]
    task = '{"name": "by a key", "handler": "command", "params": {"argv": ["echo"]}}'
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    made = httpx2.post(
        f"{live_service.url}/api/tasks", content=task, headers=headers, timeout=ANSWER_SECONDS
    )
    assert made.status_code == 201
    await page.reload()
    await page.get_by_role("button", name="Rotate with a past").click()
    await page.get_by_role("button", name="Rotate key").click()
    await page.get_by_role("button", name="I have saved this key").click()
    old = page.get_by_role("row").filter(has_text=f"msk_{key[4:16]}")
    # What was seen is written in batches; until then it was not.
    await expect(old).to_contain_text(re.compile("the old key was (never used|last used)"))
    await old.get_by_role("link", name="with a past").click()
    rows = page.get_by_role("table", name="History").get_by_role("row")
    for index, action in enumerate(("key.rotated", "task.created", "key.created"), 1):
        await expect(rows.nth(index)).to_contain_text(action)
    await expect(rows.nth(2)).to_contain_text("Key with a past")
    used = rows.nth(2).get_by_role("link", name="with a past")
    await expect(used).to_have_attribute("href", f"/admin/keys/{key[4:16]}")


async def test_a_history_is_seen_at_a_glance_and_filtered(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    task_id = await page.evaluate(
        """async () => {
            const send = (method, path, body) => fetch(`/api${path}`, {
                method, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
            }).then((answer) => answer.json());
            const {allowed_commands: allowed} = await send("GET", "/admin/config");
            await send("PATCH", "/admin/config", {allowed_commands: [...allowed, "false"]});
            const params = (...argv) => ({name: "Mixed", handler: "command", params: {argv}});
            const task = await send("POST", "/tasks", params("echo"));
            const run = async () => {
                const {id} = await send("POST", `/tasks/${task.id}/run`);
                while (!(await send("GET", `/runs/${id}`)).finished_at) await new Promise((soon) => setTimeout(soon, 50));
            };
            await run();
            await send("PATCH", `/tasks/${task.id}`, params("false"));
            await run();
            return task.id;
        }"""
    )
    await page.reload()
    row = page.get_by_role("row").filter(has_text="Mixed")
    marks = row.get_by_role("img", name="Newest runs, the latest first: Failed, Succeeded")
    await expect(marks).to_be_visible()
    await expect(row.locator(".fault")).to_be_visible()  # why, in one line
    await page.goto(f"/tasks/{task_id}")
    await expect(page.get_by_role("listitem")).to_have_count(2)
    await page.get_by_label("Filter runs by state").select_option("Succeeded")
    await expect(page.get_by_role("listitem")).to_have_count(1)
    await page.get_by_label("Filter runs by state").select_option("Cancelled")
    await expect(page.get_by_text("No runs in this state.")).to_be_visible()
