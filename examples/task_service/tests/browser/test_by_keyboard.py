"""Everything by keyboard alone: no test here ever points at anything."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from .conftest import Open
from .support import KEY, PASSWORD, USERNAME, type_into

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


async def _press(page: Page, *keys: str) -> None:
    for key in keys:
        await page.keyboard.press(key)


async def _tab_to(page: Page, role: str, name: str) -> None:
    """Press Tab until the control has the focus, as a user without a mouse does."""
    wanted = page.get_by_role(role, name=name).first
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await wanted.evaluate("(element) => element === document.activeElement"):
            outline = await wanted.evaluate("(element) => getComputedStyle(element).outlineStyle")
            assert outline == "solid", f"{name} has the focus and does not show it"
            return
    raise AssertionError(f"Tab does not reach {role} {name!r}")


async def test_from_the_login_to_a_revoked_key_and_out(open_page: Open) -> None:
    page, _ = await open_page(user=None)
    await page.goto("/keys")
    await type_into(page.get_by_label("Username"), USERNAME)
    await _press(page, "Tab")
    await type_into(page.get_by_label("Password"), PASSWORD)
    await _press(page, "Enter")
    await page.wait_for_url("**/keys")
    new = page.get_by_role("button", name="New API Key")
    await expect(new).to_be_visible()

    # Escape closes, and the focus is back where it was.
    await _press(page, "n")
    await expect(page.get_by_role("dialog", name="New API Key")).to_be_visible()
    await _press(page, "Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(new).to_be_focused()

    await _press(page, "n")
    # `n` in a text is a letter.
    await type_into(page.get_by_label("Name", exact=True), "by keyboard")
    await _press(page, "Enter")
    reveal = page.get_by_role("dialog", name="Save this key now")
    await expect(reveal.get_by_role("button", name="Copy key")).to_be_focused()
    await _press(page, "Enter")
    await expect(reveal.get_by_role("status")).to_have_text("Copied.")
    assert KEY.fullmatch(await page.evaluate("navigator.clipboard.readText()"))

    # Escape does not lose the value; it leads to the button that closes.
    await _press(page, "Escape", "Escape")
    await expect(reveal).to_be_visible()
    await expect(reveal.get_by_role("button", name="I have saved this key")).to_be_focused()
    await _press(page, "Enter")
    await expect(reveal).to_be_hidden()
    row = page.get_by_role("row").filter(has_text="by keyboard").first
    await expect(row.get_by_text("by keyboard", exact=True)).to_be_focused()

    await _press(page, "/")
    await type_into(page.get_by_label("Search by name or id"), "by keyb")
    await expect(page.get_by_role("row")).to_have_count(2)
    await _tab_to(page, "button", "Revoke by keyboard")
    await _press(page, "Enter")
    confirm = page.get_by_role("dialog", name="Revoke by keyboard?")
    await expect(confirm.get_by_role("button", name="Cancel")).to_be_focused()
    await _press(page, "Escape")
    await expect(page.get_by_role("button", name="Revoke by keyboard")).to_be_focused()
    await _press(page, "Enter", "Tab", "Enter")
    await expect(row).to_contain_text("Revoked")
    await expect(confirm).to_be_hidden()
    await expect(row.get_by_text("by keyboard", exact=True)).to_be_focused()
    await expect(page.locator("#announcer")).to_have_text("by keyboard: revoked.")

    await page.reload()
    await expect(page.get_by_role("table")).to_be_visible()
    await _tab_to(page, "link", "Skip to content")
    await _tab_to(page, "button", f"Account menu of {USERNAME}")
    await _press(page, "Enter", "Tab")
    menu = page.locator("#user-menu")
    await expect(menu.get_by_role("link", name="API Keys")).to_be_focused()
    await _press(page, "Escape")
    await expect(page.get_by_role("button", name=f"Account menu of {USERNAME}")).to_be_focused()
    await _press(page, "Enter")
    await _tab_to(page, "button", "Log out")
    await _press(page, "Enter")
    await page.wait_for_url("**/login")


async def test_a_key_is_rotated_and_its_history_read(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    await expect(page.get_by_role("button", name="New API Key")).to_be_visible()
    await _press(page, "n")
    await type_into(page.get_by_label("Name", exact=True), "turns")
    await _press(page, "Enter")
    reveal = page.get_by_role("dialog", name="Save this key now")
    acknowledge = reveal.get_by_role("button", name="I have saved this key")
    await expect(reveal.get_by_role("button", name="Copy key")).to_be_focused()
    await _press(page, "Escape")
    await expect(acknowledge).to_be_focused()
    await _press(page, "Enter")
    await expect(reveal).to_be_hidden()
    await expect(page.get_by_role("link", name="turns")).to_be_focused()

    await _tab_to(page, "button", "Rotate turns")
    await _press(page, "Enter")
    overlap = page.get_by_label("The old key keeps working for")
    await expect(overlap).to_be_focused()
    await _press(page, "ArrowUp")
    await expect(overlap).to_have_value("3600")
    await _tab_to(page, "button", "Rotate key")
    await _press(page, "Enter")
    await expect(reveal.get_by_role("button", name="Copy key")).to_be_focused()
    await _press(page, "Escape", "Enter")
    await expect(reveal).to_be_hidden()
    rows = page.get_by_role("row").filter(has_text="turns")
    await expect(rows).to_have_count(2)

    await expect(rows.first.get_by_role("link", name="turns")).to_be_focused()
    await _press(page, "Enter")
    await expect(page.get_by_role("table", name="History")).to_contain_text("key.")


async def test_a_task_is_made_changed_run_and_deleted(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await expect(page.get_by_role("table")).to_be_visible()
    await _press(page, "n")
    dialog = page.get_by_role("dialog")
    name = dialog.get_by_label("Name", exact=True)
    await type_into(name, "Typed")
    await _press(page, "Tab")
    while await dialog.get_by_label("Handler").evaluate("(select) => select.value") != "command":
        await _press(page, "ArrowDown")
    await _press(page, "Tab")
    await type_into(dialog.get_by_label("Command and arguments, 1", exact=True), "echo")
    await _tab_to(page, "button", "Add argument")
    await _press(page, "Enter")
    await type_into(
        dialog.get_by_label("Command and arguments, 2", exact=True), "from the keyboard"
    )
    await _tab_to(page, "button", "Create task")
    await _press(page, "Enter")
    await expect(dialog).to_be_hidden()
    await expect(page.get_by_role("link", name="Typed", exact=True)).to_be_visible()

    await page.reload()
    await expect(page.get_by_role("table")).to_be_visible()
    await _tab_to(page, "link", "Typed")
    await _press(page, "Enter")
    await expect(page.get_by_role("heading", name="Typed")).to_be_visible()
    await _tab_to(page, "button", "Edit")
    await _press(page, "Enter")
    await expect(name).to_have_value("Typed")
    await expect(name).to_be_focused()
    await _press(page, "End")
    await type_into(name, " twice")
    await _press(page, "Enter")
    await expect(page.get_by_role("heading", name="Typed twice")).to_be_visible()
    await expect(page.get_by_role("button", name="Edit")).to_be_focused()

    await _press(page, "r")
    await expect(page.get_by_role("listitem").first).to_contain_text("Succeeded")
    await expect(page.get_by_role("log")).to_have_text("from the keyboard\n")

    await page.reload()
    await expect(page.get_by_role("button", name="Delete")).to_be_visible()
    await _tab_to(page, "button", "Delete")
    await _press(page, "Enter")
    await expect(page.get_by_role("dialog", name="Delete Typed twice?")).to_be_visible()
    await _press(page, "Tab", "Enter")
    await page.wait_for_url("**/tasks")
    await expect(page.get_by_role("table")).to_be_visible()
    await expect(page.get_by_role("link", name="Typed twice", exact=True)).to_have_count(0)


async def test_a_setting_a_user_and_the_log_without_a_mouse(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/admin/config")
    await expect(page.get_by_label("Concurrent runs per user")).to_have_value("4")
    await _tab_to(page, "spinbutton", "Concurrent runs per user")
    await _press(page, "ArrowUp", "Enter")
    await expect(page.locator("#announcer")).to_have_text("Saved and in effect.")

    await page.goto("/admin/users")
    await expect(page.get_by_role("table")).to_be_visible()
    await _press(page, "n")
    await type_into(page.get_by_label("Username"), "typist")
    await _press(page, "Enter")
    link = page.get_by_role("dialog", name="One-time link for typist")
    await expect(link.get_by_role("button", name="Copy link")).to_be_focused()
    await _press(page, "Enter")
    await expect(link.get_by_role("status")).to_have_text("Copied.")
    await _press(page, "Escape")
    await expect(page.get_by_role("button", name="New user")).to_be_focused()
    await _tab_to(page, "button", "Disable: typist")
    await _press(page, "Enter")
    await expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    await _press(page, "Tab", "Enter")
    await expect(page.get_by_role("row").filter(has_text="typist")).to_contain_text("Disabled")
    await expect(page.get_by_text("typist", exact=True)).to_be_focused()
    await _press(page, "/")
    await type_into(page.get_by_label("Search by name or id"), "typis")
    await expect(page.get_by_role("row")).to_have_count(2)

    await page.goto("/admin/audit")
    await expect(page.get_by_role("table")).to_be_visible()
    await _tab_to(page, "textbox", "User")
    await page.keyboard.type("nobody")
    await _press(page, "Enter")
    await expect(page.get_by_role("heading", name="No entries match")).to_be_visible()
    await _tab_to(page, "button", "Reset")
    await _press(page, "Enter")
    await expect(page.get_by_role("table")).to_be_visible()

    await page.goto("/account")
    await expect(page.get_by_role("table")).to_be_visible()
    await _tab_to(page, "textbox", "Current password")
