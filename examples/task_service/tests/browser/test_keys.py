"""The list of keys: what it points out, with a remedy that is one click away, and how it is searched and sorted."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, Route, expect

from .conftest import Open
from .support import SEND, LiveService, create_key, hold, pause_clock, revealed_key

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def _key(number: int, name: str, **members: float | str | list[str] | None) -> dict[str, object]:
    """A key as the API shows it; by default made 10 days ago, used since, and good for long."""

    def ago(days: float) -> str:
        return (NOW - timedelta(days=days)).isoformat().replace("+00:00", "Z")

    key_id = f"{number:012}"
    return {
        "id": key_id,
        "name": name,
        "description": None,
        "labels": [],
        "networks": None,
        "mask": f"msk_{key_id}_…",
        "owner_id": "usr_0000000000000000",
        "scopes": None,
        "created_at": ago(10 + number),
        "expires_at": ago(-200),
        "last_used_at": ago(1),
        "revoked_at": None,
        "replaced_by": None,
        "status": "active",
        **{
            member: ago(value) if isinstance(value, int | float) else value
            for member, value in members.items()
        },
    }


async def _show(page: Page, *keys: dict[str, object]) -> None:
    """Open the page of keys at :data:`NOW`, with just these in the list."""

    async def answer(route: Route) -> None:
        counts = {"active": len(keys), "expired": 0, "revoked": 0}
        await route.fulfill(json={"items": list(keys), "next_cursor": None, "counts": counts})

    await page.clock.set_fixed_time(NOW)
    await page.route("**/api/keys?*", answer)
    await page.goto("/keys")
    await expect(page.get_by_role("table")).to_be_visible()


async def test_what_an_owner_should_look_at_is_one_click_from_its_remedy(open_page: Open) -> None:
    page, _ = await open_page(alone=True)
    await _show(
        page,
        _key(1, "unused", last_used_at=None),
        _key(2, "idle", last_used_at=91),
        _key(3, "endless", expires_at=None, scopes=["tasks:run"]),
        _key(4, "soon over", expires_at=-6.5),
        _key(5, "fine"),
        _key(6, "over", status="expired", last_used_at=None, expires_at=1),
        _key(7, "brand new", created_at=1, last_used_at=None),
    )

    def row(name: str):
        return page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))

    for name, hint in (("unused", "Never used"), ("idle", "Idle for 90 days")):
        revoke = row(name).get_by_role("button", name=f"{hint}: Revoke {name}")
        await revoke.click()
        await expect(page.get_by_role("dialog", name=f"Revoke {name}?")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(revoke).to_be_focused()
    await row("endless").get_by_role("button", name="Never expires: Replace endless").click()
    dialog = page.get_by_role("dialog", name="New API Key")
    await expect(dialog.get_by_label("Name", exact=True)).to_have_value("endless")
    await expect(dialog.get_by_label("tasks:run")).to_be_checked()
    await expect(dialog.get_by_label("tasks:write")).not_to_be_checked()
    await page.keyboard.press("Escape")
    await expect(row("soon over").locator(".warn")).to_have_text("in 7 days")
    for name in ("fine", "over", "brand new"):
        await expect(row(name).locator(".hints button")).to_have_count(0)
    await expect(page.locator("td .warn")).to_have_count(1)


async def test_what_is_not_loaded_is_counted_and_found(
    live_service: LiveService, open_page: Open
) -> None:
    """With 300 keys and 300 tasks: the counts are true, and search, filters and order are the server's."""
    live_service.add_user("collector")
    live_service.add_many("collector", 300)
    page, _ = await open_page(user="collector")
    await page.goto("/keys")
    names = page.locator("td.main .title")
    await expect(names).to_have_count(100)
    for label in ("All 300", "Active 200", "Expired 60", "Revoked 40"):
        await expect(page.get_by_role("radio", name=label, exact=True)).to_have_count(1)
    await expect(page.get_by_role("radio", name="All 300")).to_be_checked()
    await page.get_by_label("Search by name or id").fill("KEY 299")
    await expect(names).to_have_text(["key 299"])
    await expect(page.get_by_role("radio", name="Active 0")).to_have_count(1)
    await page.get_by_label("Search by name or id").fill("")
    await page.get_by_text("Revoked 40").click()
    await expect(names).to_have_count(40)
    await page.get_by_label("Sort").select_option("Name")
    await expect(names.first).to_have_text("key 200")
    await expect(page).to_have_url(re.compile("/keys[?]status=revoked&sort=name$"))
    await page.reload()
    await expect(names.first).to_have_text("key 200")
    await expect(page.get_by_role("radio", name="Revoked 40")).to_be_checked()
    await page.get_by_label("Search by name or id").fill("nothing")
    await expect(page.get_by_text("No keys match.")).to_be_visible()

    await page.goto("/tasks?sort=name")
    rows = page.locator("td.main .title")
    await expect(rows).to_have_count(50)
    await expect(rows.first).to_have_text("task 0")
    await expect(page.get_by_text("50 of 300")).to_be_visible()
    await page.get_by_role("button", name="Show more").click()
    await expect(page.get_by_text("100 of 300")).to_be_visible()
    await page.get_by_label("Search by name or id").fill("task 29")
    await expect(rows).to_have_count(11)
    await expect(page.locator("#count")).to_have_text("11")
    await page.get_by_label("State of the last run").select_option("Failed")
    await expect(page.get_by_text("No tasks match.")).to_be_visible()
    await expect(page.get_by_text("No tasks yet")).to_be_hidden()


