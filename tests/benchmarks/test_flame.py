"""The flame graph: what it takes from a profiler's stacks, and what is drawn of it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import flame

_STACKS = """\
<module> (serve.py:1);Runner.run (asyncio/runners.py:118) 10
<module> (serve.py:1);RequestResponseCycle.run_asgi (uvicorn/httptools_impl.py:1);FastAPI.__call__ (fastapi/applications.py:1);app (fastapi/routing.py:1);list_tasks.<locals>.<listcomp> (task_service/api/tasks.py:7) 60
<module> (serve.py:1);RequestResponseCycle.run_asgi (uvicorn/httptools_impl.py:2);FastAPI.__call__ (fastapi/applications.py:9);Guard.__call__ (msk_auth/integrations/fastapi.py:5) 20
Thread.run (threading.py:3);_connection_worker_thread (aiosqlite/core.py:1);execute (sqlalchemy/base.py:3) 10
"""


def _folded() -> flame.Frame:
    return flame.fold(flame.read_stacks(_STACKS.splitlines()))


def test_functions_of_this_project_stand_alone_and_others_as_their_package() -> None:
    root = _folded()
    assert root.samples == 100
    assert {name: each.samples for name, each in root.callees.items()} == {
        "event loop, parsing of requests": 10,
        "uvicorn": 80,
        "aiosqlite": 10,
    }
    [fastapi] = root.callees["uvicorn"].callees.values()
    assert (fastapi.name, fastapi.samples) == ("fastapi", 80)
    assert {name: each.samples for name, each in fastapi.callees.items()} == {
        "<listcomp>": 60,
        "Guard.__call__": 20,
    }


def test_a_bar_is_as_wide_as_its_share_and_stands_below_what_called_it() -> None:
    picture = flame.draw(_folded(), name="me", title="Who am I", microseconds=1234)
    svg = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    bars = {
        title.text.rpartition(":")[0]: bar
        for bar in svg.iter(f"{space}rect")
        if (title := bar.find(f"{space}title")) is not None and title.text is not None
    }
    assert float(bars["uvicorn"].attrib["width"]) == pytest.approx(760 * 0.8, abs=1)
    assert float(bars["Guard.__call__"].attrib["width"]) == pytest.approx(760 * 0.2, abs=1)
    assert float(bars["fastapi"].attrib["y"]) > float(bars["uvicorn"].attrib["y"])
    assert bars["Guard.__call__"].attrib["fill"] == "var(--a)"
    assert bars["<listcomp>"].attrib["fill"] == "var(--c)"
    description = svg.find(f"{space}desc")
    assert description is not None
    assert description.text == (
        "1,234 µs of processor time. Within the functions of each kind: the service 60%, the library 20%,"
        " frameworks, standard library 10%, database 10%."
    )


def test_the_command_draws_a_file_of_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks = tmp_path / "stacks.txt"
    stacks.write_text(_STACKS)
    flame.main([str(stacks), "--name", "me", "--title", "Who am I", "--microseconds", "5"])
    assert ElementTree.fromstring(capsys.readouterr().out).attrib["role"] == "img"
