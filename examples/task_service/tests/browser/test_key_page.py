"""The page of one key, permissions in plain words, and several keys revoked at once."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, Route, expect

from .conftest import Open
from .support import KEY, LiveService, create_key, revealed_key

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]


async def _new_keys(page: Page, *names: str) -> None:
    await page.goto("/keys")
    await page.evaluate(
        """async (names) => {
            for (const name of names) await fetch("/api/keys", {
                method: "POST", headers: {"Content-Type": "application/json"},
                body: JSON.stringify({name, scopes: ["tasks:read"], expires_in_days: 30}),
            });
        }""",
        list(names),
    )
    await page.reload()


async def test_a_key_shows_the_requests_of_each_day_and_the_last_one(
    open_page: Open, live_service: LiveService
) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    key = await create_key(page, "counted", "Read only")
    await page.get_by_role("link", name="counted").click()
    requests = page.get_by_role("region", name="Requests")
    await expect(requests).to_contain_text("None in the last 30 days")
    await expect(requests.get_by_role("img")).to_have_count(0)
    await expect(requests.locator("#last")).to_be_hidden()
    # It is written within a minute, so what the page shows of it is answered below.
    assert live_service.request("GET", "/api/tasks", key) == 200

    last = {"route": "GET /api/tasks", "address": "203.0.113.7", "user_agent": None}

    async def answer(route: Route) -> None:
        now = datetime.now(UTC)
        days = [
            {
                "day": f"{now - timedelta(days=ago):%Y-%m-%d}",
                "accepted": accepted,
                "refused": refused,
            }
            for ago, accepted, refused in ((29, 1, 0), (3, 1200, 0), (0, 0, 34))
        ]
        await route.fulfill(json={"days": days, "last_request": {"at": now.isoformat(), **last}})

    await page.route("**/activity?days=30", answer)
    await page.reload()
    await expect(requests).to_contain_text("1,201 accepted · 34 refused in the last 30 days")
    chart = requests.get_by_role("img", name="Requests of each day, today at the right")
    await expect(chart.locator("g")).to_have_count(30)
    for place, counts in ((0, "1 accepted, 0 refused"), (26, "1200 accepted"), (29, "34 refused")):
        await expect(chart.locator("g").nth(place).locator("title")).to_contain_text(counts)
    # A day with refused requests has a mark besides the colour, and one without requests has nothing.
    marks = await chart.locator("g").evaluate_all(
        "all => all.map(one => one.childElementCount - 1)"
    )
    assert marks == [1, *[0] * 25, 1, 0, 0, 3]
    await expect(requests.locator("#last")).to_have_text(
        "The last one just now: GET /api/tasks, from 203.0.113.7."
    )


async def test_a_key_has_a_page_that_tells_what_is_known_of_it(
    open_page: Open, live_service: LiveService
) -> None:
    page, watch = await open_page()
    await page.goto("/keys")
    key = await create_key(page, "told about", "Read only")
    await page.get_by_role("link", name="told about").click()
    await page.wait_for_url(f"**/keys/{key[4:16]}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("told about")
    known = page.locator("#known")
    for said in ("Active", f"msk_{key[4:16]}_…", "in 3 months"):
        await expect(known).to_contain_text(said)
    await expect(page.locator("#may li")).to_have_text(
        ["See your tasks, their runs and their output tasks:read"]
    )
    await expect(page.locator("#end")).to_contain_text("It stops working at once")
    history = page.get_by_role("table", name="History")
    await expect(history.get_by_role("row").nth(1)).to_contain_text("key.created")

    # Edited here: its owner's words about it.
    await page.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit the key")
    watch.expected.add(422)
    await dialog.get_by_label("Labels").fill("env:prod Team")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.locator("#key-labels-error")).to_contain_text("lower-case")
    await dialog.get_by_label("Labels").fill("env:prod  team:web")
    await dialog.get_by_label("Works from").fill("203.0.113.7/24")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.locator("#key-networks-error")).to_contain_text("Write 203.0.113.0/24")
    await dialog.get_by_label("Works from").fill("203.0.113.0/24 2001:db8::/32")
    await dialog.get_by_label("Description").fill("Runs the build on ci-3.")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog).to_be_hidden()
    await expect(known).to_contain_text("Runs the build on ci-3.")
    tags = known.locator("[data-of=labels] .tag")
    await expect(tags).to_have_text(["env:prod", "team:web"])
    # The service of this test is asked from its own machine, which is in neither network.
    networks = known.locator("[data-of=networks] .tag")
    await expect(networks).to_have_text(["2001:db8::/32", "203.0.113.0/24"])
    assert live_service.request("GET", "/api/tasks", key) == 403
    await page.get_by_role("button", name="Edit").click()
    await dialog.get_by_label("Works from").fill("")
    await dialog.get_by_role("button", name="Save").click()
    await expect(known.locator("[data-of=networks]")).to_have_text("Everywhere")
    assert live_service.request("GET", "/api/tasks", key) == 200
    await expect(history.get_by_role("row").nth(1)).to_contain_text("key.updated")

    # Rotated here, with the old one working for a day: each names the other.
    await page.get_by_role("button", name="Rotate").click()
    await page.get_by_role("button", name="Rotate key").click()
    successor = await revealed_key(page)
    await page.get_by_role("button", name="I have saved this key").click()
    await page.wait_for_url(f"**/keys/{successor[4:16]}")
    await expect(known).to_contain_text(f"Replaces{key[4:16]}")
    await page.get_by_role("link", name=key[4:16]).click()
    await expect(known).to_contain_text(f"Replaced by{successor[4:16]} Works until it expires")
    await expect(page.get_by_role("button", name="Rotate", exact=True)).to_be_hidden()
    assert KEY.search(await page.content()) is None

    # Revoked here: the page says so, and offers what is left to do.
    await page.get_by_role("button", name="Revoke", exact=True).click()
    await page.get_by_role("button", name="Revoke key").click()
    await expect(page.get_by_role("heading", name="It is revoked")).to_be_visible()
    await expect(history.get_by_role("row").nth(1)).to_contain_text("key.revoked")
    assert live_service.request("GET", "/api/tasks", key) == 401
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.get_by_role("button", name="Delete key").click()
    await page.wait_for_url("**/keys")


async def test_a_key_that_is_not_there_is_a_message(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected.add(404)
    await page.goto("/keys/000000000000")
    await expect(page.get_by_role("alert").first).to_contain_text("key")
    await expect(page.get_by_role("button", name="Revoke")).to_be_hidden()
    await page.get_by_role("link", name="All keys").click()
    await page.wait_for_url("**/keys")


async def test_the_permissions_of_a_new_key_are_narrow_at_first(open_page: Open) -> None:
    page, _ = await open_page()
    await page.goto("/keys")
    scopes: list[object] = []

    async def look(route: Route) -> None:
        if route.request.method == "POST":
            scopes.append(json.loads(route.request.post_data or "{}")["scopes"])
        await route.continue_()

    await page.route("**/api/keys", look)
    await page.get_by_role("button", name="New API Key").click()
    await expect(page.get_by_label("Run tasks")).to_be_checked()
    await expect(page.locator("#key-scopes")).to_be_hidden()
    await page.keyboard.press("Escape")
    for choice in ("Read only", "Run tasks", "Manage tasks", "All of mine"):
        await create_key(page, "as chosen", choice)
    assert scopes == [
        ["tasks:read"],
        ["tasks:read", "tasks:run"],
        ["tasks:read", "tasks:run", "tasks:write"],
        None,
    ]


async def test_several_keys_are_revoked_at_once_each_with_its_result(open_page: Open) -> None:
    page, watch = await open_page()
    watch.expected.add(503)
    await _new_keys(page, "bulk 1", "bulk 2", "bulk 3", "bulk 4")
    for number in (1, 2, 3):
        await page.get_by_label(f"Select bulk {number}").check()
    bar = page.get_by_role("group", name="Selected keys")
    await expect(bar).to_contain_text("3 keys selected")
    failing = await page.get_by_role("link", name="bulk 2").get_attribute("href")

    async def refuse(route: Route) -> None:
        await route.fulfill(
            status=503,
            content_type="application/problem+json",
            json={"detail": "The store did not answer.", "code": "store_unavailable"},
        )

    await page.route(f"**/api{failing}/revoke", refuse)
    await bar.get_by_role("button", name="Revoke").click()
    dialog = page.get_by_role("dialog", name="Revoke 3 keys?")
    for number in (1, 2, 3):
        await expect(dialog).to_contain_text(f"bulk {number}")
    await expect(dialog).not_to_contain_text("bulk 4")
    await dialog.get_by_role("button", name="Revoke 3 keys").click()
    await expect(dialog.get_by_role("alert")).to_have_text(
        "2 keys revoked, and 1 not. bulk 2: The store did not answer."
    )
    # What has failed stays selected, to be tried again.
    await page.unroute(f"**/api{failing}/revoke")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(bar).to_contain_text("1 key selected")
    await bar.get_by_role("button", name="Revoke").click()
    await page.get_by_role("button", name="Revoke 1 key").click()
    await expect(bar).to_be_hidden()
    for number in (1, 2, 3):
        row = page.get_by_role("row").filter(has_text=f"bulk {number}")
        await expect(row).to_contain_text(re.compile("Revoked"))
    await expect(page.get_by_role("row").filter(has_text="bulk 4")).to_contain_text("Active")
    await expect(page.get_by_label("Select bulk 1")).to_have_count(0)
