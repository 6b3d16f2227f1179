"""When a person sees something and can use it: each of the task service's pages, in Chromium, on loopback.

python -m benchmarks.pages [--quick]

Not among the measurements of the documentation, which are of the library and need no browser.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from examples.task_service.tests.browser.support import ARGUMENTS, CHROMIUM, LiveService, log_in
from playwright.async_api import Browser, Page, async_playwright

from .__main__ import report
from .machine import describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .timing import Scale

MOST_MS_UNTIL_USABLE = 700.0
PATHS = (
    "/login",
    "/tasks",
    "/keys",
    "/account",
    "/admin/config",
    "/admin/users",
    "/admin/audit",
    "/admin/system",
)

# From the beginning of the navigation (Paint Timing, W3C), and what came over the network for it.
FIRST_CONTENT = """() => new Promise((done) => new PerformanceObserver((list) => {
    const [first] = list.getEntriesByName("first-contentful-paint");
    if (first) done(first.startTime);
}).observe({type: "paint", buffered: true}))"""
SCRIPTS_AND_STYLES = """() => performance.getEntriesByType("resource")
    .filter(({name}) => /[.](js|css)$/.test(name)).reduce((sum, entry) => sum + entry.decodedBodySize, 0) / 1000"""


# The data is shown: what waits for it says so.
USABLE = """() => new Promise((done) => {
    const look = () => document.readyState !== "loading" && !document.querySelector("[aria-busy=true]")
        ? done(performance.now()) : requestAnimationFrame(look);
    look();
})"""


async def _open(page: Page, path: str) -> tuple[float, float]:
    """When its first content was painted, and when it was usable."""
    await page.goto(path, wait_until="commit")
    usable = float(await page.evaluate(USABLE))
    return float(await page.evaluate(FIRST_CONTENT)), usable


_COLUMNS = {
    "first": "first visit",
    "usable": "usable",
    "again": "again",
    "usable again": "usable again",
}


async def _measure(browser: Browser, url: str, rounds: int) -> tuple[list[Row], float]:
    samples: dict[tuple[str, str], list[float]] = {}
    sizes: list[float] = []
    async with await browser.new_context(base_url=url) as context:
        page = await context.new_page()
        await page.goto("/login")
        await log_in(page)
        await page.wait_for_url("**/tasks")
        login = await context.storage_state()
    for _ in range(rounds):
        for path in PATHS:
            state = None if path == "/login" else login
            # A context of its own begins with an empty cache, as on the first visit.
            async with await browser.new_context(base_url=url, storage_state=state) as context:
                page = await context.new_page()
                for first, usable in (("first", "usable"), ("again", "usable again")):
                    painted, ready = await _open(page, path)
                    samples.setdefault((path, first), []).append(painted)
                    samples.setdefault((path, usable), []).append(ready)
                    if first == "first":
                        sizes.append(float(await page.evaluate(SCRIPTS_AND_STYLES)))
    rows = [
        Row(
            "",
            path,
            {kind: Spread.of(samples[path, kind]) for kind in _COLUMNS},
            aim=Aim("usable", "at most", MOST_MS_UNTIL_USABLE),
        )
        for path in PATHS
    ]
    return rows, max(sizes)


async def _run(scale: Scale) -> Result:
    if CHROMIUM is None:
        raise SystemExit("Chromium is not installed (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        service = LiveService(Path(folder))
        try:
            service.set_first_password()
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
                rows, largest = await _measure(browser, service.url, scale.pick(1, 9))
                chromium = browser.version
                await browser.close()
        finally:
            service.stop()
    return Result(
        name="pages",
        title="First content of the pages",
        method="Milliseconds from opening a page until its first content is painted, and until its data is shown, in turns:"
        " with an empty cache, and once more. Service and browser share the machine.",
        columns=[Column(name, title, "ms") for name, title in _COLUMNS.items()],
        rows=rows,
        chart=Chart("bars", "milliseconds", "first"),
        measured={
            **describe("starlette", "uvicorn"),
            "chromium": chromium,
            "scripts and styles of the heaviest page": f"{largest:.1f} kB",
        },
    )


def run(scale: Scale) -> Result:
    """Measure."""
    return asyncio.run(_run(scale))


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round: shows that it works")
    options = parser.parse_args()
    sys.stdout.write(report(run(Scale(is_quick=options.quick))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
