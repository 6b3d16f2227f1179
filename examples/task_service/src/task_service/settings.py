"""The settings that come from the environment and are fixed while the service runs.

Settings that an administrator changes while it runs are in `accounts/config.py`. There are no default secrets: the first
start makes them in the data folder (`secrets_file.py`).
"""

import difflib
import os
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL

from msk_auth.errors import ConfigurationError
from task_service.claim_rule import ClaimRule
from task_service.db.engine import parse_url
from task_service.parameter_keys import NO_KEYS, ParameterKeys
from task_service.validation import message_of

Network: TypeAlias = IPv4Network | IPv6Network

PREFIX: Final = "TASK_SERVICE_"

_SET_TOGETHER: Final = {
    "oidc_client_id": "oidc_issuer",
    "oidc_users": "oidc_issuer",
    "failure_webhook_secret": "failure_webhook_url",
}


def _written(parse: Callable[[str], object]) -> BeforeValidator:
    """Parses the text of a variable; a value of another type, such as a test's, is taken as it is."""
    return BeforeValidator(lambda value: parse(value) if isinstance(value, str) else value)


def _parse_networks(text: str) -> list[Network]:
    try:
        # A single address is a network of one.
        return [ip_network(each) for each in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(
            "write IP addresses or networks with commas in between, such as 10.0.0.0/8,::1"
        ) from None


_Networks: TypeAlias = Annotated[tuple[Network, ...], NoDecode, _written(_parse_networks)]
_Rule: TypeAlias = Annotated[ClaimRule | None, NoDecode, _written(ClaimRule.parse)]


def _origin(value: str) -> str:
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_origin = (
        parts.scheme in {"http", "https"}
        and parts.hostname
        and port != 0
        and parts.path in {"", "/"}
        and value.isascii()
        and value.isprintable()
        and not any(character in value for character in "@?#\\ ")
    )
    if not is_origin:
        raise ValueError("write an origin without a path, such as https://tasks.example.org")
    return f"{parts.scheme}://{parts.netloc}".lower()


def _database_url(value: str) -> str:
    try:
        parse_url(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return value


def _encrypted(value: str) -> str:
    """An address with TLS, since an attacker on the network could replace the answers; or an address of this machine."""
    try:
        url = urlsplit(value)
        is_safe = bool(url.hostname) and (
            url.scheme == "https"
            or (url.scheme == "http" and ip_address(url.hostname or "").is_loopback)
        )
        is_safe = is_safe and not (url.query or url.fragment or url.username or url.port == 0)
        is_safe = is_safe and value.isprintable() and " " not in value
    except ValueError:
        is_safe = False
    if not is_safe:
        raise ValueError("write an address that begins with https://, without a query")
    return value


def _webhook_secret(value: str) -> bytes:
    """The bytes of `whsec_…`, the form of Standard Webhooks."""
    prefix, _, encoded = value.partition("_")
    try:
        secret = b64decode(encoded, validate=True)
    except ValueError:
        secret = b""
    if prefix != "whsec" or not 24 <= len(secret) <= 64:
        raise ValueError("write whsec_ and the base64 of 24 to 64 random bytes")
    return secret


def _folder(value: Path) -> Path:
    try:
        return value.expanduser().absolute()
    except RuntimeError:
        raise ValueError("its home folder is unknown; write an absolute path") from None


def _default_data_dir() -> Path:
    # The XDG base directory specification: a relative value is ignored.
    state = Path(os.environ.get("XDG_STATE_HOME") or "")
    return (state if state.is_absolute() else Path("~/.local/state")) / "task-service"


def _default_database_url(data: Mapping[str, Any]) -> str:
    file = data["data_dir"] / "task-service.sqlite3"
    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def _default_base_url(data: Mapping[str, Any]) -> str:
    # Clients cannot connect to the address that means all addresses.
    host: str = data["host"]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - not listened on
    # Port 0 means any free port, which is known only after the socket is bound.
    port = f":{data['port']}" if data["port"] else ""
    return f"http://[{host}]{port}" if ":" in host else f"http://{host}{port}"


class Settings(BaseSettings):
    """The settings; each is an environment variable: `TASK_SERVICE_` and the field's name in upper case."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        # The string under a field is its description; the settings reference is generated from these.
        use_attribute_docstrings=True,
    )

    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    """The address to listen on."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """The port to listen on; 0 means any free port."""

    data_dir: Annotated[Path, AfterValidator(_folder)] = Field(
        default_factory=_default_data_dir, validate_default=True
    )
    """The folder of the secrets and the SQLite database; `$XDG_STATE_HOME/task-service` by default."""

    database_url: Annotated[str, AfterValidator(_database_url)] = Field(
        default_factory=_default_database_url, repr=False
    )
    """`sqlite:////absolute/path` or `postgresql://user:password@host/name`; a file in the data folder by default."""

    lease_ms: Annotated[int, Field(ge=0, le=5000)] = 0
    """The milliseconds for which a verification may be reused; 0 reads the database each time."""

    workers: Annotated[int, Field(ge=1, le=64)] = 2
    """The number of runs that this process executes at once; `task-service worker --concurrency` overrides it."""

    worker_metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port on which `task-service worker` serves its own `/metrics`, at `TASK_SERVICE_HOST`; 0 serves none. Workers on
    the same machine need different ports."""

    execute_runs: Literal["auto", "always", "never"] = "auto"
    """Whether `task-service serve` executes runs itself. `auto`: on SQLite always, on PostgreSQL only while no
    `task-service worker` is alive. `never` leaves runs to workers, `always` executes runs beside workers."""

    base_url: Annotated[str, AfterValidator(_origin)] = Field(default_factory=_default_base_url)
    """The service's origin for browsers, in the links it prints and the checks of requests' origins;
    `http://HOST:PORT` by default."""

    trusted_proxies: _Networks = ()
    """Networks of reverse proxies whose `X-Forwarded-For` the service trusts, separated by commas."""

    http_allowed_networks: _Networks = ()
    """Internal networks, and addresses of this machine, that the handler `http_request` may reach, separated by commas."""

    commands: Literal["echo", "listed"] = "echo"
    """The commands of tasks that this process may execute: only `echo`, or the commands `listed` in the administrator's
    configuration. A command has all rights of the process, and can read the secrets in the data folder. So choose
    `listed` only for workers, which have no `secrets.json`, as their unit and container do."""

    parameter_keys: Annotated[ParameterKeys, NoDecode, _written(ParameterKeys.parse)] = Field(
        default=NO_KEYS, repr=False
    )
    """Only for `task-service worker`: the keys that open the secrets in the parameters of tasks, as `task-service
    parameter-keys` prints them. Processes that serve derive them from their own secrets."""

    github_keys_url: Annotated[str, AfterValidator(_encrypted)] = (
        "https://api.github.com/meta/public_keys/secret_scanning"
    )
    """The address of the public keys that verify reports of leaked keys. Fetched when a report arrives, at most every two
    minutes."""

    oidc_issuer: Annotated[str, AfterValidator(_encrypted)] | None = None
    """The issuer of an OpenID Connect provider at which people log in, such as `https://login.example.com`, as in its
    discovery document."""

    oidc_client_id: Annotated[str, Field(max_length=255, validate_default=True)] = ""
    """The service's id at the provider, which must know the redirect address `BASE_URL/login/oidc/callback`."""

    oidc_client_secret: Annotated[str | None, Field(min_length=1)] = Field(default=None, repr=False)
    """The service's client secret at the provider; without a secret it is a public client, which only PKCE protects."""

    oidc_name: Annotated[str | None, Field(min_length=1, max_length=40)] = None
    """The provider's name on the button of the login page; its host by default."""

    oidc_users: Annotated[_Rule, Field(validate_default=True)] = None
    """The provider's users who may log in: a claim of the ID token and its value, such as `groups=task-users` or
    `hd=example.com`; `*` means all users. The first login creates the user here."""

    oidc_administrators: _Rule = None
    """The users who are administrators, in the same form. If it is set, the provider decides at each login."""

    password_login: Annotated[Literal["on", "off"], Field(validate_default=True)] = "on"
    """Whether users can log in with a password of this service. `off` needs a provider and `OIDC_ADMINISTRATORS`."""

    failure_webhook_url: Annotated[str, AfterValidator(_encrypted)] | None = Field(
        default=None, repr=False
    )
    """The address to which the service reports each failed or timed-out run, as a signed `POST`; unset reports none."""

    failure_webhook_secret: Annotated[
        bytes | None, _written(_webhook_secret), Field(validate_default=True)
    ] = Field(default=None, repr=False)
    """The secret that signs the reports (Standard Webhooks): `whsec_` and the base64 of 24 to 64 random bytes."""

    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], _written(str.upper)
    ] = "INFO"
    """The least severe level that is logged."""

    log_format: Literal["console", "json"] = "console"
    """The format of log lines: `console` for people, `json` for collectors, one object a line."""

    tracing: Literal["off", "otlp"] = "off"
    """Whether the service exports OpenTelemetry spans of requests and runs. `otlp` sends them to the collector at
    `OTEL_EXPORTER_OTLP_ENDPOINT`, and needs the extra `opentelemetry`."""

    hash_concurrency: Annotated[int, Field(ge=1, le=32)] = 2
    """The number of passwords hashed at once; each briefly needs a core and 19 MiB."""

    audit_retention_days: Annotated[int | None, Field(ge=1, le=36_500)] = None
    """The days for which the service keeps entries of the audit log; unset keeps them all."""

    @field_validator(*_SET_TOGETHER)
    @classmethod
    def _is_set_together(cls, value: object, info: ValidationInfo) -> object:
        other = _SET_TOGETHER[str(info.field_name)]
        if bool(value) != bool(info.data.get(other)):
            raise ValueError(f"set it together with {PREFIX}{other.upper()}")
        return value

    @field_validator("password_login")
    @classmethod
    def _somebody_can_log_in(cls, value: str, info: ValidationInfo) -> str:
        if value == "off" and not (
            info.data.get("oidc_issuer") and info.data.get("oidc_administrators")
        ):
            raise ValueError(
                f"no user could administer the service; set {PREFIX}OIDC_ISSUER and {PREFIX}OIDC_ADMINISTRATORS"
            )
        return value

    @property
    def on_sqlite(self) -> bool:
        """True if the database is a file of this machine, which no other machine can share."""
        return parse_url(self.database_url).get_backend_name() == "sqlite"

    @property
    def leaves_runs(self) -> bool:
        """True if a process that serves leaves all runs to workers."""
        return self.execute_runs == "never"

    def create_data_dir(self) -> None:
        """Make the data folder, for its owner only. An existing folder stays as it is.

        Raises:
            ConfigurationError: The folder cannot be made, or a file has its name.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The data folder {self.data_dir} cannot be created: {error.strerror}."
                f" Set {PREFIX}DATA_DIR to a folder that the service may write to."
            ) from error


def load_settings() -> Settings:
    """Read the settings from the environment.

    Raises:
        ConfigurationError: Variables are unknown or have invalid values. The error has a line for each, without values.
    """
    problems = list(_unknown(os.environ))
    try:
        settings = Settings()
        if not problems:
            return settings
    except ValidationError as error:
        problems += [
            f"{PREFIX}{str(found['loc'][0]).upper()}: {message_of(found)}"
            for found in error.errors(include_url=False, include_input=False)
            # A default that depends on an invalid setting, which has its own error.
            if found["type"] != "default_factory_not_called"
        ]
    raise ConfigurationError("\n".join(problems))


def _unknown(names: Iterable[str]) -> Iterable[str]:
    known = [PREFIX + name.upper() for name in Settings.model_fields]
    for name in sorted(names):
        # Windows and pydantic-settings ignore the case of a variable's name.
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0)
            yield f"{name}: unknown setting. Did you mean {near[0]}?"