async def test_how_many_keys_end_soon_is_the_first_line_of_the_list(
    open_page: Open, live_service: LiveService
) -> None:
    live_service.add_user("keeper")
    page, _ = await open_page(user="keeper")
    await page.goto("/keys")
    await expect(page.get_by_role("heading", name="No API keys yet")).to_be_visible()
    for name, days in (("week", 7), ("month", 30), ("day", 1)):
        await page.evaluate(SEND, ["/keys", {"name": name, "expires_in_days": days}])
    await page.reload()
    names = page.locator("td.main .title")
    await expect(names).to_have_text(["day", "month", "week"])
    line = page.locator("#list > :first-child")
    await expect(line).to_have_text("2 keys expire within 7 days. Show first")
    await line.get_by_role("button", name="Show first").click()
    await expect(names).to_have_text(["day", "week", "month"])
    await expect(page).to_have_url(re.compile("/keys[?]status=active&sort=expires$"))
    await expect(line).to_have_text("2 keys expire within 7 days.")
    await page.get_by_role("button", name="Revoke day").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(line).to_have_text("1 key expires within 7 days.")
    await page.get_by_label("Search by name or id").fill("month")
    await expect(names).to_have_text(["month"])
    await expect(page.get_by_text("within 7 days")).to_have_count(0)


async def test_a_list_that_comes_late_leaves_the_focus_where_the_user_put_it(
    open_page: Open,
) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    await create_key(page, "before")
    go_on = await hold(page, "**/api/keys?*")
    await create_key(page, "listed late")
    search = page.get_by_label("Search by name or id")
    await search.focus()
    go_on.set()
    await expect(page.get_by_role("link", name="listed late")).to_be_visible()
    await expect(search).to_be_focused()


