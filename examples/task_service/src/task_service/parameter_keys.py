"""The keys that seal the secrets in the parameters of tasks: each is derived from a pepper of `secrets.json`, and has its id.

A worker gets only these keys, in its environment. With peppers it could make digests of API keys.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ParameterKeys:
    """The keys by the ids of their peppers.

    Attributes:
        values: The keys, of 32 bytes each.
        current: The id of the key that seals; None if this process only opens secrets.
    """

    values: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    current: str | None = None

    @classmethod
    def parse(cls, text: str) -> ParameterKeys:
        """The keys from the result of :meth:`to_text`, which only open secrets.

        Raises:
            ValueError: The text has another form. The message never quotes it.
        """
        values: dict[str, bytes] = {}
        for entry in text.split(","):
            # An id has no equals sign, and base64url may end with some.
            pepper_id, _, encoded = entry.strip().partition("=")
            try:
                values[pepper_id] = base64.b64decode(encoded, altchars=b"-_", validate=True)
            except ValueError:
                values[pepper_id] = b""
            if not pepper_id or len(values[pepper_id]) != _BYTES:
                raise ValueError("write the output of task-service parameter-keys")
        return cls(values)

    def to_text(self) -> str:
        """All keys in one line."""
        return ",".join(
            f"{pepper_id}={base64.urlsafe_b64encode(key).decode()}"
            for pepper_id, key in self.values.items()
        )


NO_KEYS: Final = ParameterKeys()
