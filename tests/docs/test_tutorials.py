"""The tutorial, as a reader of each framework follows them: files made, server started, commands typed, output compared."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import pytest
import uvicorn
from tests.ports import free_port
from werkzeug.serving import make_server

from msk_auth.cli import main

from .tutorial import Block, blocks, files, matches

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "tutorials" / "first-key.md"
FRAMEWORKS = ["FastAPI", "Flask", "Litestar", "Starlette"]
PORT = "8000"
SERVE = dict.fromkeys(FRAMEWORKS, f"uvicorn app:app --port {PORT}") | {
    "Flask": f"flask run --port {PORT}"
}
# From a variable of the page to the member of the last answer that the reader copies into it.
COPIED = {"TOKEN": "access_token", "KEY": "key", "ID": "id"}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """An empty folder that the reader is in, and whose modules are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in {path.stem for path in tmp_path.glob("*.py")} - before:
        sys.modules.pop(name, None)


# The servers run in threads: the frameworks are imported once for all pages.


@contextmanager
def served_by_uvicorn(module: ModuleType) -> Generator[str]:
    server = uvicorn.Server(uvicorn.Config(module.app, host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield str(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def served_by_werkzeug(module: ModuleType) -> Generator[str]:
    server = make_server("127.0.0.1", 0, module.app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield str(server.server_port)
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()
        module.store.close()
        module.engine.dispose()


def run(command: str, folder: Path, variables: dict[str, str]) -> str:
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@contextmanager
def served_as_typed(command: str, folder: Path, path: str) -> Generator[str]:
    port = str(free_port())
    with subprocess.Popen(
        shlex.split(command.replace(PORT, port)), cwd=folder, env={**os.environ, "PATH": path}
    ) as server:
        try:
            deadline = time.monotonic() + 60
            while not _answers(int(port)) and server.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            yield port
        finally:
            server.terminate()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def follow(
    commands: list[Block], server: AbstractContextManager[str], folder: Path
) -> tuple[int, dict[str, str]]:
    """Type these commands while the server runs. How many answers were as shown, and what was copied."""
    variables: dict[str, str] = {}
    answer: dict[str, str] = {}
    compared = 0
    with server as port:
        for block in commands:
            for name, beginning in re.findall(r"^export (\w+)=(.*)…$", block.text, re.MULTILINE):
                variables[name] = answer[COPIED[name]]
                assert variables[name].startswith(beginning)
            if block.text.startswith("export"):
                continue
            printed = run(block.text.replace(PORT, port), folder, variables)
            assert block.shown is not None
            assert matches(block.shown, printed), f"{block.text}\n{printed}"
            compared += 1
            content = json.loads(printed)
            answer = content if isinstance(content, dict) else answer
    return compared, variables


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_reader_who_types_it_gets_what_the_page_shows(
    framework: str,
    reader: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in files(PAGE, framework):
        (reader / name).write_text(text, "utf-8")
    commands = [block for block in blocks(PAGE, framework) if block.language == "bash"]
    folder, install, serve, *rest, routes = commands
    assert "mkdir" in folder.text
    assert "pip install" in install.text
    assert serve.text.strip() == SERVE[framework]

    serving = served_by_werkzeug if framework == "Flask" else served_by_uvicorn
    answered, variables = follow(rest, serving(importlib.import_module("app")), reader)
    # A login, a list, a key, its use, two refusals, a fresh login, and the revocation.
    assert answered == 8
    assert variables["KEY"] not in caplog.text
    for name in ("signing.secret", "pepper.secret"):
        assert (reader / name).stat().st_mode & 0o777 == 0o600

    command, *arguments = shlex.split(routes.text)
    assert (command, main(arguments)) == ("msk-auth", 0), capsys.readouterr().err
    assert "interactive" in capsys.readouterr().out


def readme(folder: Path) -> list[Block]:
    """Write the files of the README. Its commands."""
    for name, text in files(README, "FastAPI"):
        (folder / name).write_text(text, "utf-8")
    return [block for block in blocks(README) if block.language == "bash"]


def test_a_reader_of_the_readme_gets_a_key_and_revokes_it(reader: Path) -> None:
    _, _, _, *rest = readme(reader)
    # A login, a key, its use, the revocation, the refusal.
    assert follow(rest, served_by_uvicorn(importlib.import_module("app")), reader)[0] == 5


@pytest.mark.faults
def test_the_readme_works_as_typed_beside_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, folder = tmp_path / "msk_auth", tmp_path / "tasks"
    shutil.copytree(ROOT / "src", clone / "src")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)

    run(blocks(README)[0].text, tmp_path, {})
    _, install, serve, *rest = readme(folder)
    # What `cd` and `activate` have changed in the reader's shell.
    path = f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run(install.text, folder, {"PATH": path})
    assert follow(rest, served_as_typed(serve.text, folder, path), folder)[0] == 5


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_a_tutorial_installs_is_what_it_was_tried_with(framework: str) -> None:
    _, install, *_ = blocks(PAGE, framework)
    line = install.text.strip()
    extras = re.findall(r'"\.\./msk_auth\[([a-z0-9,]+)\]"', line)[0].split(",")
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(re.search(rf"^{extra} = ", pyproject, re.MULTILINE) for extra in extras)
    assert framework.lower() in extras
    for name in line.partition("]")[2].strip('" ').split():
        try:
            assert version(name)
        except PackageNotFoundError:
            pytest.fail(f"{name} is not among the pinned requirements")
