"""What the browser tests share: the service as a process, a browser that notices everything, and steps people take."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from axe_playwright_python.base import AXE_SCRIPT
from examples.task_service.tests.service_process import serving
from httpx2 import Client
from playwright.async_api import (
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Response,
    Route,
    StorageStateCookie,
    expect,
)

from task_service.login_cookie import NAME

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# A window of the whole Chromium loads two pages of its own for its hidden address bar: a second of
# processor time for each window, more than most tests take. Playwright's list of features that are off is replaced by
# this one, not joined to it; so the second half repeats what of it concerns pages.
_FEATURES_OFF = [
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "AimEnabled",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
]
ARGUMENTS = [
    f"--disable-features={','.join(_FEATURES_OFF)}",
    "--in-process-gpu",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
USERNAME = "admin"
PASSWORD = "seven quiet herons at dusk"
KEY = re.compile(r"\bmsk_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}\b")

# A machine that does other things as well is slow, not wrong.
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)

# As for what is expected of pages.
ANSWER_SECONDS = 60.0


class LiveService:
    """The service as people start it: a process with a data folder of its own.

    Attributes:
        url: Where it answers.
        token: The secret of its one-time link.
    """

    def __init__(self, data_dir: Path) -> None:
        self._database = data_dir / "data" / "task-service.sqlite3"
        self._stack = ExitStack()
        self._serving = self._stack.enter_context(serving(data_dir / "data"))
        self.url = self._serving.origin
        self.token = self._serving.token

    def stop(self) -> None:
        """End the process, and wait for it."""
        self._serving.stop()
        self._stack.close()

    def set_first_password(self) -> None:
        """What the page behind the one-time link does."""
        answer = self.request("POST", "/api/auth/set-password", token=self.token, password=PASSWORD)
        assert answer == 204

    def log_in(self, username: str) -> StorageStateCookie:
        """The cookie that the log-in form gives to a user whose password is :data:`PASSWORD`."""
        return login_cookie(self._token(username))

    def _token(self, username: str) -> str:
        with Client(base_url=self.url, timeout=ANSWER_SECONDS) as client:
            body = {"username": username, "password": PASSWORD}
            token: str = client.post("/api/auth/login", json=body).json()["access_token"]
            return token

    def add_user(self, username: str) -> None:
        """A separate user, for a test that changes their data: as quick as a new service is slow."""
        with Client(base_url=self.url, timeout=ANSWER_SECONDS) as client:
            invited = client.post(
                "/api/admin/users",
                json={"username": username, "role": "user"},
                headers={"Authorization": f"Bearer {self._token(USERNAME)}"},
            ).json()
        token = invited["invitation_url"].partition("#")[2]
        answer = self.request("POST", "/api/auth/set-password", token=token, password=PASSWORD)
        assert answer == 204

    def add_many(self, username: str, count: int) -> None:
        """Tasks, and keys of which a fifth has expired and two fifteenths are revoked: written into the database at once."""
        with closing(sqlite3.connect(self._database)) as database, database:
            (owner,) = database.execute(
                "SELECT id FROM users WHERE username = ?", [username]
            ).fetchone()
            now = time.time_ns() // 1000
            database.executemany(
                "INSERT INTO tasks (id, owner_id, name, handler, params, created_at, updated_at)"
                """ VALUES (?, ?, ?, 'command', '{"argv": ["echo"]}', ?, ?)""",
                [
                    (f"tsk_many{index:012}", owner, f"task {index}", now - index, now)
                    for index in range(count)
                ],
            )
            ends = dict.fromkeys(range(count * 4 // 5, count), now - 10**6)
            database.executemany(
                "INSERT INTO msk_auth_api_keys (id, name, owner_id, digest, created_at, expires_at, revoked_at)"
                " VALUES (?, ?, ?, 'none', ?, ?, ?)",
                [
                    (
                        f"many{index:08}",
                        f"key {index}",
                        owner,
                        now - index,
                        ends.get(index, now + 10**12),
                        now if count * 2 // 3 <= index < count * 4 // 5 else None,
                    )
                    for index in range(count)
                ],
            )

    def repeat_run(self, run_id: str, count: int) -> None:
        """More runs that went as this one did, each newer than the one before: written into the database at once."""
        with closing(sqlite3.connect(self._database)) as database, database:
            database.row_factory = sqlite3.Row
            run = database.execute("SELECT * FROM runs WHERE id = ?", [run_id]).fetchone()
            columns = run.keys()
            database.executemany(
                f"INSERT INTO runs ({', '.join(columns)}) VALUES ({', '.join(map(':{}'.format, columns))})",
                [
                    {
                        **dict(run),
                        "id": f"run_again{index:011}",
                        "number": run["number"] + index,
                        "created_at": run["created_at"] + index,
                    }
                    for index in range(1, count + 1)
                ],
            )
            database.execute(
                "UPDATE tasks SET last_run_number = last_run_number + ? WHERE id = ?",
                [count, run["task_id"]],
            )

    def request(self, method: str, path: str, key: str | None = None, **body: str) -> int:
        """The status that a program gets, with an API key if it has one."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        with Client(base_url=self.url, headers=headers, timeout=ANSWER_SECONDS) as client:
            return client.request(method, path, json=body or None).status_code


def login_cookie(token: str) -> StorageStateCookie:
    """The cookie that the log-in form answers with."""
    return {
        "name": NAME,
        "value": token,
        "domain": "127.0.0.1",
        "path": "/",
        "expires": -1,
        "httpOnly": True,
        "secure": True,
        "sameSite": "Strict",
    }


