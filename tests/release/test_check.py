"""What decides whether a version may be published (`make release`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.release.check import (
    ROOT,
    bill_problems,
    changelog_problems,
    main,
    source,
    tag_problems,
    version,
    version_problems,
    workflow_problems,
)

CHANGELOG = """# Changelog

## [Unreleased]

### Added

- More.

## [1.1.0] - 2026-03-01

### Fixed

- It.

## [1.0.0] - 2026-02-01
"""
PUBLISHED = CHANGELOG.replace("### Added\n\n- More.\n\n", "")


def test_this_checkout_could_become_a_release() -> None:
    assert list(source("")) == []


def test_one_version_is_named_everywhere(tmp_path: Path) -> None:
    for name in (
        "pyproject.toml",
        "examples/task_service/pyproject.toml",
        "src/msk_auth/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    assert list(version_problems(tmp_path, version())) == []
    assert list(version_problems(tmp_path, "9.9.9")) == [
        f"pyproject.toml has version {version()}, not 9.9.9.",
        f"examples/task_service/pyproject.toml has version {version()}, not 9.9.9.",
        "msk_auth.__version__ is not 9.9.9.",
    ]


def test_a_changelog_between_two_versions() -> None:
    assert list(changelog_problems(CHANGELOG, "1.1.0", publishing=False)) == []
    assert list(changelog_problems(PUBLISHED, "1.1.0", publishing=True)) == []


@pytest.mark.parametrize(
    ("was", "becomes", "problem"),
    [
        ("## [Unreleased]", "", "does not begin with"),
        ("### Added", "### News", "has a section 'News'"),
        ("## [1.0.0] - 2026-02-01", "## 1.0.0", "'## 1.0.0' is not of the form"),
        ("## [1.0.0] - 2026-02-01", "## [1.2.0] - 2026-02-01", "1.1.0 stands above 1.2.0"),
        ("## [1.0.0] - 2026-02-01", "## [1.0.0] - 2026-04-01", "1.1.0 stands above 1.0.0"),
        ("## [1.1.0] - 2026-03-01", "## [1.10.0] - 2026-03-01", "has 1.10.0, but the version is"),
    ],
)
def test_a_changelog_that_is_not_in_its_form(was: str, becomes: str, problem: str) -> None:
    (found,) = changelog_problems(CHANGELOG.replace(was, becomes), "1.1.0", publishing=False)
    assert problem in found


def test_a_version_is_published_with_its_changes_under_its_number() -> None:
    (unreleased,) = changelog_problems(CHANGELOG, "1.1.0", publishing=True)
    assert "under Unreleased" in unreleased
    (unknown,) = changelog_problems(PUBLISHED, "1.2.0", publishing=True)
    assert "no section ## [1.2.0]" in unknown


def test_a_tag_names_the_version_of_what_is_checked_out() -> None:
    assert list(tag_problems("v1.1.0", "1.1.0", {"v1.1.0"}, [])) == []
    assert len(list(tag_problems("v1.2.0", "1.1.0", {"v1.2.0"}, []))) == 1
    assert len(list(tag_problems("v1.1.0", "1.1.0", set(), []))) == 1
    assert len(list(tag_problems("v1.1.0", "1.1.0", {"v1.1.0"}, [" M README.md"]))) == 1


def bill(**versions: str) -> dict[str, Any]:
    return {
        "metadata": {"component": {"name": "msk-auth", "version": "1.1.0"}},
        "components": [{"name": name, "version": each} for name, each in versions.items()],
    }


def test_a_bill_of_materials_names_what_the_wheel_demands() -> None:
    requires = ["pyjwt[crypto]>=2.10", "Flask>=3.0; extra == 'flask'", "msk-auth[flask]"]
    whole = bill(PyJWT="2.10.0", flask="3.1.0")
    assert list(bill_problems(whole, requires, "1.1.0")) == []
    (other,) = bill_problems(whole, requires, "1.2.0")
    assert "describes msk-auth 1.1.0" in other
    (missing,) = bill_problems(bill(pyjwt="2.10.0"), requires, "1.1.0")
    assert "lacks flask" in missing
    (old,) = bill_problems(bill(pyjwt="2.9.0", flask="3.1.0"), requires, "1.1.0")
    assert "has pyjwt 2.9.0" in old


@pytest.fixture
def workflow() -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The files of a release, in a checkout that has no others."""
    monkeypatch.setattr("tests.release.check.ROOT", tmp_path)
    names = {"dist/msk_auth-1.1.0.tar.gz", "dist/msk_auth-1.1.0-py3-none-any.whl"}
    for name in (*names, "dist/task_service-1.1.0.tar.gz", "dist/bill/msk-auth.cdx.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return names


BILL = "dist/bill/msk-auth.cdx.json"


def test_the_workflow_attests_every_file_and_publishes_what_was_built(
    workflow: Any, dist: set[str]
) -> None:
    assert list(workflow_problems(workflow, dist, BILL)) == []


def test_a_workflow_that_forgets_a_file_is_found(workflow: Any, dist: set[str]) -> None:
    for step in workflow["jobs"]["build"]["steps"]:
        if step.get("with", {}).get("name") == "dist":
            step["with"]["path"] = "dist/*.whl"
    (found,) = workflow_problems(workflow, dist, BILL)
    assert "hands on" in found


def test_a_workflow_that_attests_no_bill_is_found(workflow: Any, dist: set[str]) -> None:
    workflow["jobs"]["attest"]["steps"].pop()
    (found,) = workflow_problems(workflow, dist, BILL)
    assert "attests" in found


def test_a_workflow_that_publishes_the_bill_is_found(workflow: Any, dist: set[str]) -> None:
    for step in workflow["jobs"]["publish"]["steps"]:
        if "download-artifact@" in step["uses"]:
            step["with"]["name"] = "bill"
    (found,) = workflow_problems(workflow, dist, BILL)
    assert "publishes" in found


def test_a_problem_is_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["source"]) == 0
    assert main(["source", "v9.9.9"]) == 1
    assert "The tag v9.9.9 is not" in capsys.readouterr().err
    assert main([]) == 1
