"""Everything about the package that needs clean environments: `make check-all`.

The Pythons are those on PATH as `python3.11` to `python3.15`, where `make` puts them; a missing one fails its sessions. A part of them: `.venv/bin/nox --session package`, `.venv/bin/nox --session install -- fastapi`.
"""

from __future__ import annotations

import email
import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
PROJECTS = {"msk_auth": ROOT, "task_service": ROOT / "examples" / "task_service"}
PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
# The oldest dependencies are older than the newest Pythons, and only promised where they were released for.
VERSIONS = [
    *((python, "lowest-direct") for python in PYTHONS if python < "3.14"),
    *((python, "highest") for python in PYTHONS),
]
EXTRAS = ["none", "argon2", "fastapi", "flask", "litestar", "mcp", "sqlalchemy", "starlette", "all"]

TEST_TOOLS = [
    "anyio", "httpx", "httpx2", "hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "sybil",
    "advanced-alchemy", "aiomysql", "aiosqlite", "authlib", "flask[async]", "flask-migrate", "joserfc", "psycopg[binary]", "pymysql", "sqlmodel",
]  # fmt: skip
TESTS = [
    "tests/core", "tests/integrations", "tests/leaks", "tests/security", "tests/stores", "tests/testing", "tests/tokens",
    "tests/test_argon2.py", "tests/test_authenticator.py", "tests/test_redaction.py",
]  # fmt: skip
# The real servers are the same whatever the package meets.
PYTEST = [
    "--dist",
    "loadfile",
    "-p",
    "no:cacheprovider",
    "--ignore",
    "tests/integrations/test_servers.py",
]

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "uv"
# A Python comes from the machine or from `make`, never from a place on the network that nox chooses.
nox.options.download_python = "never"
nox.options.sessions = ["package", "install", "suite", "service"]
nox.options.error_on_missing_interpreters = True


@nox.session(python=False)
def package(session: nox.Session) -> None:
    """Build wheels and source distributions, and once more elsewhere: every byte has to be the same."""
    shutil.rmtree(DIST, ignore_errors=True)
    for name, project in PROJECTS.items():
        with tempfile.TemporaryDirectory() as folder:
            one, other = Path(folder) / "one", Path(folder) / "other"
            _copy_tracked(session, project, one)
            shutil.copytree(one, other)
            for path in other.rglob("*"):
                path.chmod(0o700 if path.is_dir() else 0o600)
                os.utime(path, (1_000_000_000, 1_000_000_000))
            _build(session, one, DIST)
            _build(session, other, Path(folder) / "dist")
            _compare(session, name, Path(folder) / "dist")
        _inspect(session, name)


def _copy_tracked(session: nox.Session, project: Path, target: Path) -> None:
    """What git knows, as it is now: what else lies about is no part of a release."""
    listed = session.run(
        "git", "-C", str(project), "ls-files", "-z", external=True, silent=True, log=False
    )
    for name in str(listed).split("\0"):
        if name and (project / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(project / name, target / name)


def _build(session: nox.Session, project: Path, target: Path) -> None:
    session.run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(project),
        external=True, silent=True, env={"SOURCE_DATE_EPOCH": _epoch(session)},
    )  # fmt: skip


def _compare(session: nox.Session, name: str, other: Path) -> None:
    made = {path.name: _sha256(path) for path in other.iterdir()}
    ours = {path.name: _sha256(path) for path in DIST.glob(f"{name}-*")}
    if made != ours or len(ours) != 2:
        session.error(f"two builds of {name} differ: {ours} and {made}")
    for file, digest in sorted(ours.items()):
        session.log("%s  %s", digest, file)


