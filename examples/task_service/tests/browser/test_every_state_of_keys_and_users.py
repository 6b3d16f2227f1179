"""Every state of the pages of keys, of the account and of the administration; the others are in test_every_state.py."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Page, expect

from .conftest import Open
from .support import States, Watch, assert_every_state, create_key

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


async def _key_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    await page.goto("/keys")
    await create_key(page, "a key with a long name " * 4)
    await expect(page.get_by_role("table")).to_be_visible()
    yield "keys"
    await page.get_by_label("Search by name or id").fill("no such key")
    await expect(page.get_by_text("No keys match.")).to_be_visible()
    yield "no key found"
    await page.get_by_label("Search by name or id").fill("")
    await page.get_by_role("button", name="New API Key").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Lifetime").select_option("custom")
    await dialog.get_by_label("Only these:").check()
    await dialog.get_by_label("Only these tasks").check()
    await expect(
        dialog.get_by_role("group", name="Tasks").get_by_role("checkbox")
    ).not_to_have_count(0)
    await dialog.get_by_text("Description, labels and networks").click()
    await dialog.get_by_role("button", name="Create key").click()
    await expect(dialog.get_by_text("Fill in this field.").first).to_be_visible()
    yield "new key with errors"
    await dialog.get_by_label("Only these tasks").uncheck()
    await dialog.get_by_label("Name", exact=True).fill("short-lived")
    await dialog.get_by_label("days", exact=True).fill("3")
    await dialog.get_by_role("button", name="Create key").click()
    await expect(dialog.get_by_text("Tick at least one permission")).to_be_visible()
    yield "new key without a permission"
    await dialog.get_by_label(re.compile("tasks:read$")).check()
    await dialog.get_by_role("button", name="Create key").click()
    await expect(page.get_by_label("The key’s value")).to_be_visible()
    yield "value revealed"
    await page.get_by_role("button", name="Copy key").click()
    await expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("Copied.")
    yield "value copied"
    await page.get_by_role("button", name="I have saved this key").click()
    row = page.get_by_role("row").filter(has_text="short-lived").first
    await expect(row).to_contain_text("in 3 days")
    await expect(page.get_by_text("within 7 days")).to_be_visible()
    yield "keys of which one ends soon"
    await row.get_by_role("button", name="Rotate").click()
    yield "rotate"
    await page.keyboard.press("Escape")
    await row.get_by_role("button", name="Revoke").click()
    yield "revoke"
    await page.get_by_role("button", name="Revoke key").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.locator(".segments label").filter(has_text="Revoked").click()
    await expect(page.get_by_role("row").nth(1)).to_contain_text("Revoked")
    yield "revoked keys"


async def _admin_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    watch.expected |= {404, 409, 422}
    await page.goto("/admin/config")
    keys = page.get_by_label("Active keys per user")
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
    await expect(dialog.get_by_text("Fill in this field.")).to_be_visible()
    yield "new user with an error"
    await dialog.get_by_label("Username").fill("somebody")
    await dialog.get_by_role("button", name="Create user").click()
    await expect(page.get_by_label("One-time link", exact=True)).to_contain_text("/set-password#")
    yield "invitation link"
    await page.get_by_role("button", name="Done").click()
    await page.get_by_role("button", name="Disable: somebody").first.click()
    yield "disable a user"
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(page.get_by_role("table").get_by_text("Disabled").first).to_be_visible()
    yield "users"
    await page.get_by_label("Search by name or id").fill("no such name")
    await expect(page.get_by_text("No users match.")).to_be_visible()
    yield "no user found"
    await page.goto("/keys")
    await create_key(page, "for all to see")
    await page.goto("/admin/keys")
    await page.get_by_role("checkbox", name="Select for all to see").first.check()
    yield "all keys"
    await page.get_by_role("button", name="Revoke selected").click()
    yield "revoke selected keys"
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_label("Owner").fill("unknown-owner")
    await expect(page.get_by_text("No keys match.")).to_be_visible()
    yield "no key found"
    await page.goto("/admin/audit")
    await expect(page.get_by_role("table")).to_be_visible()
    yield "audit log"
    await page.set_viewport_size({"width": 360, "height": 900})
    await page.get_by_text("More filters").click()
    yield "all filters of the audit log"
    await page.get_by_role("textbox", name="User").fill("no such name")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No entries match")).to_be_visible()
    yield "nothing found in the audit log"
    await page.goto("/admin/system")
    await expect(page.get_by_text("SQLite")).to_be_visible()
    yield "system"


async def _service_account_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    watch.expected |= {404, 409, 422}
    await page.goto("/admin/service-accounts")
    await page.get_by_role("button", name="New service account").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Create service account").click()
    await expect(dialog.get_by_text("Fill in this field.")).to_be_visible()
    yield "new service account with an error"
    await dialog.get_by_label("Name", exact=True).fill("backup-" + "of-a-long-name-" * 3)
    await dialog.get_by_label("Description").fill("Copies the archive to the other site. " * 4)
    await dialog.get_by_role("button", name="Create service account").click()
    await page.wait_for_url("**/admin/service-accounts/svc_*")
    await expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
    yield "service account without keys"
    await page.get_by_role("button", name="New API Key").click()
    yield "new key of a service account"
    await page.keyboard.press("Escape")
    await create_key(page, "nightly copy")
    await expect(page.get_by_role("table", name="API keys")).to_be_visible()
    yield "service account"
    await page.get_by_role("button", name="Edit").click()
    yield "edit a service account"
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Delete", exact=True).click()
    yield "delete a service account"
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="nightly copy").click()
    await expect(page.get_by_role("table", name="History")).to_be_visible()
    yield "key of a service account"
    await page.get_by_role("link", name="Service account", exact=True).click()
    await page.get_by_role("button", name="Disable", exact=True).click()
    yield "disable a service account"
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(page.get_by_text("all of its keys are refused")).to_be_visible()
    yield "disabled service account"
    await page.goto("/admin/service-accounts")
    await expect(page.get_by_role("table")).to_be_visible()
    yield "service accounts"
    await page.get_by_label("Search by name or id").fill("no such account")
    await expect(page.get_by_text("No service accounts match.")).to_be_visible()
    yield "no service account found"
    await page.goto("/admin/service-accounts/svc_0000000000000000")
    await expect(page.get_by_role("alert").first).to_be_visible()
    yield "service account that is not there"


async def _own_states(page: Page, watch: Watch) -> AsyncIterator[str]:
    watch.expected |= {403, 422}
    await page.goto("/account")
    await expect(page.get_by_role("table")).to_be_visible()
    yield "account"
    await page.get_by_role("button", name="Change password").click()
    await expect(page.get_by_text("Fill in this field.").first).to_be_visible()
    yield "account with errors"
    await page.goto("/keys")
    await create_key(page, "looked at")
    await page.get_by_label("Select looked at").first.check()
    await page.get_by_role("button", name="Revoke", exact=True).click()
    yield "revoke selected keys"
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="looked at").first.click()
    await expect(page.get_by_role("table", name="History")).to_be_visible()
    yield "key"
    await page.get_by_role("button", name="Edit").click()
    yield "edit a key"
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Rotate").click()
    yield "rotate on the key's page"
    await page.keyboard.press("Escape")
    watch.expected.add(404)
    await page.goto("/keys/000000000000")
    await expect(page.get_by_role("alert").first).to_be_visible()
    yield "key that is not there"


@pytest.mark.parametrize(
    "states", [_key_states, _admin_states, _service_account_states, _own_states]
)
async def test_every_state_is_accessible_and_fits(open_page: Open, states: States) -> None:
    page, watch = await open_page()
    await assert_every_state(page, states(page, watch))
