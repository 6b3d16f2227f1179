"""The scripts, styles and templates as files: their weight, their addresses, and what must not be in them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from task_service import web
from task_service.web.assets import Assets

WEB = Path(web.__file__).parent
STATIC = WEB / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
STYLES = sorted(STATIC.rglob("*.css"))
TEMPLATES = sorted((WEB / "templates").glob("*.html"))


@pytest.fixture
def assets() -> Assets:
    return Assets(STATIC, "/static")


@pytest.fixture
def client(assets: Assets) -> TestClient:
    return TestClient(Starlette(routes=[Route(assets.route, assets.serve)]))


def test_all_scripts_and_styles_together_are_light() -> None:
    # A page loads about half of them, so there is room for its document, its data and the rest below 100 kB.
    assert sum(len(gzip.compress(file.read_bytes())) for file in [*SCRIPTS, *STYLES]) < 60_000


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("dom.js", "text/javascript; charset=utf-8"),
        ("pages/keys.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ],
)
def test_a_file_is_kept_for_ever_under_an_address_of_its_version(
    client: TestClient, assets: Assets, path: str, media_type: str
) -> None:
    answer = client.get(assets.url(path))
    assert answer.status_code == 200
    assert answer.text == (STATIC / path).read_text()
    assert answer.headers["content-type"] == media_type
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_an_older_address_gives_the_present_file_and_is_not_kept(client: TestClient) -> None:
    answer = client.get("/static/000000000000/dom.js")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    ["", "nothing.js", "keys", "%2e%2e/pages.py", "/etc/passwd"],
)
def test_nothing_but_the_files_is_served(client: TestClient, path: str) -> None:
    assert client.get(f"/static/x/{path}").status_code == 404


def test_the_version_follows_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    first = Assets(tmp_path, "/static")
    (tmp_path / "a.js").write_text("2")
    second = Assets(tmp_path, "/static")
    (tmp_path / "a.js").write_text("1")
    assert first.url("a.js") != second.url("a.js")
    assert first.url("a.js") == Assets(tmp_path, "/static").url("a.js")


def test_every_import_of_a_script_finds_its_file() -> None:
    for script in SCRIPTS:
        for target in re.findall(r'(?:from |import\()"(\.[^"]+)"', script.read_text()):
            assert (script.parent / target).resolve().is_file(), f"{script.name}: {target}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_turns_text_into_markup_or_code(script: Path) -> None:
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\.on\w+ ?="
    )
    assert re.findall(forbidden, script.read_text()) == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_no_template_holds_inline_code_or_style_or_another_origin(template: Path) -> None:
    source = template.read_text()
    assert re.findall(r"\sstyle=|\son\w+=|<style|javascript:|\|\s*safe\b", source) == []
    assert re.findall(r"<script(?![^>]* src=)", source) == []
    assert re.findall(r"(?:src|href|action)=\"(?:https?:)?//", source) == []


def test_no_style_asks_another_origin_for_anything() -> None:
    for stylesheet in STYLES:
        assert re.findall(r"url\(|@import", stylesheet.read_text()) == [], stylesheet.name
