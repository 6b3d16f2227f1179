"""The public names: that each has a public module, what each error answers, and what importing them costs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msk_auth
import msk_auth.stores
from msk_auth import errors, events
from msk_auth.errors import MskAuthError, Problem

ROOT = Path(__file__).parents[1]

OBJECTS: dict[str, Any] = {
    name: getattr(module, name)
    for module in (msk_auth, errors, events, msk_auth.stores)
    for name in module.__all__
}
DEFINITIONS = {
    name: value
    for name, value in OBJECTS.items()
    if inspect.isclass(value) or inspect.isfunction(value)
}
ERRORS = {
    name: value
    for name, value in DEFINITIONS.items()
    if inspect.isclass(value) and issubclass(value, MskAuthError)
}


def test_every_public_name_has_its_public_module() -> None:
    for name, value in DEFINITIONS.items():
        assert value.__module__.startswith("msk_auth."), name
        assert value.__name__ == name


# Errors.


def documented_codes() -> dict[str, int]:
    """From code to status, as `docs/reference/errors.md` has them."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    return {
        code: int(status)
        for code, status in re.findall(r"^### (\w+)\n\n\*\*(\d+)\*\*", text, re.MULTILINE)
    }


WITH_ONE_CODE = [
    value for value in ERRORS.values() if issubclass(value, Problem) and "code" in vars(value)
]
WITH_REASONS = (errors.CredentialRefused, errors.Forbidden)
CODES = [
    *((value.code, value.status) for value in WITH_ONE_CODE),
    *((code, value.status) for value in WITH_REASONS for code in value.reasons),
]
ANSWERS = dict(CODES)


def test_every_error_has_a_code_of_its_own() -> None:
    assert len(ANSWERS) == len(CODES) == 26


def test_every_code_is_documented_with_its_status() -> None:
    documented = documented_codes()
    assert {code: documented.get(code) for code in ANSWERS} == ANSWERS


def sources() -> str:
    folders = (ROOT / "src" / "msk_auth", ROOT / "examples" / "task_service" / "src")
    return "".join(
        path.read_text("utf-8") for folder in folders for path in sorted(folder.rglob("*.py"))
    )


def test_every_code_of_the_service_is_documented() -> None:
    codes = set(re.findall(r'^    code = "(\w+)"$', sources(), re.MULTILINE))
    assert len(codes) > len(ANSWERS)
    assert codes - documented_codes().keys() == set()


def test_no_other_codes_are_documented_than_are_answered_with() -> None:
    text = sources()
    assert [code for code in documented_codes() if f'"{code}"' not in text] == []


def test_the_version_is_the_distributions() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    assert f'version = "{msk_auth.__version__}"' in pyproject
