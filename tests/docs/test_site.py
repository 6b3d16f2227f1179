"""What makes the site: diagrams, docstrings, `llms.txt`, and the look at what was built."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import griffe
import pytest
from docs.tools import built_site, diagrams, hooks, layers, llms
from docs.tools.docstrings import to_markdown

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BASE = "https://docs.example/en/stable/"

PAGES = sorted(DOCS.rglob("*.md"))
DIAGRAMS = sorted((DOCS / "assets" / "diagrams").glob("*.svg"))


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


# Generated parts.


def test_a_marker_is_replaced_and_a_wrong_one_stops_the_build() -> None:
    filled = hooks.fill_in("Before\n\n<!-- generated: commands -->\n\nAfter")
    assert "### serve" in filled
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


# Diagrams.


def test_a_diagram_is_drawn_into_the_page_without_its_own_colours(tmp_path: Path) -> None:
    folder = tmp_path / "assets" / "diagrams"
    folder.mkdir(parents=True)
    (folder / "one.svg").write_text(
        '<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg">\n'
        "  <style>\n\n    .box { fill: red }\n  </style>\n\n  <rect class='box'/>\n</svg>\n",
        "utf-8",
    )
    drawn = diagrams.inline("Look:\n\n![One](assets/diagrams/one.svg)\n", tmp_path)
    assert "<rect class='box'/>" in drawn
    assert "<style>" not in drawn
    assert "<?xml" not in drawn
    # A blank line would end the block of HTML.
    assert "\n\n" not in drawn.partition("<figure")[2].partition("</figure>")[0]
    other = "![A screenshot](assets/keys-light.png)"
    assert diagrams.inline(other, tmp_path) == other


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
    changed = layers.layers(pyproject.replace('    "watch",\n', '    "watch : looks",\n'))
    drawn = layers.inline(f"Look:\n\n{layers.MARKER}\n")
    svg = ElementTree.fromstring("\n".join(drawn.splitlines()[3:-1]))
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == [*(module for row in rows for module in row), "imports point downwards only"]
    assert ">looks</text>" in layers.draw(changed)
    site_css = (DOCS / "assets" / "site.css").read_text("utf-8")
    for name in re.findall('class="([a-z]+)"', drawn):
        assert f".{name} {{" in site_css, name


def test_the_table_of_layers_has_the_rule_of_each_folder() -> None:
    table = layers.render()
    assert "| `core` | Code in this folder decides and never waits. |" in table
    assert table.splitlines()[2].startswith("| `core` |")
    assert table.splitlines()[-1].startswith("| `cli` |")


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)
def test_a_diagram_explains_itself_and_follows_light_and_dark(path: Path) -> None:
    text = path.read_text("utf-8")
    root = ElementTree.fromstring(text)
    svg = "{http://www.w3.org/2000/svg}"
    title, description = root.find(f"{svg}title"), root.find(f"{svg}desc")
    assert title is not None
    assert description is not None
    assert len(description.text or "") > 40
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert "prefers-color-scheme: dark" in text
    # Every class that is used has colours in the file and on the site.
    site_css = (DOCS / "assets" / "site.css").read_text("utf-8")
    for name in {word for each in root.iter() for word in (each.get("class") or "").split()}:
        assert f".{name} {{" in text, name
        assert f".diagram .{name} {{" in site_css, name


def test_every_diagram_is_used_and_ids_do_not_clash() -> None:
    text = "".join(path.read_text("utf-8") for path in PAGES)
    assert [path.name for path in DIAGRAMS if f"diagrams/{path.name})" not in text] == []
    ids = [
        name for path in DIAGRAMS for name in re.findall(r'\bid="([^"]+)"', path.read_text("utf-8"))
    ]
    assert len(ids) == len(set(ids))


# Docstrings.


@pytest.fixture(scope="module")
def package() -> griffe.Module:
    loaded = griffe.load("msk_auth", search_paths=[ROOT / "src"])
    assert isinstance(loaded, griffe.Module)
    return loaded


def test_roles_become_links(package: griffe.Module) -> None:
    revoke = package["authenticator.Authenticator.delete_key"]
    text = to_markdown("Raises as :meth:`revoke_key` does, :class:`~msk_auth.Problem`.", revoke)
    assert text == (
        'Raises as <autoref optional identifier="msk_auth.authenticator.blocking.Authenticator.revoke_key">'
        "<code>revoke_key</code></autoref> does,"
        ' <autoref optional identifier="msk_auth.Problem"><code>Problem</code></autoref>.'
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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_every_page_begins_by_saying_what_it_is_about(path: Path) -> None:
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
        '<img src="data:image/png;base64,AA">'
    )
    assert built(tmp_path, index=good, a='<a href="../">home</a>') == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js from"),
        ('<link rel="preconnect" href="https://fonts.example/">', "loads https://fonts.example/"),
        ('<img src="//pixel.example/a.png">', "loads //pixel.example/a.png from another host"),
        ('<img src="missing.png">', "loads missing.png, which is not there"),
        ('<a href="nowhere/">x</a>', "links to nowhere/, which is not there"),
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
