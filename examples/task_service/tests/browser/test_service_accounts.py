"""What administrators do with service accounts in the browser, with the mouse and with the keyboard alone."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from .conftest import Open
from .support import SEND, LiveService, assert_fits, create_key, hold, revealed_key, type_into

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


async def _new_account(page: Page, name: str) -> str:
    """Create one on its page; the path of its own page, which follows."""
    await page.goto("/admin/service-accounts")
    await page.get_by_role("button", name="New service account").click()
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_role("button", name="Create service account").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(name)
    return page.url


async def test_a_service_account_gets_a_key_that_works_until_it_is_disabled(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page()
    await _new_account(page, "deploy-bot")
    await expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
    await page.get_by_role("button", name="New API Key").click()
    # A service account gets what is ticked, and no more later.
    await expect(page.get_by_role("dialog").get_by_text("All of mine")).to_have_count(0)
    await expect(page.get_by_role("dialog").get_by_text("tasks:read_all")).to_have_count(0)
    await page.keyboard.press("Escape")
    key = await create_key(page, "conveyor")
    assert live_service.request("GET", "/api/tasks", key) == 200
    row = page.get_by_role("row").filter(has_text="conveyor")
    await expect(row).to_contain_text("Active")

    await page.get_by_role("button", name="Disable", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(page.get_by_text("all of its keys are refused")).to_be_visible()
    await expect(page.get_by_role("button", name="New API Key")).to_be_disabled()
    assert live_service.request("GET", "/api/tasks", key) == 401
    await page.get_by_role("button", name="Enable", exact=True).click()
    await expect(page.get_by_role("button", name="Disable", exact=True)).to_be_focused()
    assert live_service.request("GET", "/api/tasks", key) == 200

    await row.get_by_role("button", name="Revoke").click()
    await page.get_by_role("button", name="Revoke key").click()
    await expect(row).to_contain_text("Revoked")
    assert live_service.request("GET", "/api/tasks", key) == 401
    # It is in no list of the administrator's own keys.
    await page.goto("/keys")
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await expect(page.get_by_role("link", name="conveyor")).to_have_count(0)


async def test_its_first_key_can_be_made_as_soon_as_the_button_works(open_page: Open) -> None:
    page, _ = await open_page()
    go_on = await hold(page, "**/api/keys?*")
    await _new_account(page, "quick-bot")
    new = page.get_by_role("button", name="New API Key")
    await expect(new).to_be_disabled()
    go_on.set()
    await expect(new).to_be_enabled()
    await create_key(page, "quick")


async def test_its_key_can_be_limited_to_its_own_tasks(open_page: Open) -> None:
    page, _ = await open_page()
    account = (await _new_account(page, "narrow-bot")).rpartition("/")[2]
    task = {"name": "Narrow", "handler": "command", "params": {"argv": ["echo"]}}
    await page.evaluate(SEND, ["/tasks", {**task, "owner_id": account}])
    await page.get_by_role("button", name="New API Key").click()
    dialog = page.get_by_role("dialog", name="New API Key")
    await dialog.get_by_label("Name", exact=True).fill("narrow")
    await dialog.get_by_label("Only these tasks").check()
    choices = dialog.get_by_role("group", name="Tasks").get_by_role("checkbox")
    await expect(choices).to_have_count(1)
    await dialog.get_by_label("Narrow").check()
    await dialog.get_by_role("button", name="Create key").click()
    await page.get_by_role("button", name="I have saved this key").click()
    await page.get_by_role("link", name="narrow", exact=True).click()
    await expect(page.locator("#may").get_by_role("link", name="Narrow")).to_be_visible()


async def test_a_long_name_widens_no_list(open_page: Open) -> None:
    page, _ = await open_page()
    name = f"{'a' * 31}-{'b' * 31}"
    account = (await _new_account(page, name)).rpartition("/")[2]
    await create_key(page, "of a long name")
    label = "a-label-of-thirty-characters-x"
    made = await page.evaluate(
        SEND, [f"/keys?on_behalf_of={account}", {"name": "labelled", "labels": [label]}]
    )
    task = {"name": "Of a long name", "handler": "command", "params": {"argv": ["echo"]}}
    made_task = await page.evaluate(SEND, ["/tasks", {**task, "owner_id": account}])
    await page.evaluate(SEND, [f"/tasks/{made_task['id']}/run", {}])
    # Among the keys of other tests they may be on a later page.
    keys = f"/admin/keys?owner={name}"
    for path in (keys, "/tasks", "/runs", f"/admin/keys/{made['id']}"):
        await page.goto(path)
        await expect(page.get_by_role("table")).to_be_visible()
        for width in (360, 390, 1024, 1440):
            await page.set_viewport_size({"width": width, "height": 900})
            await assert_fits(page, f"{path} at {width}")
            if path == "/runs" and width < 1024:
                # Two names without a word would say nothing.
                for label in ("Owner", "Requested by"):
                    shown = page.locator(f"td[data-label='{label}']").first
                    style = "(cell) => getComputedStyle(cell, '::before').content"
                    assert label in await shown.evaluate(style)
            if path == keys:
                revoke = page.get_by_role("button", name="Revoke of a long name")
                box = await revoke.bounding_box()
                assert box is not None
                assert box["x"] + box["width"] <= width
                # An id that is broken into lines cannot be read, and makes each row high.
                owner_id = await page.get_by_text(account, exact=True).first.bounding_box()
                assert owner_id is not None
                assert owner_id["height"] < 30


async def test_the_page_of_its_key_edits_rotates_and_leads_back(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page()
    home = await _new_account(page, "report-bot")
    old = await create_key(page, "weekly report")
    await page.get_by_role("link", name="weekly report").click()
    await page.wait_for_url("**/admin/service-accounts/svc_*/keys/*")
    await expect(page.get_by_text("At most what the service account may do")).to_be_visible()
    await page.get_by_role("button", name="Edit").click()
    await page.get_by_label("Description").fill("On ci-3")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#description")).to_have_text("On ci-3")
    await expect(page.get_by_role("table", name="History")).to_contain_text("key.updated")
    await page.get_by_role("button", name="Rotate").click()
    await page.get_by_label("The old key keeps working for").select_option("0")
    first = page.url
    await page.get_by_role("button", name="Rotate key").click()
    new = await revealed_key(page)
    await page.get_by_role("button", name="I have saved this key").click()
    await page.wait_for_url(lambda url: url != first)
    await expect(page.get_by_text("Replaces")).to_be_visible()
    assert [live_service.request("GET", "/api/tasks", key) for key in (old, new)] == [401, 200]
    await page.get_by_role("link", name="Service account", exact=True).click()
    await page.wait_for_url(home)


async def test_a_deleted_one_leaves_the_list_and_its_keys_stop(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page()
    await _new_account(page, "old-bot")
    key = await create_key(page, "forgotten")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.get_by_role("button", name="Delete service account").click()
    await page.wait_for_url("**/admin/service-accounts")
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await expect(page.get_by_role("link", name="old-bot")).to_have_count(0)
    assert live_service.request("GET", "/api/tasks", key) == 401
    await page.goto("/admin/audit?action=service_account.")
    await expect(page.get_by_role("row").nth(1)).to_contain_text("name: old-bot")
    await expect(page.get_by_role("row").nth(1)).to_contain_text("admin")


async def test_one_is_created_and_disabled_by_keyboard(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.keyboard.press("Control+k")
    await type_into(page.get_by_role("combobox", name="Go to"), "service acc")
    # The whole list has it as well, before what was typed has filtered it.
    chosen = page.get_by_role("option", name="Service accounts", selected=True)
    await expect(chosen).to_be_visible()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/admin/service-accounts")
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await page.keyboard.press("n")
    await type_into(page.get_by_role("textbox", name="Name"), "typed-bot")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/admin/service-accounts/svc_*")
    await page.goto("/admin/service-accounts")
    await page.get_by_role("button", name="Disable: typed-bot").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_contain_text("Its keys are refused at once")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Enable: typed-bot")).to_be_visible()


async def test_a_user_sees_no_entry_and_no_page(open_page: Open, live_service: LiveService) -> None:
    live_service.add_user("plain.user")
    page, watch = await open_page(user="plain.user")
    watch.expected.add(403)
    await page.goto("/tasks")
    await page.get_by_role("button", name="Menu of").click()
    await expect(page.get_by_role("link", name="Account", exact=True)).to_be_visible()
    await expect(page.get_by_role("link", name="Service accounts")).to_have_count(0)
    for path in ("", "/svc_0000000000000000", "/svc_0000000000000000/keys/000000000000"):
        response = await page.goto(f"/admin/service-accounts{path}")
        assert response is not None
        assert response.status == 403
