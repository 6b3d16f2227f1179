"""One request and its answer: the form of the tables beside this module."""

from __future__ import annotations

from collections.abc import Iterable
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


def by_request(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """The cases of each request line. A test for each case would take longer than its request."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.request, []).append(case)
    return found


def bearer(credential: str) -> tuple[tuple[str, str], ...]:
    """The header that presents a credential of the world."""
    return (("authorization", f"Bearer <{credential}>"),)


# The table of answers: each problem with its status and its challenge. That of a missing permission names what it needs.
PROBLEMS: dict[str, tuple[int, str | None]] = {
    "credentials_missing": (401, MISSING),
    "request_malformed": (400, MALFORMED),
    **dict.fromkeys(["key_malformed", "key_unknown", "key_revoked", "key_expired"], (401, TOKEN)),
    **dict.fromkeys(["token_invalid", "token_expired", "token_revoked"], (401, TOKEN)),
    "owner_disabled": (401, TOKEN),
    "permission_denied": (403, BARE),
    "key_required": (403, None),
    "address_not_allowed": (403, None),
    "interactive_required": (403, INTERACTIVE),
    "login_too_old": (401, TOO_OLD),
    "key_not_found": (404, None),
    "task_not_found": (404, None),
    "key_not_active": (409, None),
    "content_too_large": (413, None),
    "input_invalid": (422, None),
    "too_many_attempts": (429, None),
}


def case(
    request: str,
    answer: int | str,
    by: str | None = None,
    *,
    name: str | None = None,
    needs: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    body: str = "",
    fields: tuple[str, ...] | None = None,
    retry_after: str | None = None,
) -> Case:
    """One request and its answer.

    Args:
        request: Method and target.
        answer: The status of a success, or the code of a problem.
        by: The credential of the world that the request presents.
        name: A sentence; the default names the credential and the request.
        needs: The permissions that a challenge names.
        headers: Further ones.
        body: As sent.
        fields: With `input_invalid`, the members that are named.
        retry_after: The exact `Retry-After`.
    """
    status, challenge = PROBLEMS[answer] if isinstance(answer, str) else (answer, None)
    return Case(
        name or f"{by or 'nothing'} on {request}",
        request,
        status,
        answer if isinstance(answer, str) else None,
        challenge if needs is None else scope(needs),
        (*(() if by is None else bearer(by)), *headers),
        body,
        retry_after,
        fields,
    )
