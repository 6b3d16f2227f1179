"""What runs and is shown around the repository: pinned, with the least permissions, and true to the Makefile."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
IDS = [path.name for path in WORKFLOWS]

PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
# Beside the commit stands the version that people read and that update tools compare.
PINNED_LINE = re.compile(r"\s*(?:- )?uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+")

# The most that a job of each workflow may have. What is not named is not given.
ALLOWED: dict[str, dict[str, dict[str, str]]] = {
    "ci.yml": {
        "everything": {"contents": "read"},
        "free-threaded": {"contents": "read"},
        "package": {"contents": "read"},
    },
    "mutants.yml": {"mutants": {"contents": "read"}},
    "release.yml": {
        "build": {"contents": "read"},
        "attest": {"attestations": "write", "id-token": "write"},
        "publish": {"id-token": "write"},
    },
}


def load(path: Path) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return document


def steps(document: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in document["jobs"].values():
        yield from job["steps"]


def test_these_are_the_workflows() -> None:
    assert set(IDS) == set(ALLOWED)


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_every_action_is_pinned_by_its_commit(path: Path) -> None:
    used = [step["uses"] for step in steps(load(path)) if "uses" in step]
    assert used
    assert [name for name in used if PINNED.fullmatch(name) is None] == []
    lines = [line for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    assert [line for line in lines if PINNED_LINE.fullmatch(line) is None] == []


def test_an_action_has_one_version_everywhere() -> None:
    used = {step["uses"] for path in WORKFLOWS for step in steps(load(path)) if "uses" in step}
    assert len({name.partition("@")[0] for name in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_no_job_may_more_than_it_needs(path: Path) -> None:
    document = load(path)
    assert document["permissions"] == {}
    jobs = document["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == ALLOWED[path.name]
    assert all(0 < job["timeout-minutes"] <= 60 for job in jobs.values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_no_code_of_a_pull_request_runs_with_privileges(path: Path) -> None:
    document = load(path)
    # YAML 1.1 reads `on` as a truth value.
    triggers = document[True]
    assert "pull_request_target" not in triggers
    assert "workflow_run" not in triggers
    for step in steps(document):
        # An expression in a script is replaced before the shell sees it: a branch may have any name.
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert "secrets." not in path.read_text("utf-8")


def test_only_what_was_built_and_attested_is_published() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert (jobs["attest"]["needs"], jobs["publish"]["needs"]) == ("build", "attest")
    assert jobs["publish"]["environment"] == "release"
    # The job that may publish runs no code of the repository.
    for job in ("attest", "publish"):
        assert [step for step in jobs[job]["steps"] if "run" in step] == []


def test_ci_covers_every_python_that_is_supported() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    supported = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)
    jobs = load(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    assert jobs["everything"]["strategy"]["matrix"]["python"] == supported
    setup = next(step for step in jobs["package"]["steps"] if "setup-python" in step["uses"])
    assert setup["with"]["python-version"].split() == supported
    noxfile = (ROOT / "noxfile.py").read_text("utf-8")
    assert f"PYTHONS = {json.dumps(supported)}" in noxfile


def made(text: str) -> set[str]:
    """The targets that `make` is asked for."""
    return set(re.findall(r"\bmake ([a-z][a-z-]*)\b", text))


def test_what_is_called_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for path in (*WORKFLOWS, ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md"):
        assert made(path.read_text("utf-8")) <= targets, path
    for path in (ROOT / ".devcontainer" / "devcontainer.json", ROOT / ".readthedocs.yaml"):
        assert "make .venv/bin/.dev" in path.read_text("utf-8")
    assert "BIN := .venv/bin\n" in makefile
    assert "$(BIN)/.dev:" in makefile
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_what_make_test_leaves_out_has_a_target_that_runs_before_each_merge() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    left_out = re.findall(r"not (\w+)", settings["addopts"][settings["addopts"].index("-m") + 1])
    with_a_target = [each for each in settings["markers"] if "run by `make " in each]
    assert with_a_target
    assert left_out == [each.partition(":")[0] for each in with_a_target]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    for name, marker in zip(left_out, with_a_target, strict=True):
        target = f"test-{name}"
        assert marker.endswith(f"run by `make {target}`")
        assert re.search(rf"^{target}:.*\n\t\$\(BIN\)/pytest -m {name} ", makefile, re.MULTILINE)
        assert f'step "make {target}" make {target}\n' in ci
        assert f"$ make {target} " in contributing


def test_the_templates_can_be_read() -> None:
    forms = [
        path
        for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
        if path.name != "config.yml"
    ]
    assert len(forms) == 2
    for path in forms:
        form = load(path)
        assert form["name"]
        assert form["description"]
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields)
        assert all(field["attributes"]["label"] for field in fields)
    updates = load(ROOT / ".github" / "dependabot.yml")["updates"]
    ecosystems = [update["package-ecosystem"] for update in updates]
    assert ecosystems == ["github-actions", "docker", "docker-compose"]


def test_the_hooks_run_what_is_installed() -> None:
    (local,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    locked = (ROOT / "requirements" / "dev.txt").read_text("utf-8")
    commands = {shlex.split(hook["entry"])[0] for hook in local["hooks"]}
    tools = {command.removeprefix(".venv/bin/") for command in commands}
    assert tools == {"ruff", "lint-imports"}
    for package in ("ruff", "import-linter"):
        assert re.search(rf"^{package}==", locked, re.MULTILINE)


def test_the_container_for_developers_has_what_the_tests_drive() -> None:
    folder = ROOT / ".devcontainer"
    settings = json.loads((folder / "devcontainer.json").read_text("utf-8"))
    assert (folder / settings["build"]["dockerfile"]).is_file()
    dockerfile = (folder / "Dockerfile").read_text("utf-8")
    for package in ("chromium", "postgresql", "mariadb-server", "redis-server", "iproute2"):
        assert package in dockerfile
    # The user is not root, and the base image is of a Python that is supported.
    assert dockerfile.rstrip().endswith("USER dev")
    assert re.search(r"^FROM python:3\.1[123]-\w+$", dockerfile, re.MULTILINE)
    assert settings["remoteUser"] == "dev"
    assert (folder / settings["postStartCommand"]).stat().st_mode & 0o100
