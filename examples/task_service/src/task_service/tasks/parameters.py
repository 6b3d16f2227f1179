"""Which parameters a task or a run may have."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from msk_auth import KeyFormat
from msk_auth.errors import CredentialRefused, InputInvalid
from task_service.handlers import HandlerRegistry

_KEY_FORMAT: Final = KeyFormat()
_KEY_LIKE: Final = re.compile(rf"{_KEY_FORMAT.prefix}_[0-9A-Za-z]{{12}}_[0-9A-Za-z]{{38}}")


class TaskParameters:
    """The parameters of tasks and runs.

    Args:
        registry: The handlers of this deployment.
    """

    def __init__(self, registry: HandlerRegistry) -> None:
        self._registry = registry

    async def accept(self, handler: str, params: dict[str, Any]) -> dict[str, Any]:
        """Validate parameters, and return them as they are stored.

        Raises:
            InputInvalid: There is no such handler, or it does not accept or allow the parameters; or they contain an API key
                of this service.
        """
        await self._registry.check(handler, params)
        for found in _KEY_LIKE.findall(json.dumps(params, ensure_ascii=False)):
            try:
                _KEY_FORMAT.parse(found)
            except CredentialRefused:
                continue
            raise InputInvalid.of(
                "params",
                "The parameters contain an API key of this service, and other users may read tasks. Remove the key.",
            )
        return params
