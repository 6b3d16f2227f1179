"""The site as it is built, in a real Chromium: accessible by light and dark, at home on a phone, and searched with readers' words."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from examples.task_service.tests.browser.support import (
    ARGUMENTS,
    CHROMIUM,
    LOOKS,
    WAIT_MS,
    assert_fits,
)
from playwright.async_api import Browser, Page, async_playwright

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.pages]

ROOT = Path(__file__).parents[2]

# Each kind of page: tabs and a screenshot, diagrams, generated tables, signatures, diffs, wide tables. Of several
# alike a short one: axe takes seconds for a long page.
PAGES = [
    "",
    "404.html",
    "explanation/how-it-works/",
    "explanation/comparison/",
    "explanation/performance/",
    "how-to/leaked-keys/",
    "how-to/adopt/",
    "reference/api/adapters/",
    "reference/errors/",
    "reference/key-routes/",
    "tutorials/first-key/",
]

# From a page to what it is looked for with: by users of djangorestframework-api-key, fastapi-users, flask-jwt-extended, keyshield,
# authlib, FastAPI, Litestar and fastapi-cloudauth, in titles of questions and requests that were written down with their pages before
# any was tried, and by readers who did not know the pages, and did not find them.
SEARCHES = {
    "explanation/comparison/": ["grpc", "OAuth server"],
    "explanation/how-it-works/": ["fresh login"],
    "explanation/lease/": ["cache"],
    "explanation/performance/": ["performance hit"],
    "how-to/audit-log/": ["keys out of logs", "logging"],
    "how-to/beside-sessions/": [
        "Bearer", "cookie", "csrf", "current_user", "jwt in cookie", "multiple authentication backends", "refresh token",
        "revoke jwt token", "revoke token on all devices", "set user if authorised", "user loader",
    ],
    "how-to/database/": ["alembic"],
    "how-to/extend/": ["write a store"],
    "how-to/fastapi/": ["authorize button swagger"],
    "how-to/identity-provider/": ["Google login", "jwks", "keycloak integration", "support for JWKs"],
    "how-to/leaked-keys/": ["revoke key"],
    "how-to/machine-tokens/": ["CI", "github actions"],
    "how-to/manage-keys/": ["admin", "last used", "leaver", "user leaves", "who has used my key"],
    "how-to/move-here/": ["blocklist", "import existing keys", "password reset", "x-api-key"],
    "how-to/open-connections/": ["authentication for websockets", "background task", "websocket"],
    "how-to/restrict-keys/": [
        "allowlist", "limit key to read only", "rate limit", "redis", "scopes", "throttle", "throttling", "webhook",
    ],
    "how-to/rotate/": ["expiring", "optional expiry date", "rotate", "rotate keys"],
    "how-to/service-accounts/": ["CI pipeline", "organisation"],
    "how-to/test-an-application/": [
        "override JWT auth dependency testing", "override logged in user for tests", "test client", "test with a fake login",
    ],
    "reference/errors/": ["401 unauthorized", "503", "custom error response", "missing authorization header"],
    "reference/key-format/": ["bcrypt", "fast key hasher", "prefix"],
    "reference/key-routes/": ["generate api key per user", "key_routes"],
}  # fmt: skip

# The theme puts the button that copies a block into a landmark of its own, without a name.
_VIOLATIONS = """async (rules) => (await axe.run(
    rules ? {runOnly: rules} : {rules: {"landmark-unique": {enabled: false}}}
)).violations.flatMap(
    ({id, nodes}) => nodes.map(({html, failureSummary}) => `${id}: ${html} ${failureSummary}`)
)"""

# The worker of the theme, spoken to as its pages do: 0 sets it up, 2 is a query.
_SEARCH = """async (queries) => {
    const {search} = JSON.parse(document.querySelector("#__config").textContent);
    const index = await (await fetch("search/search_index.json")).json();
    const worker = new Worker(search);
    const ask = (message) => new Promise((resolve, reject) => {
        worker.onmessage = ({data}) => resolve(data.data);
        worker.onerror = reject;
        worker.postMessage(message);
    });
    await ask({type: 0, data: {...index, options: {suggest: false}}});
    const found = {};
    for (const query of queries)
        found[query] = (await ask({type: 2, data: query})).items.map(([first]) => first.location.split("#")[0]);
    return found;
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    # Under the path of its address: the page for what is not there refers to everything from the root.
    root = tmp_path_factory.mktemp("site")
    folder = root / "en" / "stable"
    subprocess.run(
        ["make", "docs", f"SITE={folder}"],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": ""},
        check=True,
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/en/stable/"
        server.shutdown()


@pytest.fixture(scope="module")
async def browser(site: str, anyio_backend: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def _opened(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    async with await browser.new_context(**options) as context:
        context.set_default_timeout(WAIT_MS)
        yield await context.new_page()


# The other scheme has other colours, and its width another overflow, but the same tree.
@pytest.mark.parametrize(
    ("scheme", "width", "rules"),
    [("dark", 390, None), ("light", 1440, LOOKS)],
    ids=["dark", "light"],
)
async def test_pages_are_accessible_and_fit(
    site: str,
    browser: Browser,
    scheme: Literal["light", "dark"],
    width: int,
    rules: list[str] | None,
) -> None:
    async with _opened(
        browser,
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
        reduced_motion="reduce",
    ) as page:
        for name in PAGES:
            await page.goto(site + name)
            await page.wait_for_selector(
                f'body[data-md-color-scheme="{"slate" if scheme == "dark" else "default"}"]'
            )
            await page.evaluate(AXE_SCRIPT)
            assert await page.evaluate(_VIOLATIONS, rules) == [], f"{name} by {scheme}"
            await assert_fits(page, f"{name} at {width}")


async def test_the_first_result_is_the_page_that_a_reader_means(
    site: str, browser: Browser
) -> None:
    expected = {query: page for page, queries in SEARCHES.items() for query in queries}
    async with _opened(browser) as page:
        await page.goto(site)
        found = await page.evaluate(_SEARCH, list(expected))
    first = {query: (pages or ["nothing"])[0] for query, pages in found.items()}
    assert first == expected


# A table that is wider than its place scrolls: the reader does not see that it goes on.
_HIDDEN = """() => [...document.querySelectorAll(".md-typeset__scrollwrap")]
    .filter((place) => place.querySelector("table").scrollWidth > place.clientWidth + 1)
    .map((place) => place.textContent.trim().slice(0, 40))"""
# From a width to the pages whose tables are seen whole at it.
WHOLE = {
    1400: [
        f"{path.relative_to(ROOT / 'docs').with_suffix('').as_posix()}/".removesuffix("index/")
        for path in sorted((ROOT / "docs" / "reference").rglob("*.md"))
    ],
    390: [
        "explanation/comparison/",
        "service/comparison/",
        *(f"how-to/{framework}/" for framework in ("fastapi", "flask", "litestar", "starlette")),
    ],
}


@pytest.mark.parametrize("width", WHOLE)
async def test_no_table_hides_a_column_or_widens_the_page(
    site: str, browser: Browser, width: int
) -> None:
    async with _opened(browser, viewport={"width": width, "height": 900}) as page:
        for path in WHOLE[width]:
            await page.goto(site + path)
            assert await page.evaluate(_HIDDEN) == [], path
            await assert_fits(page, f"{path} at {width}")


async def test_the_text_of_a_diagram_can_be_read_on_a_phone(site: str, browser: Browser) -> None:
    async with _opened(browser, viewport={"width": 390, "height": 900}) as page:
        await page.goto(f"{site}explanation/how-it-works/")
        heights = await page.evaluate(
            """() => [...document.querySelectorAll(".drawn text")].map(
                (text) => parseFloat(text.getAttribute("font-size")) * text.getScreenCTM().a)"""
        )
        assert heights
        assert min(heights) > 11
