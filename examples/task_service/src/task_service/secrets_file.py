"""The service's own secrets: `secrets.json` in the data folder.

The file has the peppers for the digests of API keys, and the keys that sign login tokens. The keys that seal the secrets
of tasks are derived from the peppers. The first start creates the file; the service never writes it again. To rotate, the
operator adds an entry and restarts (the newest token key comes first; `current` names the current pepper). A reader of the
file can forge logins, so the service refuses a file that other users than its owner can read.

::

    {
      "peppers": {"current": "2026-11-21-5f0c", "values": {"2026-11-21-5f0c": "<base64url of 32 bytes or more>"}},
      "token_keys": [{"kid": "2026-11-21-81d2", "algorithm": "HS256", "key": "<base64url, or a PEM>"}]
    }
"""

import base64
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from msk_auth import PepperRing, SigningKey
from msk_auth.errors import ConfigurationError
from msk_auth.tokens import AlgorithmName
from task_service.parameter_keys import ParameterKeys

FILE_NAME: Final = "secrets.json"

TOKEN_KEY: Final = "token:"
"""The prefix of the names of token keys' fingerprints."""

_MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """The service's secrets, ready for use.

    Attributes:
        peppers: The peppers for the digests of API keys.
        token_keys: The keys for login tokens.
        throttle_key: The key for the names of counts; derived from the current pepper.
        parameter_keys: The keys for the secrets in the parameters of tasks; derived from the peppers.
        fingerprints: The fingerprints of peppers and token keys by name, to compare with those of other processes. The name
            of a pepper is its id, of a token key `token:` and its id.
        in_use: The names of the current pepper and of the token key that signs; other processes must be able to verify
            their digests and logins.
    """

    peppers: PepperRing
    token_keys: tuple[SigningKey, ...]
    throttle_key: bytes
    parameter_keys: ParameterKeys
    fingerprints: Mapping[str, str]
    in_use: frozenset[str]


def load_or_create_secrets(data_dir: Path, now: datetime) -> Secrets:
    """Read the secrets of a data folder; create them if there are none.

    Processes that start at the same moment agree: the file appears complete or not at all, and the first process wins.

    Args:
        data_dir: An existing folder.
        now: Part of the ids of new secrets.

    Raises:
        ConfigurationError: The file cannot be read or created, other users can read it, or its content is invalid. The
            message never quotes the content.
    """
    path = data_dir / FILE_NAME
    try:
        if not path.exists():
            _create(path, _Content.fresh(now))
        return _read(path).to_secrets()
    except OSError as error:
        raise ConfigurationError(
            f"The secrets in {path} cannot be used: {error.strerror or type(error).__name__}."
        ) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"The secrets in {path} cannot be used. {error}") from None


def _create(path: Path, content: "_Content") -> None:
    # A new file that only its owner can read; it is removed at the end.
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as draft:
        draft.write(content.model_dump_json(indent=2).encode() + b"\n")
        draft.flush()
        os.fsync(draft.fileno())
        # Unlike a rename, a link never replaces the file of another process.
        with suppress(FileExistsError):
            path.hardlink_to(draft.name)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> "_Content":
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(
                "This is not a regular file. Move it away, or restore the file."
            )
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigurationError(
                f"Other users than its owner have access (mode {stat.S_IMODE(status.st_mode):04o})."
                f" If no other user has read it, run: chmod 600 {path}"
            )
        data = file.read(_MAX_BYTES)
    try:
        return _Content.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        is_encoding = first["type"] == "value_error"
        problem = "not base64url" if is_encoding else "invalid"
        raise ConfigurationError(
            f"Its content is {problem} at: {where}. Correct it there."
        ) from None


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,
        # pydantic's base64 is base64url.
        ser_json_bytes="base64",
    )


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        return value
    # Not by pydantic, which refuses a text of random letters if the bits of its last letter are not zero.
    return base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)


class _Peppers(_Part):
    current: str
    values: Mapping[str, Annotated[bytes, BeforeValidator(_decoded)]] = Field(repr=False)


class _TokenKey(_Part):
    kid: str
    algorithm: AlgorithmName
    key: bytes = Field(repr=False)

    @field_validator("key", mode="before")
    @classmethod
    def _decode_unless_pem(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, str) and info.data.get("algorithm") != "HS256":
            return value.encode()
        return _decoded(value)


class _Content(_Part):
    peppers: _Peppers
    token_keys: list[_TokenKey] = Field(min_length=1)

    @classmethod
    def fresh(cls, now: datetime) -> "_Content":
        def new_id() -> str:
            return f"{now:%Y-%m-%d}-{secrets.token_hex(2)}"

        pepper = new_id()
        key = SigningKey.generate(new_id(), "HS256")
        return cls(
            peppers=_Peppers(current=pepper, values={pepper: secrets.token_bytes(32)}),
            token_keys=[_TokenKey(kid=key.kid, algorithm="HS256", key=key.export())],
        )

    def to_secrets(self) -> Secrets:
        """Raises ConfigurationError like the ring of peppers and the keys."""
        peppers = self.peppers.values
        token_keys = tuple(
            SigningKey(each.kid, each.algorithm, each.key) for each in self.token_keys
        )
        return Secrets(
            peppers=PepperRing(peppers, current=self.peppers.current),
            token_keys=token_keys,
            throttle_key=_derived(peppers[self.peppers.current], "login attempts"),
            parameter_keys=ParameterKeys(
                {name: _derived(value, "secrets in parameters") for name, value in peppers.items()},
                self.peppers.current,
            ),
            fingerprints={
                **{name: _derived(value, "fingerprint").hex() for name, value in peppers.items()},
                # An id of a pepper has no colon.
                **{f"{TOKEN_KEY}{key.kid}": _fingerprint(key) for key in token_keys},
            },
            in_use=frozenset({self.peppers.current, f"{TOKEN_KEY}{self.token_keys[0].kid}"}),
        )


def _fingerprint(key: SigningKey) -> str:
    public = key.jwk()
    material = key.export() if public is None else json.dumps(public, sort_keys=True).encode()
    return _derived(material, "fingerprint of a token key").hex()


def _derived(pepper: bytes, purpose: str) -> bytes:
    """A separate secret for one purpose; it reveals nothing about the pepper, which has 32 random bytes or more."""
    return hmac.digest(pepper, f"task-service: {purpose}".encode(), "sha256")
