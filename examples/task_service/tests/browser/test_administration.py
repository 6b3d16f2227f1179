"""What administrators do in the browser, and that it takes effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Dialog, Page, expect

from .conftest import Open
from .support import PASSWORD, SEND, LiveService, hold, log_in

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

MARKUP = "<img/src=x/onerror=alert(1)>"


HEADING = """async (link) => {
    const page = await (await fetch(link.href)).text();
    return page.match("<h1>(.*)</h1>")[1];
}"""
"""The heading of the page that a link leads to."""


async def _new_user(page: Page, name: str) -> str:
    """Make a user on the page of users; the link that is shown once."""
    await page.goto("/admin/users")
    await page.get_by_role("button", name="New user").click()
    await page.get_by_label("Username").fill(name)
    await page.get_by_role("button", name="Create user").click()
    link = page.get_by_label("One-time link", exact=True)
    await expect(link).to_contain_text("/set-password#")
    return await link.inner_text()


async def test_the_menu_leads_to_every_page(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/tasks")
    await page.get_by_role("button", name="Menu of").click()
    for name in (
        "Account",
        "API Reference",
        "Configuration",
        "Users",
        "Service accounts",
        "All keys",
        "Audit log",
        "System",
    ):
        link = page.get_by_role("link", name=name, exact=True)
        await expect(link).to_be_visible()
        assert await link.evaluate(HEADING) == name
    await page.get_by_role("link", name="Audit log", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Audit log")


async def test_a_setting_is_changed_undone_and_refused(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected.add(422)
    await page.goto("/admin/config")
    days = page.get_by_label("Run retention")
    await expect(days).to_have_value("30")
    await days.fill("31")
    await page.get_by_role("button", name="Discard changes").click()
    await expect(days).to_have_value("30")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#announcer")).to_have_text("Nothing was changed.")

    await days.fill("31")
    await page.keyboard.press("Enter")
    await expect(page.locator("#announcer")).to_have_text("Saved and in effect.")
    await page.reload()
    await expect(days).to_have_value("31")
    await page.goto("/admin/audit?action=config.")
    await expect(page.get_by_role("row").nth(1)).to_contain_text("30 → 31")

    # A switch.
    await page.goto("/admin/config")
    await expect(days).not_to_have_value("")
    addresses = page.get_by_label("Keep the address of a key’s last request")
    await expect(addresses).not_to_be_checked()
    await addresses.check()
    await page.get_by_role("button", name="Discard changes").click()
    await expect(addresses).not_to_be_checked()
    for wanted in (True, False):
        await addresses.set_checked(wanted)
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#announcer")).to_have_text("Saved and in effect.")
        await page.reload()
        await expect(days).not_to_have_value("")
        await expect(addresses).to_be_checked(checked=wanted)

    # The refusal of the service is shown beside the field, and nothing is changed.
    await page.goto("/admin/config")
    commands = page.get_by_label("Allowed commands")
    await expect(commands).not_to_have_value("")
    await commands.fill("echo\nrm -rf /")
    await days.fill("30")
    await page.get_by_role("button", name="Save").click()
    await expect(commands).to_have_attribute("aria-invalid", "true")
    await expect(page.locator("#allowed_commands-error")).to_contain_text("bare name")
    await page.reload()
    await expect(days).to_have_value("31")


async def test_nothing_is_typed_into_a_setting_before_its_value_has_come(open_page: Open) -> None:
    page, _ = await open_page()
    go_on = await hold(page, "**/api/admin/config")
    await page.goto("/admin/config")
    keys = page.get_by_label("Active keys per user")
    await expect(keys).to_be_disabled()
    go_on.set()
    await expect(keys).to_be_enabled()
    await expect(keys).not_to_have_value("")


async def test_the_filters_of_the_audit_log_leave_room_on_a_phone(open_page: Open) -> None:
    page, _ = await open_page()
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto("/admin/audit")
    await expect(page.get_by_role("row").nth(1)).to_be_in_viewport(ratio=1)
    box = await page.locator("#list").bounding_box()
    assert box is not None
    assert box["y"] < 400
    await page.get_by_text("More filters").click()
    await page.get_by_role("textbox", name="User").fill("no such name")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("No entries match")).to_be_visible()
    # A filter that is in force is in sight.
    await page.reload()
    await expect(page.get_by_role("textbox", name="User")).to_be_visible()


async def test_edits_of_the_configuration_are_not_left_behind_unasked(open_page: Open) -> None:
    page, _ = await open_page(alone=True)
    await page.goto("/admin/config")
    days = page.get_by_label("Run retention")
    await expect(days).not_to_have_value("")
    asked: list[str] = []

    async def stay(dialog: Dialog) -> None:
        asked.append(dialog.type)
        await dialog.dismiss()

    page.on("dialog", stay)
    await days.fill("77")
    async with page.expect_event("dialog"):
        await page.get_by_role("link", name="Tasks", exact=True).click()
    await expect(days).to_have_value("77")
    assert asked == ["beforeunload"]
    await page.get_by_role("button", name="Discard changes").click()
    await page.get_by_role("link", name="Tasks", exact=True).click()
    await page.wait_for_url("**/tasks")
    assert asked == ["beforeunload"]


async def test_the_limit_of_lifetimes_shows_in_the_form_for_a_key(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/admin/config")
    longest = page.get_by_label("Maximum key lifetime")
    await expect(page.get_by_label("Run retention")).not_to_have_value("")
    for value, there in (("100", 0), ("", 1)):
        await longest.fill(value)
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#announcer")).to_have_text("Saved and in effect.")
        await page.goto("/keys")
        await expect(page.locator("#key-lifetime option[value=never]")).to_have_count(there)
        await page.goto("/admin/config")
        await expect(page.get_by_label("Run retention")).not_to_have_value("")


async def test_a_half_filled_configuration_survives_the_end_of_the_session(
    open_page: Open,
) -> None:
    page, watch = await open_page(alone=True)
    watch.expected.add(401)
    await page.goto("/admin/config")
    days = page.get_by_label("Run retention")
    await expect(days).not_to_have_value("")
    await days.fill("12")
    await page.context.clear_cookies()
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url("**/login?next=%2Fadmin%2Fconfig&reason=session-ended")
    await log_in(page)
    await expect(days).to_have_value("12")


async def test_a_user_is_invited_logs_in_is_promoted_logged_out_and_disabled(
    open_page: Open,
) -> None:
    page, _ = await open_page()
    link = await _new_user(page, "Eva.K")
    await page.get_by_role("button", name="Copy link").click()
    await expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("Copied.")
    assert await page.evaluate("navigator.clipboard.readText()") == link
    await page.get_by_role("button", name="Done").click()
    await expect(page.locator("#link code")).to_have_text("")
    assert link not in await page.content()
    row = page.get_by_role("row").filter(has_text="eva.k")
    await expect(row).to_contain_text("Invited")

    eva, watch = await open_page(user=None)
    watch.expected |= {401, 403}
    await eva.goto(link)
    await eva.get_by_label("New password").fill(PASSWORD)
    await eva.get_by_label("Confirm password").fill(PASSWORD)
    await eva.get_by_role("button", name="Set password").click()
    await eva.wait_for_url("**/login?reason=password-set")
    await log_in(eva, "eva.k", PASSWORD)
    await eva.wait_for_url("**/tasks")
    # No page of administrators is offered or opened.
    await eva.get_by_role("button", name="Account menu of eva.k").click()
    await expect(eva.get_by_role("link", name="Users")).to_have_count(0)
    await eva.goto("/admin/users")
    await expect(eva.get_by_role("heading", name="A permission is missing")).to_be_visible()

    await page.reload()
    await expect(row).to_contain_text("Active")
    await page.get_by_role("button", name="Change role: eva.k").click()
    confirm = page.get_by_role("dialog", name="Change the role of eva.k?")
    await expect(confirm).to_contain_text("Administrators see all tasks")
    await expect(confirm.get_by_role("combobox", name="Role")).to_have_value("user")
    await confirm.get_by_role("combobox", name="Role").select_option("Administrator")
    await confirm.get_by_role("button", name="Change role").click()
    await expect(page.locator("#announcer")).to_have_text("eva.k: administrator now.")
    await eva.reload()
    await expect(eva.get_by_role("row").filter(has_text="eva.k")).to_be_visible()
    # An administrator cannot remove their own access by accident.
    await expect(eva.get_by_role("button", name="Disable: eva.k")).to_have_count(0)

    await page.get_by_role("button", name="End sessions: eva.k").click()
    await page.get_by_role("dialog").get_by_role("button", name="End sessions").click()
    await expect(page.locator("#announcer")).to_have_text("eva.k: all sessions were ended.")
    await eva.goto("/tasks")
    await eva.wait_for_url("**/login?next=**")
    await log_in(eva, "eva.k", PASSWORD)
    await eva.wait_for_url("**/tasks")

    await page.get_by_role("button", name="Disable: eva.k").click()
    await page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    await expect(row).to_contain_text("Disabled")
    await eva.goto("/tasks")
    await log_in(eva, "eva.k", PASSWORD)
    await expect(eva.get_by_role("alert")).to_contain_text("wrong")
    await page.get_by_role("button", name="Enable: eva.k").click()
    await expect(row).to_contain_text("Active")


async def test_users_are_searched_and_filtered(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/admin/users")
    await page.evaluate(
        """() => Promise.all(["seeker-one", "seeker-two"].map((username, index) => fetch("/api/admin/users", {
            method: "POST", headers: {"Content-Type": "application/json"},
            body: JSON.stringify({username, role: index ? "admin" : "user"}),
        })))"""
    )
    rows = page.get_by_role("row")
    search = page.get_by_label("Search by name or id")
    await search.fill("SEEKER")
    await expect(rows).to_have_count(3)
    await page.get_by_role("combobox", name="Role").select_option("Administrators")
    await expect(rows).to_have_count(2)
    await expect(rows.nth(1)).to_contain_text("seeker-two")
    await page.wait_for_url("**/admin/users?search=SEEKER&role=admin")
    await page.reload()  # the choice is in the address
    await expect(rows).to_have_count(2)
    await expect(search).to_have_value("SEEKER")
    await page.get_by_role("combobox", name="Status").select_option("Disabled")
    await expect(page.get_by_text("No users match.")).to_be_visible()
    await page.get_by_role("combobox", name="Status").select_option("Any status")
    await page.get_by_role("combobox", name="Role").select_option("Any role")
    await expect(rows).to_have_count(3)


async def test_an_invalid_new_user_is_explained_beside_the_field(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected |= {409, 422}
    await page.goto("/admin/users")
    await page.get_by_role("button", name="New user").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Username").fill("two words")
    await dialog.get_by_role("button", name="Create user").click()
    await expect(dialog.locator("#username-error")).to_contain_text("no spaces")
    await dialog.get_by_label("Username").fill("ADMIN")
    await dialog.get_by_role("button", name="Create user").click()
    await expect(dialog.get_by_role("alert")).not_to_be_empty()


async def test_markup_in_the_name_of_a_user_is_text(open_page: Open) -> None:
    page, _ = await open_page()
    await _new_user(page, MARKUP)
    await expect(page.get_by_role("dialog")).to_contain_text(MARKUP)
    await page.get_by_role("button", name="Done").click()
    await page.get_by_role("button", name=f"Disable: {MARKUP}").click()
    await expect(page.get_by_role("dialog")).to_contain_text(MARKUP)
    await page.keyboard.press("Escape")
    await page.goto("/admin/audit?action=user.")
    await expect(page.get_by_text(f"username: {MARKUP}")).to_be_visible()
    assert await page.locator("img").count() == 0


async def test_the_audit_log_is_filtered_followed_paged_and_exported(
    open_page: Open, tmp_path: Path
) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    key = (await page.evaluate(SEND, ["/keys", {"name": "audited", "expires_in_days": 90}]))["key"]
    key_id = key[4:16]
    await page.goto("/admin/audit")
    await page.get_by_role("combobox", name="Action").select_option("API keys")
    await page.wait_for_url("**/admin/audit?action=key.")
    row = page.get_by_role("row").filter(has_text=key_id)
    await expect(row).to_contain_text("key.created")
    await row.get_by_role("link", name=key_id).click()
    await expect(page.get_by_label("Target id")).to_have_value(key_id)
    await expect(page.get_by_role("row")).to_have_count(2)
    await page.get_by_label("To", exact=True).fill("2020-01-01")
    await expect(page.get_by_text("No entries match")).to_be_visible()
    await page.get_by_label("To", exact=True).fill("")
    await expect(page.get_by_role("row")).to_have_count(2)
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Export JSON lines").click()
    download = await downloading.value
    assert download.suggested_filename == "audit.jsonl"
    await download.save_as(tmp_path / "audit.jsonl")
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert json.loads(line)["target"] == key_id
    assert key not in line
    await page.get_by_role("button", name="Reset").click()
    await expect(page.get_by_label("Target id")).to_have_value("")
    await expect(page.get_by_role("row").nth(2)).to_be_visible()


async def test_keys_of_all_users_are_filtered_and_revoked(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    for name in ("pipeline", "forgotten", "lost"):
        await page.evaluate(SEND, ["/keys", {"name": name, "expires_in_days": 90}])
    # The list is by owner, and other tests have users with more keys than a page shows.
    await page.goto("/admin/keys?owner=admin")
    rows = page.get_by_role("row")
    row = {name: rows.filter(has_text=name).first for name in ("pipeline", "forgotten", "lost")}
    await expect(row["pipeline"]).to_contain_text("admin")
    await expect(row["pipeline"]).to_contain_text("Active")
    revoke = page.get_by_role("button", name="Revoke selected")
    await expect(revoke).to_be_disabled()
    for name in ("forgotten", "lost"):
        await page.get_by_role("checkbox", name=f"Select {name}").first.check()
    await revoke.click()
    dialog = page.get_by_role("dialog", name="Revoke 2 keys?")
    await expect(dialog).to_contain_text("lost, of admin")
    await dialog.get_by_role("button", name="Revoke keys").click()
    await expect(page.locator("#announcer")).to_have_text("2 keys: revoked.")
    await expect(row["lost"]).to_contain_text("Revoked")
    await expect(row["pipeline"]).to_contain_text("Active")
    await expect(revoke).to_be_disabled()

    await page.get_by_role("combobox", name="Status").select_option("Active")
    await expect(rows.filter(has_text="lost")).to_have_count(0)
    await page.get_by_role("button", name="Revoke pipeline").first.click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke key").click()
    await expect(page.locator("#announcer")).to_have_text("pipeline: revoked.")
    await page.wait_for_url("**/admin/keys?owner=admin&status=active")
    await page.get_by_role("combobox", name="Older than").select_option("365 days")
    await expect(page.get_by_text("No keys match.")).to_be_visible()
    await page.get_by_role("button", name="Reset").click()
    await page.get_by_label("Owner").fill("ADMIN")
    await expect(row["pipeline"]).to_contain_text("Revoked")
    await page.goto("/admin/audit?action=key.revoked")
    await expect(rows.nth(1)).to_contain_text("pipeline")


async def test_the_system_page_shows_queue_and_leases(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page()
    await page.goto("/admin/system")
    await expect(page.get_by_text("SQLite")).to_be_visible()
    await expect(page.get_by_text("No active runs.")).to_be_visible()
    started = await page.evaluate(
        """async () => {
            const send = (method, path, body) => fetch(`/api${path}`, {
                method, headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
            }).then((answer) => answer.json());
            const {allowed_commands: allowed} = await send("GET", "/admin/config");
            await send("PATCH", "/admin/config", {allowed_commands: [...allowed, "sleep"]});
            const task = await send("POST", "/tasks", {
                name: "Holds a lease", handler: "command", params: {argv: ["sleep", "600"]},
            });
            return (await send("POST", `/tasks/${task.id}/run`)).id;
        }"""
    )
    await page.reload()
    row = page.get_by_role("row").filter(has_text=started)
    await expect(row).to_contain_text("wrk_")
    await row.get_by_role("link").click()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("listitem")).to_contain_text("Cancelled")