class Watch:
    """Remembers what must not happen on a page: errors, violations of the policy, requests that fail.

    Attributes:
        expected: Statuses that the test provokes on purpose.
    """

    def __init__(self, page: Page) -> None:
        self.expected: set[int] = set()
        self._complaints: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._complaints.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _console(self, message: ConsoleMessage) -> None:
        # `_answered` reports error statuses, because it knows which ones are expected.
        if (
            message.type in {"error", "warning"}
            and "responded with a status of" not in message.text
        ):
            self._complaints.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        # Leaving a page ends its streams; that is no failure.
        if request.failure != "net::ERR_ABORTED":
            self._complaints.append(f"request: {request.url} {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self._complaints.append(f"answer: {response.status} {response.url}")

    def assert_clean(self) -> None:
        """Fail if the page complained."""
        assert not self._complaints, "\n".join(self._complaints)


_FIND_VIOLATIONS = """async (rules) => (await axe.run({
    resultTypes: ["violations"], ...(rules && {runOnly: {type: "rule", values: rules}}),
})).violations.map(
    ({id, help, nodes}) => `${id} (${help}): ${nodes.map(({html, failureSummary}) => `${html} ${failureSummary}`).join("; ")}`
)"""


LOOKS = ["color-contrast", "link-in-text-block", "scrollable-region-focusable"]
"""The rules of axe that look at colours and at what overflows."""


async def assert_accessible(page: Page, state: str, rules: list[str] | None = None) -> None:
    """axe finds nothing: in any of its rules, or in those that are named."""
    if not await page.evaluate("() => 'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    violations = await page.evaluate(_FIND_VIOLATIONS, rules)
    assert not violations, f"{state}: " + "\n".join(violations)


async def assert_fits(page: Page, state: str) -> None:
    """The page does not scroll sideways."""
    wide = await page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide[0] <= wide[1], f"{state}: {wide[0]} in {wide[1]} px"


States = Callable[[Page, Watch], AsyncIterator[str]]
"""Leads a page through its states, and names each."""


# Each scheme at one width. All rules run at the smallest, where a table's rows become blocks and the scripts have to
# spell out the roles: the other scheme has other colours, and its width another overflow, but the same tree.
_AUDITS: dict[int, tuple[Literal["dark", "light"], list[str] | None]] = {
    360: ("dark", None),
    1440: ("light", LOOKS),
}


async def assert_every_state(page: Page, states: AsyncIterator[str]) -> None:
    """Each state fits every width, and is accessible in both schemes and in forced colours."""
    seen = 0
    async for state in states:
        for width in (360, 768, 1440):
            await page.set_viewport_size({"width": width, "height": 900})
            await assert_fits(page, f"{state} at {width}")
            if width in _AUDITS:
                scheme, rules = _AUDITS[width]
                await page.emulate_media(color_scheme=scheme)
                await assert_accessible(page, f"{state}, {scheme}, at {width}", rules)
        await page.emulate_media(forced_colors="active")
        await assert_accessible(page, f"{state}, forced colours", LOOKS)
        await page.emulate_media(forced_colors="none")
        seen += 1
    assert seen >= 3


SEND = """async ([path, body]) => {
    const answer = await fetch(`/api${path}`, {
        method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
    });
    return answer.json();
}"""
"""Sends a body to a path of the API, as the user who is logged in."""

HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Makes a page one that is hidden, which asks for no news, or is shown again."""


async def hold(page: Page, url: str) -> asyncio.Event:
    """Let the answers to requests of a page wait for the event."""
    go_on = asyncio.Event()

    async def answer_later(route: Route) -> None:
        await go_on.wait()
        await route.continue_()

    await page.route(url, answer_later)
    return go_on


async def pause_clock(page: Page) -> None:
    """Let no time pass in the pages of this browser but what the test lets pass."""
    await page.clock.install()
    await page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))


async def log_in(page: Page, username: str = USERNAME, password: str = PASSWORD) -> None:
    """Fill in the log-in form that is shown."""
    await page.get_by_label("Username").fill(username)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()


async def type_into(field: Locator, text: str) -> None:
    """Type into a field once it has the focus, which scripts and the browser may give it later than they show it."""
    await expect(field).to_be_focused()
    await field.page.keyboard.type(text)


async def fill_arguments(dialog: Locator, *arguments: str) -> None:
    """Fill in the list of a command and its arguments, which has one row or more."""
    await expect(dialog).to_be_visible()
    for index, argument in enumerate(arguments, 1):
        field = dialog.get_by_label(f"Command and arguments, {index}", exact=True)
        if await field.count() == 0:
            await dialog.get_by_role("button", name="Add argument").click()
        await field.fill(argument)


async def create_key(page: Page, name: str, permissions: str = "Run tasks") -> str:
    """Make a key on the page of keys; its value, which is no longer shown when this returns."""
    await page.get_by_role("button", name="New API Key").click()
    await page.get_by_label("Name", exact=True).fill(name)
    await page.get_by_label(permissions).check()
    await page.get_by_role("button", name="Create key").click()
    value = await revealed_key(page)
    await page.get_by_role("button", name="I have saved this key").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    return value


async def revealed_key(page: Page) -> str:
    """The value that is shown now, once it is."""
    value = page.get_by_label("The key’s value")
    await expect(value).to_have_text(KEY)
    return await value.inner_text()
