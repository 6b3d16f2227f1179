"""The parameters of tasks and runs: their validation, and the secrets among them.

A handler declares its secret fields. Such a field is *sealed* before it is stored, *opened* just before the handler runs,
and *masked* in every answer. The sealed field has the key's id, the user who entered the secret, and the ciphertext::

    {"sealed": {"key": "2026-11-21-5f0c", "by": "usr_…", "text": "<base64url>"}}

The cipher is AES-SIV (RFC 5297). The task, the field and the user are its associated data, so a sealed field cannot be opened
for another task, field or user. With a random nonce, equal secrets have different ciphertexts. Reuse of a nonce is harmless, so
a field sealed again with another key keeps its nonce: the copies of a secret in a task and its runs stay equal.

Another user who changes the parameters beside a secret must enter the secret again. Otherwise a new owner, or an
administrator, could send the secret to their own host.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from sqlalchemy import Row

from msk_auth import KeyFormat, Principal
from msk_auth.errors import CredentialRefused, InputInvalid
from task_service.handlers import Handler, HandlerParams, HandlerRegistry
from task_service.parameter_keys import ParameterKeys

MASK: Final = {"secret": True}
"""The mask of a secret. A client that sends the mask back keeps the secret."""

_log = logging.getLogger(__name__)

_KEY_FORMAT: Final = KeyFormat()
_KEY_LIKE: Final = re.compile(rf"{_KEY_FORMAT.prefix}_[0-9A-Za-z]{{12}}_[0-9A-Za-z]{{38}}")
_SEALED: Final = "sealed"
_NONCE_BYTES: Final = 16
# For secrets that were stored in plain text, so that a task and its runs stay equal.
_NO_NONCE: Final = bytes(_NONCE_BYTES)
# Values without a secret, so that a client sees that the field is not set.
_EMPTY: Final[tuple[object, ...]] = (None, "", [], {})


@dataclass(frozen=True, slots=True)
class OpenedWork:
    """A handler with presently accepted parameters.

    Attributes:
        secrets: The texts in the secret parameters.
    """

    handler: Handler[Any]
    params: HandlerParams
    secrets: frozenset[str]


@dataclass(frozen=True, slots=True)
class TaskParameters:
    """The parameters of tasks and runs.

    Args:
        registry: The handlers of this deployment.
        keys: The keys that seal and open secrets.
    """

    registry: HandlerRegistry
    keys: ParameterKeys

    async def accept(
        self,
        principal: Principal[Any],
        task_id: str,
        handler: str,
        sent: Mapping[str, Any] | None,
        *,
        before: Row[Any] | None = None,
    ) -> dict[str, Any]:
        """Validate parameters, and return their stored form.

        Args:
            principal: The sender.
            task_id: The task.
            handler: The name of the task's handler.
            sent: The parameters; None means those of `before`. A missing secret, or one sent as :data:`MASK`, stays.
            before: The row of the task or the run whose secrets stay.

        Raises:
            InputInvalid: The handler is unknown, or does not accept or allow the parameters; or the parameters contain an API
                key of this service; or there is no secret to keep, or the principal may not keep the secret.
        """
        secret_fields = self.registry.secret_fields(handler)
        if before is not None and before.handler != handler:
            before = None
        if sent is None:
            sent = {} if before is None else self.mask(handler, before.params)
        kept = {} if before is None else self._kept(before, sent)
        params = {**sent, **kept}
        refused = [
            (f"params.{name}", "There is no secret to keep. Send its value.")
            for name, value in sent.items()
            if name not in kept and (_is_sealed(value) or (name in secret_fields and value == MASK))
        ]
        if before is not None and params != before.params:
            refused += [
                (
                    f"params.{name}",
                    "Another user entered this secret for the present parameters. To change them, send the secret again.",
                )
                for name, value in kept.items()
                if _user_of(value, before.owner_id) != principal.owner.id
            ]
        if refused:
            raise InputInvalid(refused)
        await self.registry.check(handler, self._open(task_id, params))
        stored = {
            name: self._seal(task_id, name, principal.owner.id, value)
            if name in secret_fields and name not in kept and value not in _EMPTY
            else value
            for name, value in params.items()
        }
        _refuse_api_keys(stored)
        return stored

    async def prepare(self, task_id: str, handler: str, stored: Mapping[str, Any]) -> OpenedWork:
        """Open the parameters of a run, and validate them again.

        Raises:
            InputInvalid: A secret cannot be opened; or the handler no longer exists, accepts or allows the parameters.
        """
        params = self._open(task_id, stored)
        secret_fields = self.registry.secret_fields(handler)
        found, checked = await self.registry.check(handler, params)
        return OpenedWork(
            found,
            checked,
            frozenset(
                text
                for name, value in params.items()
                if name in secret_fields or _is_sealed(stored[name])
                for text in _texts(value)
            ),
        )

    def mask(self, handler: str, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters with masks in place of secrets."""
        secret_fields = self.registry.secret_fields(handler)
        return {
            name: MASK
            if _is_sealed(value) or (name in secret_fields and value not in _EMPTY)
            else value
            for name, value in stored.items()
        }

    def seal_stored(self, row: Row[Any]) -> dict[str, Any]:
        """The parameters of a row with its secrets sealed by the current key. Secrets that cannot be opened stay.

        Args:
            row: The row of a task or a run, with `task_id`. Its owner counts as the user who entered plain-text secrets.
        """
        secret_fields = self.registry.secret_fields(row.handler)
        stored: dict[str, Any] = {**row.params}
        for name, value in stored.items():
            if not _is_sealed(value):
                if name in secret_fields and value not in _EMPTY:
                    stored[name] = self._seal(row.task_id, name, row.owner_id, value, _NO_NONCE)
            elif value[_SEALED]["key"] != self.keys.current:
                try:
                    opened, nonce = self._decrypt(row.task_id, name, value)
                except InputInvalid:
                    # The error is logged.
                    continue
                stored[name] = self._seal(row.task_id, name, value[_SEALED]["by"], opened, nonce)
        return stored

    def lacking(self, stored: Mapping[str, Any]) -> set[str]:
        """The ids of the keys of sealed parameters that this process does not have."""
        used = {value[_SEALED]["key"] for value in stored.values() if _is_sealed(value)}
        return used - self.keys.values.keys()

    def _kept(self, before: Row[Any], sent: Mapping[str, Any]) -> dict[str, Any]:
        """The secrets of a row that stay with the sent parameters."""
        masked = self.mask(before.handler, before.params)
        return {
            name: before.params[name]
            for name, shown in masked.items()
            if shown is MASK and sent.get(name, MASK) == MASK
        }

    def _open(self, task_id: str, stored: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._decrypt(task_id, name, value)[0] if _is_sealed(value) else value
            for name, value in stored.items()
        }

    def _seal(
        self, task_id: str, name: str, user_id: str, value: Any, nonce: bytes | None = None
    ) -> dict[str, Any]:
        key_id = self.keys.current
        assert key_id is not None  # noqa: S101 - a worker seals nothing
        nonce = secrets.token_bytes(_NONCE_BYTES) if nonce is None else nonce
        place = [task_id.encode(), name.encode(), user_id.encode(), nonce]
        text = AESSIV(self.keys.values[key_id]).encrypt(json.dumps(value).encode(), place)
        encoded = base64.urlsafe_b64encode(nonce + text).decode()
        return {_SEALED: {"key": key_id, "by": user_id, "text": encoded}}

    def _decrypt(self, task_id: str, name: str, value: dict[str, Any]) -> tuple[Any, bytes]:
        """The value of a sealed field, and its nonce."""
        sealed = value[_SEALED]
        key = self.keys.values.get(sealed["key"])
        if key is None:
            message = f"This secret was sealed with the key {sealed['key']!r}, which this process does not have."
            _log.error("cannot open a secret of the task %s: %s", task_id, message)
            raise InputInvalid.of(f"params.{name}", message)
        try:
            data = base64.b64decode(sealed["text"], altchars=b"-_", validate=True)
            nonce, text = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
            place = [task_id.encode(), name.encode(), sealed["by"].encode(), nonce]
            return json.loads(AESSIV(key).decrypt(text, place)), nonce
        except (binascii.Error, ValueError, InvalidTag):
            _log.error("a secret of the task %s was not sealed for it, or is damaged", task_id)
            raise InputInvalid.of(
                f"params.{name}", "This secret was not sealed for this task. Send it again."
            ) from None