async def test_a_replacement_offers_to_revoke_the_old_key(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    await page.get_by_role("button", name="New API Key").first.click()
    form = page.get_by_role("dialog", name="New API Key")
    await form.get_by_label("Name", exact=True).fill("endless")
    await form.get_by_label("Lifetime").select_option("never")
    await form.get_by_role("button", name="Create key").click()
    await page.get_by_role("button", name="I have saved this key").click()
    await page.get_by_role("button", name="Never expires: Replace endless").click()
    await form.get_by_role("button", name="Create key").click()
    await page.get_by_role("button", name="I have saved this key").click()
    offer = page.get_by_role("dialog", name="Revoke endless?")
    await expect(offer).to_contain_text("The new key is ready.")
    await offer.get_by_role("button", name="Revoke key").click()
    rows = page.get_by_role("row").filter(has=page.get_by_text("endless", exact=True))
    await expect(rows).to_have_count(2)
    await expect(rows.filter(has_text="Revoked")).to_have_count(1)
    await expect(rows.filter(has_text="Active")).to_have_count(1)
    await expect(page.get_by_role("button", name="Never expires")).to_have_count(0)


async def test_a_key_needs_at_least_one_permission(open_page: Open) -> None:
    page, _ = await open_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.method))
    await page.goto("/keys")
    await page.get_by_role("button", name="New API Key").first.click()
    form = page.get_by_role("dialog", name="New API Key")
    await form.get_by_label("Name", exact=True).fill("powerless")
    await form.get_by_label("Only these:").check()
    await form.get_by_role("button", name="Create key").click()
    await expect(page.locator("#key-scopes-error")).to_contain_text("Tick at least one permission")
    assert "POST" not in requests


async def test_a_key_is_limited_to_the_tasks_that_are_ticked(
    open_page: Open, live_service: LiveService
) -> None:
    live_service.add_user("limiter")
    page, watch = await open_page(user="limiter")
    await page.goto("/keys")
    task: dict[str, object] = {"handler": "command", "params": {"argv": ["echo"]}}
    ids = {
        name: (await page.evaluate(SEND, ["/tasks", {"name": name, **task}]))["id"]
        for name in ("Nightly backup", "Weekly report", "Warm the cache")
    }
    await page.get_by_role("button", name="New API Key").click()
    form = page.get_by_role("dialog", name="New API Key")
    await form.get_by_label("Name", exact=True).fill("limited")
    await form.get_by_label("Lifetime").select_option("never")
    await form.get_by_label("Only these tasks").check()
    choices = form.get_by_role("group", name="Tasks").get_by_role("checkbox")
    await expect(choices).to_have_count(3)
    await form.get_by_role("button", name="Create key").click()
    await expect(form.locator("#key-resources-error")).to_contain_text("Tick at least one task")
    # What is ticked stays while another task is searched.
    await form.get_by_label("Weekly report").check()
    await form.get_by_label("Search tasks").fill("warm")
    await expect(choices).to_have_count(2)
    await form.get_by_label("Warm the cache").check()
    await form.get_by_label("Search tasks").fill("no such task")
    await expect(form.get_by_text("No tasks match.")).to_be_visible()
    await expect(choices).to_have_count(2)
    await form.get_by_role("button", name="Create key").click()
    key = await revealed_key(page)
    await page.get_by_role("button", name="I have saved this key").click()
    statuses = [live_service.request("GET", f"/api/tasks/{each}", key) for each in ids.values()]
    assert statuses == [403, 200, 200]
    await expect(page.get_by_role("row").nth(1)).to_contain_text("Only 2 tasks")

    # Its page leads to its tasks, and says which one is gone.
    gone = ids["Warm the cache"]
    await page.evaluate("(id) => fetch(`/api/tasks/${id}`, {method: 'DELETE'})", gone)
    await page.get_by_role("link", name="limited").click()
    reached = page.locator("#may li").last
    await expect(reached).to_contain_text("Only with these tasks")
    await expect(reached).to_contain_text(f"{gone} (gone)")
    link = reached.get_by_role("link", name="Weekly report")
    await expect(link).to_have_attribute("href", f"/tasks/{ids['Weekly report']}")

    # What takes its place is limited to the same tasks.
    await page.goto("/keys")
    await page.get_by_role("button", name="Never expires: Replace limited").click()
    await expect(form.get_by_label("Only these tasks")).to_be_checked()
    await expect(form.get_by_label("Weekly report")).to_be_checked()
    await expect(form.get_by_label("Nightly backup")).not_to_be_checked()
    # The owner deletes that one, too, before the form is sent.
    await page.evaluate(
        "(id) => fetch(`/api/tasks/${id}`, {method: 'DELETE'})", ids["Weekly report"]
    )
    watch.expected.add(422)
    await form.get_by_role("button", name="Create key").click()
    await expect(form.locator("#key-resources-error")).to_contain_text(ids["Weekly report"])