def _inspect(session: nox.Session, name: str) -> None:
    """What a release has to carry (PEP 639, PEP 561), and what it must not."""
    (wheel,) = DIST.glob(f"{name}-*.whl")
    (source,) = DIST.glob(f"{name}-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [each for each in names if each.endswith(".dist-info/METADATA")]
        fields = email.message_from_bytes(archive.read(metadata))
    with tarfile.open(source) as tar:
        names_in_source = [each.name for each in tar.getmembers()]
    wrong = [each for each in (*names, *names_in_source) if "__pycache__" in each]
    if fields["License-Expression"] != "MIT" or fields["License-File"] is None:
        wrong.append("METADATA: no licence")
    if f"{name}/py.typed" not in names:
        wrong.append("no py.typed")
    if not any(each.endswith("/licenses/LICENSE") for each in names):
        wrong.append("no licence file")
    if wrong:
        session.error(f"{name}: {wrong}")


def _epoch(session: nox.Session) -> str:
    """The time of the newest commit: a rebuild of the release has it as well."""
    output = session.run("git", "log", "-1", "--format=%ct", external=True, silent=True, log=False)
    return str(output).strip()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@nox.session
@nox.parametrize("python,resolution", VERSIONS)
def install(session: nox.Session, resolution: str) -> None:
    """Install with each extra, and with none, into an environment of its own, and use what came."""
    for extra in session.posargs or EXTRAS:
        session.log("extra: %s, %s", extra, resolution)
        folder = Path(session.create_tmp()) / extra
        shutil.rmtree(folder, ignore_errors=True)
        python = folder / "bin" / "python"
        session.run("uv", "venv", "--quiet", "--python", str(session.python), str(folder))
        _install(session, python, resolution, extra)
        session.run(str(python), "-I", "-W", "error", "tests/smoke.py", extra, external=True)


@nox.session
@nox.parametrize("python,resolution", VERSIONS)
def suite(session: nox.Session, resolution: str) -> None:
    """Run the library's tests against the installed wheel, with the oldest and the newest of its dependencies."""
    python = Path(session.virtualenv.bin) / "python"
    # Litestar's own JWT demands a newer PyJWT than the library does, and the tools that write migrations a newer SQLAlchemy.
    _install(session, python, resolution, "all", "litestar[jwt]", "sqlalchemy>=2.0.40")
    # The newest of both SDKs of MCP servers; the oldest ones are not installed beside each other.
    newest = ["fastmcp"] if resolution == "highest" else []
    _uv_install(session, python, *TEST_TOOLS, *newest)
    session.run("pytest", "-q", "-n", "auto", *PYTEST, *(session.posargs or TESTS))


@nox.session
@nox.parametrize("python,resolution", VERSIONS)
def service(session: nox.Session, resolution: str) -> None:
    """Install the task service from built wheels into a clean environment, and let it answer."""
    python = Path(session.virtualenv.bin) / "python"
    library = f"{_wheel('msk_auth')}[argon2,fastapi,sqlalchemy]"
    project = str(PROJECTS["task_service"] / "pyproject.toml")
    # What the project says of where the library is holds for working on both, not for a wheel.
    _uv_install(session, python, "--resolution", resolution, "--no-sources", "-r", project, library)
    _uv_install(session, python, "--no-deps", str(_wheel("task_service")))
    session.run("uv", "pip", "check", "--quiet", "--python", str(python))
    session.run(str(python), "-I", "tests/smoke_service.py", external=True)


def _wheel(name: str) -> Path:
    (wheel,) = DIST.glob(f"{name}-*.whl")
    return wheel


def _install(session: nox.Session, python: Path, resolution: str, extra: str, *more: str) -> None:
    """The library's wheel, after its dependencies: only those that a project names itself can be the oldest."""
    extras = [] if extra == "none" else ["--extra", extra]
    # What is not named is the newest, and too new for the oldest.
    beside = ["--constraint", ".ci/oldest.txt"] if resolution == "lowest-direct" else []
    project = ["--resolution", resolution, *beside, *extras, "-r", "pyproject.toml", *more]
    _uv_install(session, python, *project)
    _uv_install(session, python, "--no-deps", str(_wheel("msk_auth")))
    session.run("uv", "pip", "check", "--quiet", "--python", str(python))


def _uv_install(session: nox.Session, python: Path, *what: str) -> None:
    session.run("uv", "pip", "install", "--quiet", "--python", str(python), *what)
