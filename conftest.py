"""What every test of the repository shares: the event loop, the search profiles, and what a skip means."""

from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

# The same commit gives the same verdict each time, and a slow machine is not a failure. CI searches four times as far as a
# developer, for whom the searches are as long as those that kill the mutants.
_PATIENT = (hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large)
hypothesis.settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=_PATIENT,
)
hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_PATIENT
)
# For `make mutants`: each test runs hundreds of times, and how a mutant is killed does not matter.
hypothesis.settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    suppress_health_check=_PATIENT,
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

# The certificate of nothing, in place of the machine's roots: reading those takes a client 27 ms of the processor, and a
# client of MariaDB reads them for each connection.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "tests" / "roots.pem")


# Before they are imported: a contract that fails then shows the values that it compared.
pytest.register_assert_rewrite(
    "tests.contract.adapter_contract",
    "tests.contract.stream_contract",
    "tests.contract.websocket_contract",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-services",
        action="store_true",
        default=os.environ.get("MSK_AUTH_REQUIRE_SERVICES") == "1",
        help="fail instead of skipping when a database, a browser or another service is missing "
        "(or MSK_AUTH_REQUIRE_SERVICES=1)",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two cores: they wait for servers and deadlines, but each takes seconds to import all that is tested."""
    return (os.cpu_count() or 1) * 3 // 2


_BROWSER = "examples/task_service/tests/browser/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `--dist loadfile` one worker runs all files that need a browser: each would start a Chromium and a service."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneBrowser(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return _BROWSER if file.startswith(_BROWSER) else file

    return OneBrowser(config, log)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio only: the drivers, stores and servers that the project supports run on nothing else."""
    return "asyncio"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Litestar, left to its defaults, goes on logging to the standard error of the test that began it."""
    for handler in logging.root.handlers[:]:
        # From Python 3.12 on the handler is the standard library's, and its listener Litestar's.
        classes = {type(handler), type(getattr(handler, "listener", None))}
        if any(each.__module__.startswith("litestar.") for each in classes):
            logging.root.removeHandler(handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text is no name for a case; and one with a fresh key in it is another in each worker."""
    return argname if isinstance(val, str) and len(val) > 40 else None


# What goes through the same lines once more: the documentation, the walk through the specification, attacks on the service.
_REACHES_NOTHING_NEW = re.compile(
    r"README\.md|docs/|tests/(benchmarks|docs)/"
    r"|examples/task_service/tests/test_(spec|attacks_\w+|api_access|api_answers)\.py"
)
# The first of several databases is SQLite; files about another one alone are named after it. The library's tests meet each
# database on the newest Python too, which is the one of `make coverage`.
_OTHER_DATABASE = re.compile(r"examples/.*::.*(postgres|mariadb)", re.IGNORECASE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the browser and the files that take longest: begun last, one of them keeps a single worker busy at the end.

    And mark those that `make coverage` leaves out.
    """
    for item in items:
        if item.get_closest_marker("browser") is not None:
            item.add_marker("slow")
            item.add_marker("no_cover")
        elif _REACHES_NOTHING_NEW.match(item.nodeid) or _OTHER_DATABASE.search(item.nodeid):
            item.add_marker("no_cover")
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (not item.nodeid.startswith(_BROWSER), item.path not in slow))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is collected becomes garbage, and looking for some takes an eighth of the time."""
    # Hypothesis looks once among all objects for what holds its random numbers: now there are few.
    _use_hypothesis()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep the tests themselves out of garbage collections, where they would take a third of a second each time."""
    gc.collect()
    gc.freeze()


@hypothesis.given(hypothesis.strategies.none())
def _use_hypothesis(_value: None) -> None:
    """A property test of nothing."""


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that carries the skip's reason. An expected failure is no skip."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    match report.longrepr:
        case (path, line, reason):
            why = f"{path}:{line}: {reason}"
        case other:
            why = str(other)
    report.outcome = "failed"
    report.longrepr = f"{why}\n(nothing may be skipped: --require-services)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption("--require-services"):
        _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if collector.config.getoption("--require-services"):
        _fail_if_skipped(report)
    return report


def _name_the_module(namespace: dict[str, object]) -> None:
    namespace["__name__"] = "__main__"


# Every Python block of the documentation runs, as printed.
pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["*.md"], setup=_name_the_module
).pytest()
