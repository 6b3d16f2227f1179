"""The files for deployments are true: commands, settings, paths, addresses and ports."""

from __future__ import annotations

import configparser
import fnmatch
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples.task_service.tests.test_cli import serving
from tests.databases import _free_port

from task_service.cli import main
from task_service.settings import Settings

SERVICE = Path(__file__).parents[1]
ROOT = SERVICE.parents[1]
DEPLOY = SERVICE / "deploy"
INTERPOLATED = {
    "POSTGRES_PASSWORD": "abc",
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


def units() -> Iterator[configparser.ConfigParser]:
    for path in sorted(DEPLOY.glob("*.service")):
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(path)
        yield unit


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


def test_whatever_is_installed_into_the_image_is_checked_against_its_hash() -> None:
    commands = [words for name, words in instructions() if name == "RUN"]
    installing = [part for words in commands for part in words.split("&&") if "pip install" in part]
    assert len(installing) == 2
    pinned, own = installing
    assert "--require-hashes --requirement requirements/run.txt" in pinned
    assert "--no-deps --no-build-isolation" in own
    locked = (ROOT / "requirements" / "run.txt").read_text()
    # The two packages of this repository are built with what was checked.
    assert "\nhatchling==" in locked
    assert not re.search(r"https?://", (SERVICE / "Dockerfile").read_text().split("HEALTHCHECK")[0])


def test_whatever_is_copied_into_the_image_exists_and_is_not_ignored() -> None:
    ignored = (SERVICE / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        source
        for name, words in instructions()
        if name == "COPY" and not words.startswith("--from")
        for source in words.split()[:-1]
    ]
    assert len(copied) == 7
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source in let_in
    assert "*" in ignored
    # Data and secrets of a service that was started from the tree stay out.
    for secret in ("examples/task_service/src/secrets.json", "src/task-service.sqlite3-wal"):
        assert any(fnmatch.fnmatch(secret, line.replace("**/", "*/")) for line in ignored)


def test_the_images_settings_are_settings_and_its_health_check_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        name: value
        for name, value in image_environment().items()
        if name.startswith("TASK_SERVICE_")
    }
    settings = settings_from(environment, monkeypatch)
    volumes = [json.loads(words) for name, words in last_stage() if name == "VOLUME"]
    assert volumes == [[str(settings.data_dir)]]
    assert ("EXPOSE", str(settings.port)) in last_stage()
    for name in environment:
        monkeypatch.delenv(name)
    program, *words = health_check()
    assert program == "python"
    port = str(_free_port())
    # As in the image, except for the address: tests listen on this machine only.
    with serving(tmp_path / "data", PORT=port, BASE_URL="https://tasks.example") as service:
        monkeypatch.setenv("TASK_SERVICE_PORT", port)
        assert subprocess.run([sys.executable, *words], check=False).returncode == 0
        service.stop()
    failed = subprocess.run([sys.executable, *words], check=False, capture_output=True)
    assert failed.returncode == 1


def test_the_composition_has_two_api_processes_and_two_workers(compose: Any) -> None:
    services = compose["services"]
    commands = {name: each["command"] for name, each in services.items() if "build" in each}
    assert commands == {
        "migrate": ["migrate"],
        "api-1": ["serve"],
        "api-2": ["serve"],
        "worker-1": ["worker"],
        "worker-2": ["worker"],
    }
    for (command,) in commands.values():
        assert command in main.commands


def test_every_container_of_the_composition_is_confined(compose: Any) -> None:
    for name, each in compose["services"].items():
        if name != "postgres":
            assert each["read_only"] is True, name
            assert each["cap_drop"] == ["ALL"], name
            assert each["security_opt"] == ["no-new-privileges:true"], name
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
    user, password, database = (postgres[f"POSTGRES_{name}"] for name in ("USER", "PASSWORD", "DB"))
    assert settings.database_url == f"postgresql://{user}:{password}@postgres/{database}"
    # All processes that serve use the same secrets, and those that execute commands do not have them.
    assert {tuple(services[name]["volumes"]) for name in ("migrate", "api-1", "api-2")} == {
        ("data:/var/lib/task-service",)
    }
    assert services["worker-1"]["volumes"] == services["worker-2"]["volumes"] == []


def test_nginx_sends_to_the_api_processes_and_believes_no_client(compose: Any) -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    port = image_environment()["TASK_SERVICE_PORT"]
    assert re.findall(r"server ([\w-]+):(\d+)", text) == [("api-1", port), ("api-2", port)]
    # Added to what the client sent, it would be the client's word.
    assert "X-Forwarded-For $remote_addr;" in text
    assert "$proxy_add_x_forwarded_for" not in text
    (stream,) = re.findall(r"location ~ (\S+) \{([^}]*)\}", text)
    assert re.match(stream[0], "/api/runs/run_ft7Xe8fCMnQiqRpN/log")
    assert "proxy_buffering off;" in stream[1]
    mounted = [volume.split(":")[:2] for volume in compose["services"]["nginx"]["volumes"]]
    assert ["./deploy/nginx.conf", "/etc/nginx/nginx.conf"] in mounted
    folder = next(inside for outside, inside in mounted if outside == "./deploy/tls")
    for name in re.findall(r"ssl_certificate(?:_key)? (\S+);", text):
        assert name.startswith(f"{folder}/")
        assert Path(name).name in (DEPLOY / "make-certificate").read_text()


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
        else:
            assert service["User"] == "task-service"
            assert service["StateDirectory"] == "task-service"
        for number in ("create_ruleset", "add_rule", "restrict_self"):
            assert f"landlock_{number}" in service["SystemCallFilter"].split()
        assert service["ProtectSystem"] == "strict"
        assert service["NoNewPrivileges"] == "yes"
        assert service["CapabilityBoundingSet"] == ""
        # The commands of tasks are ended by the service, each with its own grace.
        assert service["KillMode"] == "mixed"
    assert sorted(started) == ["serve", "worker"]
