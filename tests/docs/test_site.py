"""What makes the site: diagrams, docstrings, `llms.txt`, and the look at what was built."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import griffe
import pytest
from docs.tools import built_site, diagrams, hooks, layers, llms, search_index, signatures
from docs.tools.docstrings import Roles, to_markdown
from tests.cases import case

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BASE = "https://docs.example/en/stable/"

PAGES = sorted(DOCS.rglob("*.md"))
SVG = "{http://www.w3.org/2000/svg}"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


# Generated parts.


def test_a_marker_is_replaced_and_a_wrong_one_stops_the_build() -> None:
    filled = hooks.fill_in("Before\n\n<!-- generated: commands -->\n\nAfter")
    assert "## serve" in filled
    assert "generated:" not in filled
    with pytest.raises(KeyError, match="no-such-part"):
        hooks.fill_in("<!-- generated: no-such-part -->")


def test_every_generated_part_is_asked_for_by_one_page() -> None:
    asked = [
        name
        for path in PAGES
        for name in re.findall(r"<!-- generated: ([a-z-]+) -->", path.read_text("utf-8"))
    ]
    assert sorted(asked) == sorted(hooks.GENERATED)


def test_the_name_of_a_test_may_be_broken_into_lines() -> None:
    text = hooks.breakable("| `tests/core/test_keys.py::test_it_holds` | `other_code` |")
    assert text == (
        '| <code class="test">tests/<wbr>core/<wbr>test_<wbr>keys.py::<wbr>test_<wbr>it_<wbr>holds</code>'
        " | `other_code` |"
    )


def test_the_search_dialog_has_a_name_and_no_header_is_empty() -> None:
    page = '<div class="md-search" role="dialog"><table><tr><th></th><th>a</th></tr></table></div>'
    assert hooks.on_post_page(page) == (
        '<div class="md-search" role="dialog" aria-label="Search">'
        "<table><tr><td></td><th>a</th></tr></table></div>"
    )


# The search.


def test_a_page_answers_to_words_that_its_text_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "WORDS", {"a/": ["throttle"]})
    index = {"docs": [{"location": "a/", "title": "A"}, {"location": "a/#b", "title": "B"}]}
    search_index.finish(index, service=[])
    assert index["docs"] == [
        {"location": "a/", "title": "A", "tags": ["throttle"]},
        {"location": "a/#b", "title": "B"},
    ]
    with pytest.raises(KeyError, match="a/"):
        search_index.finish({"docs": []}, service=[])


def test_a_result_says_that_it_is_of_the_task_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_index, "WORDS", {})
    index = {
        "docs": [
            {"location": "a/", "title": "Upgrade"},
            {"location": "b/", "title": "Settings of the task service"},
        ]
    }
    search_index.finish(index, service=["a/", "b/"])
    assert [entry["title"] for entry in index["docs"]] == [
        "Upgrade (task service)",
        "Settings of the task service",
    ]
    assert [entry["boost"] for entry in index["docs"]] == [0.5, 0.5]


# Diagrams.


def svg_of(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure.partition("\n")[2].rpartition("\n")[0])


def test_a_diagram_is_drawn_where_the_page_names_it() -> None:
    drawn = diagrams.inline("Look:\n\n<!-- drawn: request -->\n\n![A screenshot](a.png)\n")
    assert drawn == f"Look:\n\n{diagrams.request()}\n\n![A screenshot](a.png)\n"
    # A blank line would end the block of HTML.
    assert "\n\n" not in diagrams.request()
    with pytest.raises(KeyError, match="nothing"):
        diagrams.inline("<!-- drawn: nothing -->")


def test_the_layers_are_drawn_from_the_import_contract() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    rows = layers.layers(pyproject)
    assert rows[0] == ["cli"]
    assert rows[-1] == ["core"]
    folder = ROOT / "src" / "msk_auth"
    modules = {
        path.stem
        for path in folder.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {module for row in rows for module in row} == modules - {"__init__"}
    texts = [text.text for text in svg_of(diagrams.DRAWN["layers"]()).iter(f"{SVG}text")]
    assert texts == [*(module for row in rows for module in row), "imports point downwards only"]
    changed = layers.layers(
        pyproject.replace('    "authenticator",\n', '    "authenticator : looks",\n')
    )
    assert ">looks</text>" in diagrams.draw_layers(changed)


def test_the_table_of_layers_has_the_rule_of_each_folder() -> None:
    table = layers.render()
    assert "| `core` | Code in this folder decides and never waits. |" in table
    assert table.splitlines()[2].startswith("| `core` |")
    assert table.splitlines()[-1].startswith("| `cli` |")


@pytest.mark.parametrize("name", diagrams.DRAWN)
def test_a_diagram_explains_itself_and_can_be_read_on_a_phone(name: str) -> None:
    root = svg_of(diagrams.DRAWN[name]())
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert len(description.text or "") > 40
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    # Ids do not clash where a page has several.
    assert all((each.get("id") or name).startswith(name) for each in root.iter())
    # The page is as wide as this on a phone, so that a unit is a pixel.
    _, _, width, height = map(float, (root.get("viewBox") or "").split())
    assert width == 360
    for text in root.iter(f"{SVG}text"):
        assert float(text.get("font-size") or 0) >= 12
        # No letter of the system's fonts is wider than this, on the average of a line.
        length = len(text.text or "") * float(text.get("font-size") or 0) * 0.55
        x = float(text.get("x") or 0)
        left = {"start": x, "middle": x - length / 2, "end": x - length}[
            text.get("text-anchor", "")
        ]
        assert left >= 0, text.text
        assert left + length <= width, text.text
        assert float(text.get("y") or 0) <= height, text.text


def test_the_site_has_colours_for_all_that_is_drawn() -> None:
    site_css = (DOCS / "assets" / "site.css").read_text("utf-8")
    for draw in diagrams.DRAWN.values():
        for each in svg_of(draw()).iter():
            assert each.get("style") is None
            for name in (each.get("class") or "").split():
                assert f".diagram .{name} {{" in site_css, name


def test_every_diagram_is_used() -> None:
    text = "".join(path.read_text("utf-8") for path in PAGES)
    assert set(re.findall(r"<!-- drawn: (\w+) -->", text)) == diagrams.DRAWN.keys()


def test_every_picture_is_shown_by_light_and_by_dark() -> None:
    text = "".join(path.read_text("utf-8") for path in PAGES)
    shown = set(re.findall(r"assets/([a-z-]+)-(light|dark)\.png#only-(light|dark)\)", text))
    pictures = {path.stem.rpartition("-")[::2] for path in (DOCS / "assets").glob("*.png")}
    assert shown == {(name, scheme, scheme) for name, scheme in pictures}


def test_the_gallery_shows_each_page_of_the_service_in_four_pictures_that_are_light_to_load() -> (
    None
):
    text = (DOCS / "task-service-pages.md").read_text("utf-8")
    found = re.findall(r"!\[(.+?)\]\(assets/pages/(\S+?)\.webp#only-(\w+)\)", text)
    files = {path.stem: path.stat().st_size for path in (DOCS / "assets" / "pages").glob("*.webp")}
    assert sorted(name for _, name, _ in found) == sorted(files)
    for alt, name, scheme in found:
        assert name.endswith(f"-{scheme}")
        assert alt.endswith(f", by {scheme}")
        assert ("on a phone" in alt) == ("-phone-" in name)
    pages = {name.removesuffix("-wide-light") for name in files if name.endswith("-wide-light")}
    ways = [f"{width}-{scheme}" for width in ("wide", "phone") for scheme in ("light", "dark")]
    assert files.keys() == {f"{page}-{way}" for page in pages for way in ways}
    assert sum(files.values()) < 3_000_000


# Docstrings.


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    loaded = griffe.load("msk_auth", search_paths=[ROOT / "src"])
    assert isinstance(loaded, griffe.Module)
    return loaded


def test_a_default_is_shown_with_its_value() -> None:
    extensions = griffe.load_extensions(signatures.Values)
    loaded = griffe.load("msk_auth", search_paths=[ROOT / "src"], extensions=extensions)
    authenticator = loaded["_async.authenticator.AsyncAuthenticator"]
    assert str(authenticator.parameters["key_limits"].default) == "KeyLimits()"
    assert str(authenticator.parameters["watch_interval"].default) == "timedelta(seconds=1)"
    # A public name has a place in the reference.
    assert str(authenticator.parameters["problem_base"].default) == "PROBLEM_BASE"
    assert str(loaded["core.events.KeyRevocation"].parameters["cause"].default) == (
        "RevocationCause.OWNER"
    )
    expiring = loaded["_sync.expiry.KeyExpiry.expiring"]
    assert str(expiring.parameters["limit"].default) == "500"
    routes = loaded["integrations.fastapi.FastAPIAuth.key_routes"]
    assert str(routes.parameters["tags"].default) == "('API keys',)"
    assert str(loaded["leaks.MAX_MATCHES"].value) == "1000"
    assert str(loaded["core.events.Event"].value).startswith("CredentialUsed | ")


def test_a_method_that_a_protocol_describes_is_left_out() -> None:
    extensions = griffe.load_extensions(Roles)
    loaded = griffe.load("msk_auth", search_paths=[ROOT / "src"], extensions=extensions)
    assert "find" in loaded["_async.store.AsyncKeyStore"].members
    store = loaded["stores.sqlalchemy.AsyncSQLAlchemyKeyStore"]
    assert "prepare" in store.members
    assert "find" not in store.members


def test_roles_become_links(package: griffe.Module) -> None:
    revoke = package["_sync.authenticator.Authenticator.delete_key"]
    text = to_markdown(
        "Raises as :meth:`revoke_key` does, :class:`~msk_auth.errors.Problem`.", revoke
    )
    assert text == (
        'Raises as <autoref optional identifier="msk_auth._sync.authenticator.Authenticator.revoke_key">'
        "<code>revoke_key</code></autoref> does,"
        ' <autoref optional identifier="msk_auth.errors.Problem"><code>Problem</code></autoref>.'
    )


def test_what_marks_a_literal_block_goes(package: griffe.Module) -> None:
    assert to_markdown("Like this::\n\n    code()", package) == "Like this:\n\n    code()"
    assert to_markdown("A sentence. ::\n\n    code()", package) == "A sentence.\n\n    code()"
    assert to_markdown("::\n\n    code()", package) == "\n    code()"


def test_no_docstring_has_markup_that_nothing_renders(package: griffe.Module) -> None:
    unknown = re.compile(r":\w+:`|^\.\. |``", re.MULTILINE)
    left = [
        item.path
        for item in walk(package)
        # The docstring of a module is for readers of the code.
        if item.docstring is not None
        and not isinstance(item, griffe.Module)
        and unknown.search(to_markdown(item.docstring.value, item))
    ]
    assert left == []


def walk(item: griffe.Object) -> list[griffe.Object]:
    members = [each for each in item.members.values() if isinstance(each, griffe.Object)]
    return [item, *(found for each in members for found in walk(each))]


# llms.txt.


def test_the_list_for_programs_follows_the_navigation(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        "index.md": llms.Source("Home", "", "# Home\n\nTwo kinds\nof [credential](x.md).\n\nMore."),
        "a.md": llms.Source("First", "a/", "# First\n\n```text\nno\n```\n\nWhat it does."),
        "b.md": llms.Source("Second", "b/", "# Second\n\n| a |\n|---|\n\nAnother."),
    }
    monkeypatch.setattr(llms, "ORDER", [("", ["index.md"]), ("How-to", ["b.md", "a.md"])])
    assert llms.index("msk_auth", BASE, pages) == (
        "# msk_auth\n\n> Two kinds of credential.\n\n## How-to\n\n"
        f"- [Second]({BASE}b/): Another.\n- [First]({BASE}a/): What it does.\n"
    )
    everything = llms.everything("msk_auth", pages)
    assert everything.index("# Home") < everything.index("# Second") < everything.index("# First")


def test_every_page_begins_by_saying_what_it_is_about() -> None:
    for path in PAGES:
        with case(path):
            text = path.read_text("utf-8")
            assert text.startswith("# ")
            assert 20 < len(llms.summary(text)) < 500


# The site as it was built.


def built(tmp_path: Path, **pages: str) -> list[str]:
    for name, html in pages.items():
        folder = tmp_path if name == "index" else tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "index.html").write_text(html, "utf-8")
    (tmp_path / "site.css").write_text("", "utf-8")
    return built_site.problems(tmp_path, BASE)


def test_a_good_site_has_no_problems(tmp_path: Path) -> None:
    good = (
        '<link rel="stylesheet" href="site.css"><a href="a/">a</a><a href="a/#x">a</a>'
        '<a href="https://www.rfc-editor.org/">an address to follow</a>'
        "<p>a</p><pre>a\n- b</pre>"
        '<img src="data:image/png;base64,AA" alt="A dot">'
    )
    assert built(tmp_path, index=good, a='<a href="../">home</a><h2 id="x">X</h2>') == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js from"),
        ('<link rel="preconnect" href="https://fonts.example/">', "loads https://fonts.example/"),
        (
            '<img src="//pixel.example/a.png" alt="A dot">',
            "loads //pixel.example/a.png from another host",
        ),
        ('<img src="missing.png" alt="A dot">', "loads missing.png, which is not there"),
        ('<img src="data:image/png;base64,AA" alt="">', "shows data:image/png;base64,AA without"),
        (
            "<p>For the guards.\n- <b>Another</b></p>",
            "shows a list as text, after 'For the guards.'",
        ),
        ('<a href="nowhere/">x</a>', "links to nowhere/, which is not there"),
        ('<a href="#nowhere">x</a>', "links to #nowhere, but the page has no such heading"),
    ],
)
def test_a_page_that_asks_others_or_points_nowhere_is_found(
    tmp_path: Path, html: str, problem: str
) -> None:
    (found,) = built(tmp_path, index=html)
    assert found.startswith(f"index.html: {problem}")


# The lists of pages that people read.


@pytest.mark.parametrize("section", ["explanation", "how-to", "tutorials", "reference"])
def test_the_first_page_of_a_section_names_all_others(section: str) -> None:
    index = page(f"{section}/index.md")
    others = {path.name for path in (DOCS / section).glob("*.md")} - {"index.md"}
    assert {name for name in others if f"]({name})" not in index} == set()
