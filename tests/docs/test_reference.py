"""Everything public is documented: names, settings, commands, operations, codes. And nothing that is not there."""

from __future__ import annotations

import argparse
import importlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from docs.tools import commands_page, http_api_page, settings_page
from markdown.extensions.toc import slugify
from tests.contract.adapter_contract import PROBLEM_BASE
from tests.test_architecture import PUBLIC_MODULES

from msk_auth.cli import build_parser
from task_service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def documented_names() -> Counter[str]:
    pages = sorted((REFERENCE / "api").glob("*.md"))
    return Counter(
        name
        for page in pages
        for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
    )


def public_names(module: str) -> set[str]:
    return {f"{module}.{name}" for name in importlib.import_module(module).__all__}


def test_every_public_name_is_documented_once_and_no_other() -> None:
    # A name that is added is kept until the next major version: `::: name` on a page of docs/reference/api says so.
    public = set().union(*map(public_names, PUBLIC_MODULES))
    assert documented_names() == Counter(public)


def test_every_module_with_public_names_is_in_the_list() -> None:
    package = ROOT / "src" / "msk_auth"
    found = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in package.rglob("*.py")
        if re.search(r"^__all__ = ", path.read_text("utf-8"), re.MULTILINE)
    }
    private = {name for name in found if re.search(r"\._(?!_)", name)}
    assert found - private == PUBLIC_MODULES


# The task service.


def test_every_setting_is_described() -> None:
    descriptions = settings_page.descriptions()
    for name in Settings.model_fields:
        assert len(descriptions.get(name, "")) > 10, f"describe {name} in the docstring of Settings"
    page = settings_page.render()
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    assert headings == [PREFIX + name.upper() for name in Settings.model_fields]
    assert "a whole number from 0 to 65,535. The default is `8000`." in page
    assert "one of `console`, `json`" in page


def test_every_command_of_the_service_is_on_its_page() -> None:
    page = commands_page.render()
    called = [" ".join(words[1:]) for words, _ in commands_page.commands()]
    assert {"serve", "worker", "migrate", "users create", "users disable", "doctor"} <= set(called)
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == called
    assert all(command.help for _, command in commands_page.commands())
    assert "| `--role` | One of `admin`, `user`, `viewer`. Required. |" in page


def test_every_operation_of_the_service_is_on_its_page() -> None:
    document, routes = http_api_page.load()
    page = http_api_page.render_service()
    headings = re.findall(r"^### ([A-Z]+ /\S*)$", page, re.MULTILINE)
    operations = [f"{method} {path}" for path, method, _ in http_api_page.operations(document)]
    assert sorted(headings) == sorted(operations)
    # Whatever of the API a program can ask for is in the document.
    served = {name for name in routes if " /api/" in name and name[:2] not in {"HE", "* "}}
    described = {
        http_api_page.key_of(method, path) for path, method, _ in http_api_page.operations(document)
    }
    assert served - described == set()


def test_every_route_of_the_library_is_on_its_page() -> None:
    _, routes = http_api_page.load_library()
    page = http_api_page.render_library()
    headings = re.findall(r"^### ([A-Z]+ /\S*)$", page, re.MULTILINE)
    own = {name for name in routes if " /api/" in name and not name.startswith("HEAD ")}
    assert {re.sub(r"{[^}]*}", "{}", heading) for heading in headings} == own
    # An owner's, an administrator's, and the route that takes the presented key itself.
    assert len(headings) == 7 + 3 + 1
    assert "**A login only**" in section(page, "POST /api/keys")
    assert "A login or any API key." in section(page, "GET /api/keys")
    assert "Permission: `keys:admin`." in section(page, "GET /api/admin/keys")
    assert "Needs no credentials." in section(page, "POST /api/revoke")


def section(page: str, heading: str) -> str:
    return page.partition(f"### {heading}\n")[2].partition("\n### ")[0]


def test_the_page_lists_the_operations_that_refuse_keys() -> None:
    page = http_api_page.render_service()
    assert "**A login only**" in section(page, "POST /api/keys")
    assert "Permission: `admin:config`." in section(page, "PATCH /api/admin/config")
    run = section(page, "POST /api/tasks/{taskId}/run")
    assert "A login or an API key. Permission: `tasks:run`." in run
    assert "Needs no credentials." in section(page, "GET /healthz")


@pytest.mark.parametrize("render", [http_api_page.render_service, http_api_page.render_library])
def test_every_shape_that_is_named_is_described(render: Callable[[], str]) -> None:
    page = render()
    shapes = {name.lower() for name in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    linked = set(re.findall(r"\]\(#(\w+)\)", page))
    assert linked
    assert linked - shapes == set()


# The command line of the library.


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the command has no subcommands")


def test_every_command_and_option_is_on_the_page_and_no_others() -> None:
    page = (
        (REFERENCE / "key-format.md").read_text("utf-8").partition("\n## The command msk-auth\n")[2]
    )
    commands = subcommands(build_parser())
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == list(commands)
    for name, parser in commands.items():
        text = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        options = {
            option
            for action in parser._actions
            for option in action.option_strings
            if option.startswith("--") and option != "--help"
        }
        assert set(re.findall(r"^\| `(--[a-z-]+)`", text, re.MULTILINE)) == options, name


# Codes.


def test_the_type_of_every_problem_is_an_address_of_the_site() -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    site_url = re.search(r"^site_url: (\S+)$", config, re.MULTILINE)
    assert site_url is not None
    assert f"{site_url[1]}reference/errors/" == PROBLEM_BASE
    # Its fragment is the code: the heading is nothing but the code, and that is its anchor.
    page = (REFERENCE / "errors.md").read_text("utf-8")
    codes = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert len(codes) == len(set(codes)) > 30
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)
    assert [code for code in codes if slugify(code, "-") != code] == []
