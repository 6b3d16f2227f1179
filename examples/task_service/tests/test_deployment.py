"""The files for deployments are true: commands, settings, paths, addresses and ports."""

from __future__ import annotations

import asyncio
import configparser
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples.task_service.tests.faults.proxies import proxy
from examples.task_service.tests.service_support import on_a_port, running_service
from tests.ports import free_port

from task_service.cli import main
from task_service.doctor import CONNECTIONS_OF_A_PROCESS
from task_service.settings import PREFIX, Settings
from task_service.tasks.queue import QueueNotifications

SERVICE = Path(__file__).parents[1]
ROOT = SERVICE.parents[1]
DEPLOY = SERVICE / "deploy"
INTERPOLATED = {
    "TASK_SERVICE_BASE_URL": "https://tasks.example.org",
}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, an instruction and its words at a time."""
    text = re.sub(r"^#.*\n", "", (SERVICE / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines if line.strip()]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    begins = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return found[begins:]


def image_environment() -> dict[str, str]:
    (words,) = [words for name, words in last_stage() if name == "ENV"]
    return dict(word.split("=", 1) for word in shlex.split(words))


def health_check() -> list[str]:
    (words,) = [words for name, words in last_stage() if name == "HEALTHCHECK"]
    return list(json.loads(words.partition("CMD ")[2]))


@pytest.fixture(scope="module")
def compose() -> Any:
    def fill_in(match: re.Match[str]) -> str:
        return INTERPOLATED[match[1]]

    text = (SERVICE / "compose.yaml").read_text()
    return yaml.safe_load(re.sub(r"\$\{(\w+):\?[^}]*\}", fill_in, text))


def unit_of(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    return unit


def units() -> Iterator[configparser.ConfigParser]:
    """Those of processes that serve and of workers."""
    for path in sorted(DEPLOY.glob("*.service")):
        if "backup" not in path.name:
            yield unit_of(path)


def settings_from(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    return Settings()


def test_the_image_runs_as_an_unprivileged_user() -> None:
    users = [words for name, words in last_stage() if name == "USER"]
    assert users == ["10001:10001"]
    # Nothing runs as root after that.
    names = [name for name, _ in last_stage()]
    assert "RUN" not in names[names.index("USER") :]


def test_images_of_others_are_pinned_by_version_and_digest(compose: Any) -> None:
    stages = {words.split()[-1] for name, words in instructions() if name == "FROM"}
    bases = [words.split()[0] for name, words in instructions() if name == "FROM"]
    composed = [service["image"] for service in compose["services"].values()]
    foreign = {image for image in (*bases, *composed) if image not in {*stages, "task-service"}}
    assert {image.partition(":")[0] for image in foreign} == {"python", "postgres", "nginx"}
    for image in foreign:
        assert re.fullmatch(r"[a-z]+:[\d.]+-[a-z-]+@sha256:[0-9a-f]{64}", image)


def test_whatever_is_installed_into_the_image_is_checked_against_its_hash() -> None:
    commands = [words for name, words in instructions() if name == "RUN"]
    installing = [part for words in commands for part in words.split("&&") if "pip install" in part]
    # The last kind are the two packages of this repository, built with what was checked.
    allowed = ("--require-hashes --requirement requirements/", "--no-deps /wheels/*.whl")
    assert all(any(words in part for words in allowed) for part in installing)


def test_whatever_is_copied_into_the_image_exists_and_is_not_ignored() -> None:
    ignored = (SERVICE / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        source
        for name, words in instructions()
        if name == "COPY" and not words.startswith("--from")
        for source in words.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in let_in
    assert "*" in ignored
    # Data and secrets of a service that was started from the tree stay out.
    for secret in ("examples/task_service/src/secrets.json", "src/task-service.sqlite3-wal"):
        assert any(fnmatch.fnmatch(secret, line.replace("**/", "*/")) for line in ignored)


def test_the_images_settings_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        name: value
        for name, value in image_environment().items()
        if name.startswith("TASK_SERVICE_")
    }
    settings = settings_from(environment, monkeypatch)
    volumes = [json.loads(words) for name, words in last_stage() if name == "VOLUME"]
    assert volumes == [[str(settings.data_dir)]]
    assert ("EXPOSE", str(settings.port)) in last_stage()


@pytest.mark.anyio
async def test_the_images_health_check_checks(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, *words = health_check()
    assert program == "python"

    async def exit_status() -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stderr=subprocess.DEVNULL
        )
        return await process.wait()

    settings = {"base_url": "https://tasks.example"}
    async with (
        running_service(template, tmp_path / "data", shared_routes=True, **settings) as service,
        on_a_port(service) as origin,
    ):
        monkeypatch.setenv("TASK_SERVICE_PORT", origin.rpartition(":")[2])
        assert await exit_status() == 0
    assert await exit_status() == 1


def test_every_container_of_the_composition_is_confined(compose: Any) -> None:
    for name, each in compose["services"].items():
        if name != "postgres":
            assert each["read_only"] is True, name
            assert each["cap_drop"] == ["ALL"], name
            assert each["security_opt"] == ["no-new-privileges:true"], name
        assert {"mem_limit", "cpus", "pids_limit"} <= each.keys(), name
        # Only nginx is reached from outside.
        assert ("ports" in each) is (name == "nginx")


def test_the_compositions_settings_are_settings_and_trust_its_proxy_alone(
    compose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = compose["services"]
    api = services["api-1"]
    settings = settings_from(api["environment"], monkeypatch)
    address = services["nginx"]["networks"]["inside"]["ipv4_address"]
    assert [str(network) for network in settings.trusted_proxies] == [f"{address}/32"]
    assert settings.base_url == INTERPOLATED["TASK_SERVICE_BASE_URL"]
    postgres = services["postgres"]["environment"]
    user, database = (postgres[f"POSTGRES_{name}"] for name in ("USER", "DB"))
    url = f"postgresql://{user}@postgres/{database}?passfile=/run/secrets/pgpass"
    assert settings.database_url == url
    given = QueueNotifications(url)._app.connector._pool_args["kwargs"]
    assert given["passfile"] == "/run/secrets/pgpass"
    # All processes that serve use the same secrets, and those that execute commands do not have them.
    assert {tuple(services[name]["volumes"]) for name in ("migrate", "api-1", "api-2")} == {
        ("data:/var/lib/task-service",)
    }
    assert services["worker-1"]["volumes"] == services["worker-2"]["volumes"] == []


def test_the_password_of_the_composition_is_in_files_alone(compose: Any, tmp_path: Path) -> None:
    assert "POSTGRES_PASSWORD:" not in (SERVICE / "compose.yaml").read_text()
    services = compose["services"]
    for name, each in services.items():
        expected = {"postgres": ["postgres-password"], "nginx": []}.get(name, ["pgpass"])
        assert each.get("secrets", []) == expected, name
    deploy = tmp_path / "deploy"
    deploy.mkdir()
    # Only root may give files away, so the command for that is noted here.
    (tmp_path / "chown").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\n')
    (tmp_path / "chown").chmod(0o755)
    shutil.copy(DEPLOY / "make-secrets", deploy)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([deploy / "make-secrets"], check=True, env={"PATH": path})
    files = {name: tmp_path / secret["file"] for name, secret in compose["secrets"].items()}
    password = files["postgres-password"].read_text()
    assert re.fullmatch(r"[0-9a-f]{64}", password)
    assert files["pgpass"].read_text() == f"postgres:5432:task_service:task_service:{password}\n"
    # The driver ignores a file that others may read.
    assert files["pgpass"].stat().st_mode & 0o777 == 0o600
    assert (deploy / "secrets").stat().st_mode & 0o777 == 0o700
    (owner,) = [words for name, words in last_stage() if name == "USER"]
    assert (tmp_path / "given").read_text().split()[0] == owner
    # A second time would give PostgreSQL's data another password than it has.
    again = subprocess.run(
        [deploy / "make-secrets"], check=False, env={"PATH": path}, capture_output=True
    )
    assert again.returncode != 0
    assert files["postgres-password"].read_text() == password


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_proxy_accepts_its_shipped_file(name: str, tmp_path: Path) -> None:
    with proxy(name, tmp_path, [free_port(), free_port()]):
        pass


def test_the_proxies_believe_no_client_and_nginx_reaches_the_processes_of_the_composition(
    compose: Any,
) -> None:
    port = image_environment()["TASK_SERVICE_PORT"]
    upstream = (DEPLOY / "nginx-upstream-compose.conf").read_text()
    assert re.findall(r"server ([\w-]+):(\d+)", upstream) == [("api-1", port), ("api-2", port)]
    # nginx looks a name up once. A container that is made anew would have another address.
    addresses = [
        compose["services"][name]["networks"]["inside"]["ipv4_address"]
        for name in ("api-1", "api-2", "nginx")
    ]
    assert len(set(addresses)) == 3
    # Added to what the client sent, it would be the client's word.
    assert "X-Forwarded-For $remote_addr;" in (DEPLOY / "nginx.conf").read_text()
    assert "set-header X-Forwarded-For %[src]" in (DEPLOY / "haproxy.cfg").read_text()
    for volume in compose["services"]["nginx"]["volumes"]:
        path = SERVICE / volume.split(":")[0]
        # Made by deploy/make-certificate.
        assert path.exists() or path.name == "tls"


def test_the_units_start_commands_that_exist_with_settings_that_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []
    for unit in units():
        service = unit["Service"]
        program, command = service["ExecStart"].split()
        assert Path(program).name == "task-service"
        assert command in main.commands
        started.append(command)
        # Of duplicates `configparser` keeps the last one; each is a setting.
        name, _, value = service["Environment"].partition("=")
        settings_from({name: value}, monkeypatch)
        if command == "worker":
            # Another user than the one that the secrets belong to.
            assert (service["DynamicUser"], service["User"]) == ("yes", "task-service-worker")
            assert service["InaccessiblePaths"] == "-/var/lib/task-service"
            assert "StateDirectory" not in service
            withheld = service["UnsetEnvironment"].split()
            fields = {name.removeprefix(PREFIX).lower() for name in withheld}
            assert fields == {"oidc_client_secret"} <= Settings.model_fields.keys()
        else:
            assert service["InaccessiblePaths"] == "-/var/backups/task-service"
            assert service["User"] == "task-service"
            assert service["StateDirectory"] == "task-service"
        # The kernel may end a command that takes too much memory; the service goes on.
        assert service["OOMPolicy"] == "continue"
    assert sorted(started) == ["serve", "worker"]


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="needs root on Linux"
)
def test_processes_in_the_units_have_the_metrics_of_the_dashboard() -> None:
    """With /proc mounted as systemd does it for the units."""
    named = set(re.findall(r"\bprocess_[a-z_]+", (DEPLOY / "grafana-dashboard.json").read_text()))
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= named
    collect = (
        "from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest;"
        " registry = CollectorRegistry(); ProcessCollector(registry=registry);"
        " print(generate_latest(registry).decode())"
    )
    for unit in units():
        service = unit["Service"]
        options = [f"hidepid={service['ProtectProc']}"]
        if service.get("ProcSubset", "all") != "all":
            options.append(f"subset={service['ProcSubset']}")
        mounted = f'mount -t proc -o {",".join(options)} proc /proc && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mounted, "sh", sys.executable, "-c", collect]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert named <= set(re.findall(r"^process_[a-z_]+", done.stdout, re.MULTILINE))


def test_the_time_that_a_process_gets_to_stop_is_the_same_everywhere(compose: Any) -> None:
    seconds = {unit["Service"]["TimeoutStopSec"] for unit in units()}
    seconds |= {
        each["stop_grace_period"].removesuffix("s")
        for each in compose["services"].values()
        if "build" in each
    }
    assert seconds == {"40"}


def test_postgresql_has_connections_for_what_the_composition_starts(compose: Any) -> None:
    each = CONNECTIONS_OF_A_PROCESS
    processes = [name for name in compose["services"] if re.match(r"(api|worker)-", name)]
    # One more process during an upgrade, and ten for the operator.
    needed = len(processes) * each + each + 10
    (limit,) = re.findall(r"max_connections=(\d+)", compose["services"]["postgres"]["command"][-1])
    assert needed <= int(limit)


def test_the_timers_start_backups_whose_scripts_exist() -> None:
    timers = sorted(DEPLOY.glob("*.timer"))
    assert len(timers) == 2
    for timer in timers:
        service = unit_of(timer.with_suffix(".service"))["Service"]
        script, _database, folder = service["ExecStart"].split()
        assert os.access(DEPLOY / Path(script).name, os.X_OK)
        assert folder in service["ReadWritePaths"].split()
        assert "OnCalendar" in unit_of(timer)["Timer"]


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    units = (path for kind in ("service", "socket", "timer") for path in DEPLOY.glob(f"*.{kind}"))
    for path in units:
        # The programs are not installed here.
        text = re.sub(r"/opt/task-service/\S+/", "/bin/", path.read_text())
        text = re.sub(r"/bin/(task-service|backup-\w+)", "/bin/true", text)
        (tmp_path / path.name.replace("@.", "@8000.")).write_text(text)
    command = [analyze, "verify", "--man=no", *sorted(tmp_path.iterdir())]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