async def test_a_new_key_is_described_and_bound_to_networks(
    open_page: Open, live_service: LiveService
) -> None:
    page, watch = await open_page()
    watch.expected.add(422)
    await page.goto("/keys")
    await page.get_by_role("button", name="New API Key").first.click()
    form = page.get_by_role("dialog", name="New API Key")
    await form.get_by_label("Name", exact=True).fill("described")
    await expect(form.get_by_label("Labels")).to_be_hidden()
    await form.get_by_text("Description, labels and networks").click()
    await form.get_by_label("Description").fill("Runs the build on ci-3.")
    await form.get_by_label("Labels").fill("Team")
    await form.get_by_label("Works from").fill("203.0.113.0/24")
    # A folded field that is refused is shown.
    await form.get_by_text("Description, labels and networks").click()
    await form.get_by_role("button", name="Create key").click()
    await expect(form.locator("#key-labels-error")).to_contain_text("lower-case")
    await expect(form.get_by_label("Labels")).to_be_focused()
    await form.get_by_label("Labels").fill("env:prod team:web")
    await form.get_by_role("button", name="Create key").click()
    key = await revealed_key(page)
    await page.get_by_role("button", name="I have saved this key").click()
    # The service of this test is asked from its own machine.
    assert live_service.request("GET", "/api/tasks", key) == 403
    await page.get_by_role("link", name="described").first.click()
    known = page.locator("#known")
    await expect(known).to_contain_text("Runs the build on ci-3.")
    await expect(known.locator("[data-of=labels] .tag")).to_have_text(["env:prod", "team:web"])
    await expect(known.locator("[data-of=networks]")).to_have_text("203.0.113.0/24")


async def test_a_new_key_is_tried_by_asking_who_it_is(
    open_page: Open, live_service: LiveService
) -> None:
    """It runs nothing, and the key is in no command, no history and no list of processes."""
    page, _ = await open_page()
    await page.goto("/keys")
    await page.get_by_role("button", name="New API Key").first.click()
    await page.get_by_label("Name", exact=True).fill("tried")
    await page.get_by_role("button", name="Create key").click()
    value = await revealed_key(page)
    dialog = page.get_by_role("dialog", name="Save this key now")
    commands = [
        await dialog.get_by_label(name).inner_text()
        for name in ("Command that takes the key", "Command that shows what the key may do")
    ]
    assert commands == [
        "read -rs TASK_SERVICE_KEY; export TASK_SERVICE_KEY",
        f'curl -H "Authorization: Bearer $TASK_SERVICE_KEY" {live_service.url}/api/auth/me',
    ]
    assert live_service.request("GET", "/api/auth/me", value) == 200
    await page.get_by_role("button", name="I have saved this key").click()


async def test_the_next_key_is_not_shown_as_copied(open_page: Open) -> None:
    page, _ = await open_page(alone=True)
    # The word stays until the dialog is closed.
    await pause_clock(page)
    await page.goto("/keys")
    for name in ("first", "second"):
        await page.get_by_role("button", name="New API Key").first.click()
        form = page.get_by_role("dialog", name="New API Key")
        await form.get_by_label("Name", exact=True).fill(name)
        await form.get_by_role("button", name="Create key").click()
        copy = page.get_by_role("dialog", name="Save this key now").get_by_role("button").first
        await expect(copy).to_have_text("Copy key")
        # Else it would wait for the release of the pointer, on a clock that stands still.
        await expect(page.locator("td.main .title").first).to_have_text(name)
        await copy.click()
        await expect(copy).to_have_text("Copied")
        await page.get_by_role("button", name="I have saved this key").click()
