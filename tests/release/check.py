"""What must hold before a version is published: `make release`, and `make release TAG=v1.2.3` for the tag itself.

`source` reads the checkout before anything is built: one version everywhere, a changelog in its form, and a tag that names
both. `built` reads what the build has left in `dist`: the bill of materials names what the wheel demands, and the workflow
attests every file and publishes no other. Neither sends anything anywhere.
"""

from __future__ import annotations

import email
import itertools
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECTS = (ROOT / "pyproject.toml", ROOT / "examples" / "task_service" / "pyproject.toml")

# Keep a Changelog 1.1.0.
SECTION = re.compile(r"## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})")
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def version() -> str:
    """The version of the library."""
    return str(tomllib.loads(PROJECTS[0].read_text("utf-8"))["project"]["version"])


def version_problems(root: Path, expected: str) -> Iterator[str]:
    """The places that name another version."""
    for path in ("pyproject.toml", "examples/task_service/pyproject.toml"):
        found = tomllib.loads((root / path).read_text("utf-8"))["project"]["version"]
        if found != expected:
            yield f"{path} has version {found}, not {expected}."
    if f'__version__ = "{expected}"' not in (root / "src/msk_auth/__init__.py").read_text("utf-8"):
        yield f"msk_auth.__version__ is not {expected}."


def changelog_problems(text: str, current: str, *, publishing: bool) -> Iterator[str]:
    """What is wrong with the changelog.

    Args:
        text: The changelog.
        current: The version of the checkout.
        publishing: This version is about to be published, so its changes are under its number.
    """
    headings = re.findall(r"^## .*$", text, re.MULTILINE)
    if not headings or headings[0] != "## [Unreleased]":
        yield "The changelog does not begin with ## [Unreleased]."
        return
    for kind in re.findall(r"^### (.*)$", text, re.MULTILINE):
        if kind not in KINDS:
            yield f"The changelog has a section '{kind}'. Allowed: {', '.join(KINDS)}."
    matches = [SECTION.fullmatch(heading) for heading in headings[1:]]
    for heading, match in zip(headings[1:], matches, strict=True):
        if match is None:
            yield f"'{heading}' is not of the form ## [1.2.3] - 2026-01-31."
    released = [(Version(match[1]), match[2]) for match in matches if match is not None]
    for newer, older in itertools.pairwise(released):
        if newer[0] <= older[0] or newer[1] < older[1]:
            yield f"{newer[0]} stands above {older[0]} in the changelog, and is not newer."
    if released and released[0][0] > Version(current):
        yield f"The changelog has {released[0][0]}, but the version is {current}."
    if publishing:
        if Version(current) not in {number for number, _ in released}:
            yield f"The changelog has no section ## [{current}]."
        if text.split("## [Unreleased]", 1)[1].split("\n## ", 1)[0].strip():
            yield "The changelog has changes under Unreleased that this version contains."


def tag_problems(tag: str, current: str, tags: set[str], changed: list[str]) -> Iterator[str]:
    """What is wrong with a tag.

    Args:
        tag: The tag that is to be published.
        current: The version of the checkout.
        tags: The tags of the commit that is checked out.
        changed: The files that differ from that commit.
    """
    if tag != f"v{current}":
        yield f"The tag {tag} is not v{current}."
    if tag not in tags:
        yield f"The commit that is checked out does not have the tag {tag}."
    if changed:
        yield f"Files differ from the tag: {', '.join(changed)}."


def bill_problems(bill: Mapping[str, Any], requires: list[str], current: str) -> Iterator[str]:
    """What a bill of materials (CycloneDX) lacks.

    Args:
        bill: The bill.
        requires: What the wheel demands, with any extra: its `Requires-Dist`.
        current: The version of the wheel.
    """
    subject = bill["metadata"]["component"]
    if (subject["name"], subject.get("version")) != ("msk-auth", current):
        yield f"The bill of materials describes {subject['name']} {subject.get('version')}."
    versions = {
        canonicalize_name(each["name"]): Version(each["version"]) for each in bill["components"]
    }
    for each in requires:
        requirement = Requirement(each)
        name = canonicalize_name(requirement.name)
        if name == "msk-auth":
            continue
        if name not in versions:
            yield f"The bill of materials lacks {name}, which the wheel demands."
        elif versions[name] not in requirement.specifier:
            yield f"The bill of materials has {name} {versions[name]}, but the wheel demands {each}."


def workflow_problems(workflow: Mapping[str, Any], files: set[str], bill: str) -> Iterator[str]:
    """The files that the workflow forgets to attest, and those that it would publish by mistake.

    Args:
        workflow: `release.yml`.
        files: The files of the release, as paths in the checkout.
        bill: The bill of materials, likewise.
    """
    uploads = {
        step["with"]["name"]: {
            path.relative_to(ROOT).as_posix() for path in ROOT.glob(step["with"]["path"])
        }
        for step in workflow["jobs"]["build"]["steps"]
        if "upload-artifact@" in step.get("uses", "")
    }
    if uploads != {"dist": files, "bill": {bill}}:
        yield f"The workflow hands on {uploads}, not {files} and {bill}."
    attested = [
        (step["with"]["subject-path"], step["with"].get("sbom-path"))
        for step in workflow["jobs"]["attest"]["steps"]
        if "actions/attest@" in step["uses"]
    ]
    if attested != [("dist/*", None), ("dist/*", f"bill/{Path(bill).name}")]:
        yield f"The workflow attests {attested}, not where each file came from and what it consists of."
    published = [
        step["with"]["name"]
        for step in workflow["jobs"]["publish"]["steps"]
        if "download-artifact@" in step["uses"]
    ]
    if published != ["dist"]:
        yield f"The workflow publishes {published}, not only what was built."


def _git(*arguments: str) -> list[str]:
    run = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    )
    return run.stdout.splitlines()


def source(tag: str) -> Iterator[str]:
    """The problems of the checkout; with a tag, also those that only matter when it is published."""
    current = version()
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    yield from version_problems(ROOT, current)
    yield from changelog_problems(changelog, current, publishing=bool(tag))
    if tag:
        tags = set(_git("tag", "--points-at", "HEAD"))
        yield from tag_problems(tag, current, tags, _git("status", "--porcelain"))


def built() -> Iterator[str]:
    """The problems of what was built."""
    current = version()
    dist = ROOT / "dist"
    bill = dist / "bill" / "msk-auth.cdx.json"
    (wheel,) = dist.glob("msk_auth-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        fields = email.message_from_bytes(archive.read(name))
    requires = fields.get_all("Requires-Dist", [])
    yield from bill_problems(json.loads(bill.read_text("utf-8")), requires, current)
    files = {path.relative_to(ROOT).as_posix() for path in dist.glob("msk_auth-*")}
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))
    yield from workflow_problems(workflow, files, bill.relative_to(ROOT).as_posix())


def main(arguments: list[str]) -> int:
    """`source [TAG]` or `built`."""
    match arguments:
        case ["source", *tag]:
            problems = list(source("".join(tag)))
        case ["built"]:
            problems = list(built())
        case _:
            problems = ["Usage: python -m tests.release.check source [TAG], or built"]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
