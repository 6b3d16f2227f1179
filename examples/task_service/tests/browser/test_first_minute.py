"""The first minute of a new service, from the printed link to a revoked key, as a person experiences it."""

from __future__ import annotations

import json

import anyio
import pytest
from playwright.async_api import Browser, expect

from .support import PASSWORD, USERNAME, WAIT_MS, LiveService, Watch, log_in, revealed_key

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


async def test_from_the_link_to_a_revoked_key(browser: Browser, new_service: LiveService) -> None:
    async with await browser.new_context(
        base_url=new_service.url, permissions=["clipboard-read", "clipboard-write"]
    ) as context:
        context.set_default_timeout(WAIT_MS)
        page = await context.new_page()
        watch = Watch(page)

        # The first password. The link's secret leaves the address bar and its history at once.
        await page.goto(f"/set-password#{new_service.token}")
        await expect(page).to_have_url(f"{new_service.url}/set-password")
        await page.get_by_label("New password").fill(PASSWORD)
        await page.get_by_label("Confirm password").fill(PASSWORD)
        await page.get_by_role("button", name="Set password").click()
        await page.wait_for_url("**/login?reason=password-set")
        await expect(page.get_by_role("status")).to_have_text(
            "Your password was set. You can log in now."
        )

        # Logging in. No script can read the cookie.
        await log_in(page, USERNAME, PASSWORD)
        await page.wait_for_url("**/tasks")
        assert await page.evaluate("document.cookie") == ""
        example = page.get_by_role("row").nth(1)
        name = await example.get_by_role("link").first.inner_text()
        await expect(example).to_contain_text("Never")

        # A new key, under the avatar menu.
        await page.get_by_role("button", name=f"Account menu of {USERNAME}").click()
        await page.locator("#user-menu").get_by_role("link", name="API Keys").click()
        await expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
        await page.get_by_role("button", name="New API Key").click()
        await page.get_by_label("Name", exact=True).fill("ci pipeline")
        await page.get_by_role("button", name="Create key").click()

        # Its value: selected with one click, copied with feedback, and a command that is ready.
        reveal = page.get_by_role("dialog", name="Save this key now")
        value = reveal.get_by_label("The key’s value")
        key = await revealed_key(page)
        await value.click()
        assert await page.evaluate("String(getSelection())") == key
        await reveal.get_by_role("button", name="Copy key").click()
        await expect(reveal.get_by_role("status")).to_have_text("Copied.")
        assert await page.evaluate("navigator.clipboard.readText()") == key
        # The commands work as printed, and hold no secret that would stay in the shell's history.
        take = await reveal.get_by_label("Command that takes the key").inner_text()
        use = await reveal.get_by_label("Command that shows what the key may do").inner_text()
        assert key not in take + use
        shown = await anyio.run_process(
            ["bash", "-c", f"{take}\n{use} --silent"], input=f"{key}\n".encode()
        )
        assert json.loads(shown.stdout)["credential"]["key_id"] == key[4:16]
        tasks = await page.evaluate("fetch('/api/tasks?limit=1').then((answer) => answer.json())")
        path = f"/api/tasks/{tasks['items'][0]['id']}/run"

        # Gone for good: acknowledged, on reload, on Back.
        await reveal.get_by_role("button", name="I have saved this key").click()
        await expect(reveal).to_be_hidden()
        row = page.get_by_role("row").filter(has_text="ci pipeline")
        await expect(row).to_contain_text("Never")
        assert key not in await page.content()
        await page.reload()
        await expect(row).to_be_visible()
        assert key not in await page.content()
        await page.get_by_role("link", name="Tasks").click()
        await page.wait_for_url("**/tasks")
        await page.go_back()
        await expect(row).to_be_visible()
        assert key not in await page.content()
        assert key not in str(await context.storage_state())
        assert (
            await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
            == "[{},{}]"
        )

        # What the command does: the task runs, and the page shows it with its output.
        await page.goto("/tasks")
        await expect(page.get_by_role("row").nth(1)).to_contain_text(name)
        assert new_service.request("POST", path, key) == 202
        succeeded = page.get_by_role("link", name="Succeeded")
        await expect(succeeded).to_be_visible()
        await succeeded.click()
        await expect(page.get_by_role("log")).to_contain_text("Hello")
        await expect(page.get_by_text("with key ci pipeline")).to_be_visible()

        # Rotated with an overlap: both work, and the old one names its successor.
        await page.goto("/keys")
        await page.get_by_role("button", name="Rotate ci pipeline").click()
        await page.get_by_label("The old key keeps working for").select_option("1 hour")
        await page.get_by_role("button", name="Rotate key").click()
        successor = await revealed_key(page)
        await page.get_by_role("button", name="I have saved this key").click()
        assert successor != key
        await expect(page.get_by_text(f"Replaced by {successor[4:16]}")).to_be_visible()
        assert new_service.request("GET", "/api/tasks", key) == 200
        assert new_service.request("GET", "/api/tasks", successor) == 200

        # Revoked: confirmed by name, and refused at once.
        row = page.get_by_role("row").filter(has_text=f"msk_{successor[4:16]}")
        await row.get_by_role("button", name="Revoke ci pipeline").click()
        confirm = page.get_by_role("dialog", name="Revoke ci pipeline?")
        await expect(confirm).to_contain_text(f"msk_{successor[4:16]}")
        await confirm.get_by_role("button", name="Revoke key").click()
        await expect(row).to_contain_text("Revoked")
        assert new_service.request("GET", "/api/tasks", successor) == 401
        assert new_service.request("GET", "/api/tasks", key) == 200

        # Deleted: off the list.
        await row.get_by_role("button", name="Delete ci pipeline").click()
        await page.get_by_role("button", name="Delete key").click()
        await expect(row).to_have_count(0)

        # The link was good once.
        watch.expected.add(410)
        await page.goto(f"/set-password#{new_service.token}")
        await expect(page.get_by_role("alert")).to_contain_text("used already")
        await expect(page.get_by_label("New password")).to_be_hidden()
        watch.assert_clean()
