"""One request and its answer: the form of the tables beside this module."""

from __future__ import annotations

from dataclasses import dataclass

JSON = (("content-type", "application/json"),)

MISSING = 'Bearer realm="api"'
MALFORMED = 'Bearer realm="api", error="invalid_request"'
TOKEN = 'Bearer realm="api", error="invalid_token"'
BARE = 'Bearer realm="api", error="insufficient_scope"'
INTERACTIVE = 'Bearer realm="api", error="insufficient_user_authentication"'
TOO_OLD = 'Bearer realm="api", error="insufficient_user_authentication", max_age="900"'


def scope(permissions: str) -> str:
    """The challenge that asks for these permissions."""
    return f'Bearer realm="api", error="insufficient_scope", scope="{permissions}"'


@dataclass(frozen=True)
class Case:
    """One request and what has to come back; `<name>` in it stands for a credential or an id of the world.

    Attributes:
        name: A short sentence.
        request: Method and target.
        headers: As sent, in this order, repeated ones included.
        body: As sent.
        status: The expected status.
        code: The expected problem; None expects success.
        challenge: The exact `WWW-Authenticate`.
        retry_after: The exact `Retry-After`.
        fields: With `input_invalid`, the members that are named.
    """

    name: str
    request: str
    status: int
    code: str | None = None
    challenge: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    retry_after: str | None = None
    fields: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return self.name


def bearer(credential: str) -> tuple[tuple[str, str], ...]:
    """The header that presents a credential of the world."""
    return (("authorization", f"Bearer <{credential}>"),)
