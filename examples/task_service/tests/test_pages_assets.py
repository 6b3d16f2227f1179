"""The scripts, styles and templates as files: their weight, their addresses, and what must not be in them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from unittest import mock

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from task_service import web
from task_service.web.assets import _SCRIPT, Assets, lean

WEB = Path(web.__file__).parent
STATIC = WEB / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
STYLES = sorted(STATIC.rglob("*.css"))
TEMPLATES = sorted((WEB / "templates").glob("*.html"))


@pytest.fixture
def assets() -> Assets:
    return Assets(STATIC)


@pytest.fixture
def client(assets: Assets) -> TestClient:
    return TestClient(Starlette(routes=[Route(assets.route, assets.serve)]))


def _weight(client: TestClient, assets: Assets, *, encoding: str) -> int:
    weight = 0
    for file in [*SCRIPTS, *STYLES]:
        url = assets.url(file.relative_to(STATIC).as_posix())
        response = client.get(url, headers={"Accept-Encoding": encoding})
        assert response.headers.get("content-encoding", "identity") == encoding
        assert response.headers["vary"] == "Accept-Encoding"
        weight += int(response.headers["content-length"])
    return weight


def test_all_scripts_and_styles_together_are_light(client: TestClient, assets: Assets) -> None:
    # A page loads about half of them, so there is room for its document, its data and the rest below 100 kB.
    assert _weight(client, assets, encoding="gzip") < 45_000
    assert _weight(client, assets, encoding="identity") < 110_000


def test_a_file_is_compressed_once_and_says_the_same(client: TestClient, assets: Assets) -> None:
    url = assets.url("dom.js")
    plain = client.get(url, headers={"Accept-Encoding": "identity"}).text
    with mock.patch("gzip.compress", side_effect=gzip.compress) as compress:
        assert [client.get(url).text for _ in range(2)] == [plain, plain]
    assert compress.call_count == 1


@pytest.mark.parametrize(
    ("suffix", "source", "served"),
    [
        (".js", "// Why.\nlet a = 1; // b\n\n  a += 2;\n", "let a=1;a+=2;\n"),
        (".js", "let a = 1\na += 2\n", "let a=1\na+=2\n"),
        (".js", "f(\n  a,\n  b\n)\n  .then( c )\n", "f(a,b).then(c)\n"),
        (".js", "}\nconst [a] = b\n/ c /\n2;\n", "}\nconst[a]=b\n/c/\n2;\n"),
        (".js", "return a in b ? - -1 : + +2;\n", "return a in b?- -1:+ +2;\n"),
        (".js", "x = / +[/ ]\\/ +/g.test( y ); // z /\n", "x=/ +[/ ]\\/ +/g.test(y);\n"),
        (".js", "y = a / b / c;\n", "y=a/b/c;\n"),
        (".js", "f = (a) => / b /g.test(a);\n", "f=(a)=>/ b /g.test(a);\n"),
        (".js", "return / a/;\n", "return/ a/;\n"),
        (".js", 'const s = "a  \\" // b" + \' /* \';\n', 'const s="a  \\" // b"+\' /* \';\n'),
        (".js", "t = `a  ${ b + c } // d`;\n", "t=`a  ${ b + c } // d`;\n"),
        (".js", "/** What\n *  it does. */\nf();\n  /* g(); */\n", "f();\n"),
        (".js", 'f("/* no", "comment */");\n', 'f("/* no","comment */");\n'),
        (".js", "const u = `http://${a}`;\n", "const u=`http://${a}`;\n"),
        (
            ".css",
            "/* Why. */\na :hover,\nb {\n  color: red; top: 0;\n}\n",
            "a :hover,b{color:red;top:0}",
        ),
        (".svg", "  <svg/>\n", "  <svg/>\n"),
    ],
)
def test_what_is_served_is_what_a_browser_needs(suffix: str, source: str, served: str) -> None:
    assert lean(suffix, source) == served


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_leaving_gaps_out_cannot_change_a_script(script: Path) -> None:
    source = script.read_text()
    for line in source.splitlines():
        assert line.count("`") % 2 == 0, f"a template literal spans lines: {line}"
        assert not re.search(r"\$\{[^}]*`", line), f"a template literal is in another one: {line}"
    # Comments with lines of their own are all there are; without them, only gaps differ.
    comments = re.compile(r"^[ \t]*(?://.*|/\*[\s\S]*?\*/)[ \t]*$", re.MULTILINE)
    served = lean(".js", source)
    assert "".join(served.split()) == "".join(comments.sub("", source).split())
    # A slash that is left over divides one thing by another; a regular expression would have lost its spaces.
    for before, after in re.findall(r"(\S)\s*/\s*(\S)", _SCRIPT.sub("", source)):
        assert re.fullmatch(r"[\w)\]][\w(]", before + after), f"{before} / {after}"
    # What stands between quotes has its gaps.
    quoted = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`')
    assert quoted.findall(served) == quoted.findall(comments.sub("", source))


@pytest.mark.parametrize("stylesheet", STYLES, ids=lambda path: path.name)
def test_closing_the_gaps_cannot_change_a_stylesheet(stylesheet: Path) -> None:
    for string in re.findall(r'"([^"\n]*)"', stylesheet.read_text()):
        assert re.findall(r"[{};,:]", string) == [], string


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("dom.js", "text/javascript; charset=utf-8"),
        ("pages/keys.js", "text/javascript; charset=utf-8"),
        ("style/1-tokens.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ],
)
def test_a_file_is_kept_for_ever_under_an_address_of_its_version(
    client: TestClient, assets: Assets, path: str, media_type: str
) -> None:
    answer = client.get(assets.url(path))
    assert answer.status_code == 200
    assert answer.text == lean(Path(path).suffix, (STATIC / path).read_text())
    assert answer.headers["content-type"] == media_type
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_older_address_gives_the_present_file_and_is_not_kept(client: TestClient) -> None:
    answer = client.get("/static/000000000000/dom.js")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    ["", "nothing.js", "style", "%2e%2e/pages.py", "pages/%2e%2e/dom.js", "/etc/passwd"],
)
def test_nothing_but_the_files_is_served(client: TestClient, path: str) -> None:
    assert client.get(f"/static/x/{path}").status_code == 404


def test_the_version_follows_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text("1")
    first = Assets(tmp_path)
    (tmp_path / "a.js").write_text("2")
    second = Assets(tmp_path)
    (tmp_path / "a.js").write_text("1")
    assert first.version != second.version
    assert first.version == Assets(tmp_path).version


def test_an_address_of_a_file_that_does_not_exist_is_an_error(assets: Assets) -> None:
    with pytest.raises(KeyError):
        assets.url("nothing.js")


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