def changed_secrets(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names of the secrets that were set, replaced or removed.

    Args:
        before: The stored parameters before the change.
        now: The stored parameters after the change.
    """
    sealed = {
        name for stored in (before, now) for name, value in stored.items() if _is_sealed(value)
    }
    return sorted(name for name in sealed if before.get(name) != now.get(name))


def _is_sealed(value: Any) -> bool:
    """True if a stored parameter is sealed, or a sent parameter has this form."""
    match value:
        case {"sealed": {"key": str(), "by": str(), "text": str(), **rest}, **others}:
            return not rest and not others
        case _:
            return False


def _user_of(value: Any, owner_id: str) -> str:
    """The user who entered a stored secret; the owner, if it is still in plain text."""
    user_id: str = value[_SEALED]["by"] if _is_sealed(value) else owner_id
    return user_id


def _texts(value: object) -> Iterator[str]:
    """All texts in a JSON value, except names."""
    parts: Iterable[object] = ()
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        parts = cast("dict[str, object]", value).values()
    elif isinstance(value, list):
        parts = cast("list[object]", value)
    for part in parts:
        yield from _texts(part)


def _refuse_api_keys(stored: Mapping[str, Any]) -> None:
    """Refuse an API key of this service in parameters that other readers of the task can see."""
    for found in _KEY_LIKE.findall(json.dumps(stored, ensure_ascii=False)):
        try:
            _KEY_FORMAT.parse(found)
        except CredentialRefused:
            continue
        raise InputInvalid.of(
            "params",
            "The parameters contain an API key of this service, and other users may read tasks. Remove the key.",
        )
