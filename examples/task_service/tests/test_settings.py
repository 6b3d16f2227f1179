"""The settings of the environment: defaults, checks, and messages that help without showing values."""

from __future__ import annotations

import base64
import stat
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msk_auth.errors import ConfigurationError
from task_service.settings import PREFIX, Settings, load_settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Without a data folder of the machine; its settings are gone already."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return monkeypatch


def _refusal(environment: pytest.MonkeyPatch, **values: str) -> list[str]:
    for name, value in values.items():
        environment.setenv(PREFIX + name, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    return str(caught.value).splitlines()


def test_everything_has_a_default(tmp_path: Path) -> None:
    settings = load_settings()

    assert settings.data_dir == tmp_path / "task-service"
    assert settings.database_url == f"sqlite:///{tmp_path}/task-service/task-service.sqlite3"
    assert settings.base_url == "http://127.0.0.1:8000"


def test_every_setting_has_a_description() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description is not None, name
        assert field.description.endswith("."), name


def test_the_data_folder_is_in_the_home_folder_if_the_environment_names_no_other(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("XDG_STATE_HOME", "relative/is/ignored")
    environment.setenv("HOME", str(tmp_path))

    assert load_settings().data_dir == tmp_path / ".local/state/task-service"


def test_without_a_home_folder_the_message_names_the_setting(
    environment: pytest.MonkeyPatch,
) -> None:
    def homeless(_: Path) -> Path:
        raise RuntimeError

    environment.delenv("XDG_STATE_HOME")
    environment.setattr(Path, "expanduser", homeless)

    assert _refusal(environment)[0].startswith("TASK_SERVICE_DATA_DIR: ")


def test_a_setting_is_read_from_its_variable(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("TASK_SERVICE_DATA_DIR", "~/x")
    environment.setenv("HOME", str(tmp_path))
    environment.setenv("TASK_SERVICE_DATABASE_URL", "postgresql://u:geheim@h/d")
    environment.setenv("TASK_SERVICE_TRUSTED_PROXIES", "10.0.0.0/8, ::1")
    environment.setenv("TASK_SERVICE_LOG_LEVEL", "debug")
    environment.setenv("TASK_SERVICE_BASE_URL", "HTTPS://Tasks.Example.org:444/")
    settings = load_settings()

    assert settings.data_dir == tmp_path / "x"
    assert settings.database_url == "postgresql://u:geheim@h/d"
    assert settings.trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("::1"))
    assert settings.log_level == "DEBUG"
    assert settings.base_url == "https://tasks.example.org:444"


def test_an_empty_variable_counts_as_not_set(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TASK_SERVICE_PORT", "")

    assert load_settings().port == 8000


def test_no_password_is_shown(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TASK_SERVICE_DATABASE_URL", "postgresql://u:geheim@h/d")

    assert "geheim" not in repr(load_settings())


def test_an_entry_that_is_no_network_is_refused_once(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TASK_SERVICE_TRUSTED_PROXIES", "10.0.0.0/8,proxy,localhost")

    assert _refusal(environment) == [
        "TASK_SERVICE_TRUSTED_PROXIES: write IP addresses or networks with commas in between, such as 10.0.0.0/8,::1"
    ]


@pytest.mark.parametrize(
    ("host", "base_url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("localhost", "http://localhost:8000"),
        ("192.0.2.7", "http://192.0.2.7:8000"),
    ],
)
def test_the_default_base_url_can_be_opened(
    environment: pytest.MonkeyPatch, host: str, base_url: str
) -> None:
    environment.setenv("TASK_SERVICE_HOST", host)

    assert load_settings().base_url == base_url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOST", "x" * 300),
        ("PORT", "65536"),
        ("PORT", "geheim"),
        ("DATA_DIR", "~nosuchuser-geheim/x"),
        ("DATABASE_URL", "mysql://root:geheim@h/d"),
        ("LEASE_MS", "-1"),
        ("LEASE_MS", "5001"),
        ("WORKERS", "0"),
        ("BASE_URL", "http://h/geheim"),
        ("BASE_URL", "http://user:geheim@h"),
        ("BASE_URL", "ftp://h"),
        ("BASE_URL", "http://h:0"),
        ("BASE_URL", "http://h:geheim"),
        ("BASE_URL", "http://"),
        ("BASE_URL", "http://h?geheim"),
        ("TRUSTED_PROXIES", "geheim"),
        ("HTTP_ALLOWED_NETWORKS", "10.0.0.1/8"),
        ("LOG_LEVEL", "geheim"),
        ("LOG_FORMAT", "geheim"),
        ("HASH_CONCURRENCY", "0"),
        ("AUDIT_RETENTION_DAYS", "0"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_setting_and_not_the_value(
    environment: pytest.MonkeyPatch, name: str, value: str
) -> None:
    lines = _refusal(environment, **{name: value})

    assert len(lines) == 1
    assert lines[0].startswith(f"TASK_SERVICE_{name}: ")
    assert "geheim" not in lines[0]


def test_every_problem_is_reported_at_once(environment: pytest.MonkeyPatch) -> None:
    lines = _refusal(environment, PORTT="1", PORT="x", DATA_DIR="~nosuchuser", WORKERS="x")

    assert [line.partition(":")[0] for line in lines] == [
        "TASK_SERVICE_PORTT",
        "TASK_SERVICE_PORT",
        "TASK_SERVICE_DATA_DIR",
        "TASK_SERVICE_WORKERS",
    ]


def test_an_unknown_setting_names_the_one_that_was_probably_meant(
    environment: pytest.MonkeyPatch,
) -> None:
    assert _refusal(environment, DATABSE_URL="postgresql://u:geheim@h/d") == [
        "TASK_SERVICE_DATABSE_URL: unknown setting. Did you mean TASK_SERVICE_DATABASE_URL?"
    ]


@given(st.text(max_size=40))
def test_an_origin_is_accepted_whole_or_refused(text: str) -> None:
    try:
        settings = Settings(base_url=f"https://{text}")
    except ValueError:
        return

    host = settings.base_url.removeprefix("https://")
    assert host
    assert host.isascii()
    assert not set(host) & set("/?#@\\ ")


def test_the_data_folder_is_made_for_its_owner_only(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = load_settings()
    settings.create_data_dir()
    settings.create_data_dir()

    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700


def test_a_data_folder_that_cannot_be_made_is_named(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    environment.setenv("TASK_SERVICE_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match="TASK_SERVICE_DATA_DIR"):
        load_settings().create_data_dir()


def test_a_failure_webhook_needs_its_address_and_its_secret(
    environment: pytest.MonkeyPatch,
) -> None:
    secret = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    assert _refusal(environment, FAILURE_WEBHOOK_SECRET=secret) == [
        "TASK_SERVICE_FAILURE_WEBHOOK_SECRET: set it together with TASK_SERVICE_FAILURE_WEBHOOK_URL"
    ]
    environment.setenv(PREFIX + "FAILURE_WEBHOOK_URL", "https://hooks.example.org/tasks")
    settings = load_settings()
    assert settings.failure_webhook_secret == bytes(range(32))
    assert "hooks.example.org" not in repr(settings)
    assert str(bytes(range(32))) not in repr(settings)
    environment.delenv(PREFIX + "FAILURE_WEBHOOK_SECRET")
    assert _refusal(environment) == [
        "TASK_SERVICE_FAILURE_WEBHOOK_SECRET: set it together with TASK_SERVICE_FAILURE_WEBHOOK_URL"
    ]


@pytest.mark.parametrize("secret", ["whsec_", "whsec_c2hvcnQ=", "a secret", "whsec_%%%", "AAAA"])
def test_a_secret_of_a_webhook_in_another_form_is_refused_and_not_shown(
    environment: pytest.MonkeyPatch, secret: str
) -> None:
    environment.setenv(PREFIX + "FAILURE_WEBHOOK_URL", "https://hooks.example.org/tasks")
    assert _refusal(environment, FAILURE_WEBHOOK_SECRET=secret) == [
        "TASK_SERVICE_FAILURE_WEBHOOK_SECRET: write whsec_ and the base64 of 24 to 64 random bytes"
    ]
