"""A row of a table of routes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from msk_auth.core.errors import RequestMalformed
from msk_auth.core.policy import Policy, any_credential

from .openapi import OWN, Json

MAX_BODY: Final = 65_536
"""The maximum size of a body, in bytes. A hundred scopes and resources, a description, labels and networks need less than 40,000."""

MAX_REVOCATION: Final = 4096
"""The maximum size of a revocation request, in bytes. A key has 55, in a form at most three times as many."""

KeyOperation: TypeAlias = Literal[
    "list_keys", "create_key", "get_key", "update_key", "rotate_key", "revoke_key", "delete_key"
]
"""The name of a key route."""

AdminKeyOperation: TypeAlias = Literal["list_all_keys", "revoke_any_keys", "revoke_any_key"]
"""The name of a key route for administrators."""

READ: Final = any_credential()


@dataclass(frozen=True, slots=True)
class Route:
    """A row of a table of routes.

    Attributes:
        name: The name in the framework's routing.
        method: The HTTP method.
        path: The path after the prefix; a placeholder is `{key_id}`.
        policy: The policy of a request; None for a public route with a throttle.
        handle: Answers an exchange, after `respond` has checked it and read its query and body.
        operation: The operation in OpenAPI.
        max_body: The maximum size of a body, in bytes; None if the route reads no body.
    """

    name: str
    method: str
    path: str
    policy: Policy | None
    handle: Callable[..., Any]
    operation: Json
    max_body: int | None = None

    @property
    def status(self) -> int:
        """The status code of success."""
        return int(min(self.operation["responses"]))

    def query_names(self, *, delegates: bool) -> list[str]:
        """The known query parameters.

        Args:
            delegates: True if the application has a `may_act_for`.
        """
        parameters = self.operation.get("parameters", ())
        names = [each["name"] for each in parameters if each["in"] == "query"]
        return [name.removeprefix(OWN) for name in names if delegates or not name.startswith(OWN)]


def broken_body() -> RequestMalformed:
    """The problem of an incomplete body or a broken chunk. Servers raise different exceptions for it."""
    return RequestMalformed(
        "The body could not be read to its end. Check its length or its chunks, and send the request again."
    )


def named_rows(table: tuple[Route, ...], operations: Collection[str] | None) -> tuple[Route, ...]:
    """The rows of a table with these names; None means all."""
    return tuple(row for row in table if operations is None or row.name in operations)
