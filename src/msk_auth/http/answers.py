"""Answers for errors and keys, the same for every framework (RFC 9457, RFC 6750, RFC 9110).

An adapter turns an :class:`Answer` into its framework's response and adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from msk_auth.authenticator import BaseAuthenticator
from msk_auth.core.errors import PROBLEM_BASE, Problem
from msk_auth.core.key_management import CreatedKey
from msk_auth.core.model import ApiKey, KeyPage

Errors: TypeAlias = Literal["problems", "http", "all"]
"""The errors that an adapter answers: problems with their documents, or as HTTP errors of the framework; or, with documents, also
errors of the framework and the application."""

PROBLEM_TYPE: Final = "application/problem+json"
JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "application/x-www-form-urlencoded"

# A cache may not keep an answer about a credential or a key (RFC 9111, section 5.2.2.5).
NO_STORE: Final = ("cache-control", "no-store")

# The values were parsed or made here, so they have no cycles. Checking for cycles takes half of the time.
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=str, check_circular=False)
_MAX_REASON: Final = 123  # bytes: RFC 6455, section 5.5
_GENERIC_MEMBERS: Final = frozenset({"type", "title", "status", "detail"})
_OWN_MEMBERS: Final = _GENERIC_MEMBERS | {"code"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, independent of any framework.

    Attributes:
        status: The HTTP status code.
        headers: Names in lower case, each at most once. The framework adds `content-length`.
        body: The body as sent.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    @property
    def media_type(self) -> str | None:
        """The value of `content-type`, if any."""
        return dict(self.headers).get("content-type")

    def with_headers(self, headers: Iterable[tuple[str, str]]) -> Answer:
        """The same answer with these headers, which replace its own."""
        merged = dict(self.headers)
        merged.update((name.lower(), value) for name, value in headers)
        return Answer(self.status, tuple(merged.items()), self.body)


class ContentTooLarge(Problem):
    """The body is too long for this operation (RFC 9110, section 15.5.14).

    Args:
        limit: The maximum size, in bytes.
    """

    status = 413
    code = "content_too_large"
    title = "The body is too large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"This operation reads at most {limit} bytes.")


@dataclass(frozen=True, slots=True)
class ProblemRenderer:
    """Writes the problem documents of an application.

    Attributes:
        realm: The protected space in challenges (RFC 9110, section 11.5).
        parameters: Further parameters of every challenge.
    """

    realm: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])

    def answer(self, problem: Problem) -> Answer:
        """The answer to a problem."""
        own_headers = problem.response_headers(self.realm, self.parameters)
        headers = (("content-type", PROBLEM_TYPE), *own_headers.items())
        document: dict[str, object] = {
            "type": f"{PROBLEM_BASE}#{problem.code}",
            "title": problem.title,
            "status": problem.status,
            "detail": problem.detail,
            "code": problem.code,
        }
        members = problem.members().items()
        document |= {name: value for name, value in members if name not in _OWN_MEMBERS}
        return Answer(problem.status, headers, to_json(document))

    def http_error(
        self,
        status: int,
        detail: str | None = None,
        *,
        members: Mapping[str, object] | None = None,
    ) -> Answer:
        """The document for an error of the framework, such as an unknown path, or of the application.

        The type is `about:blank` (RFC 9457, section 4.2.1), without a code and a challenge of this library.

        Args:
            status: The status code, 400 or above.
            detail: The error's text; None, or the name of the status, is left out.
            members: Extension members of the document.
        """
        title = _TITLES.get(status, "Error")
        document: dict[str, object] = {"type": "about:blank", "title": title, "status": status}
        if detail is not None and detail not in {title, _PHRASES.get(status, "")}:
            document["detail"] = detail
        more = (members or {}).items()
        document |= {name: value for name, value in more if name not in _GENERIC_MEMBERS}
        return Answer(status, (("content-type", PROBLEM_TYPE), NO_STORE), to_json(document))


def close_reason(answer: Answer) -> str:
    """The reason with which a websocket is closed after its handshake: the problem's code (RFC 6455, section 5.5.1).

    For an error of the framework or the application it is the title.
    """
    document: dict[str, str] = json.loads(answer.body)
    return document["code" if "code" in document else "title"][:_MAX_REASON]


def json_answer(status: int, value: object, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """A successful answer that no cache may store."""
    return Answer(status, (("content-type", JSON_TYPE), NO_STORE, *headers), to_json(value))


def to_json(value: object) -> bytes:
    """JSON in ASCII, so that a lone surrogate, which JSON allows and UTF-8 does not, cannot break the answer."""
    return _ENCODER.encode(value).encode("ascii")


_PHRASES: Final[Mapping[int, str]] = {each.value: each.phrase for each in HTTPStatus}
# Python's phrases differ between its versions; these are those of RFC 9110, section 15.5.
_TITLES: Final[Mapping[int, str]] = {
    **_PHRASES,
    413: "Content Too Large",
    414: "URI Too Long",
    416: "Range Not Satisfiable",
    422: "Unprocessable Content",
}


def key_answer(authenticator: BaseAuthenticator[Any], record: ApiKey) -> Answer:
    """The answer with a key."""
    return json_answer(200, _document(authenticator, record))


def page_answer(authenticator: BaseAuthenticator[Any], page: KeyPage) -> Answer:
    """The answer with a page of keys."""
    items = [_document(authenticator, record) for record in page.items]
    return json_answer(200, {"items": items, "next_cursor": page.next_cursor})


def revoked_answer(
    authenticator: BaseAuthenticator[Any], ids: Sequence[str], revoked: Sequence[ApiKey | None]
) -> Answer:
    """The answer with the revoked keys and the unknown ids, without duplicates."""
    by_id = dict(zip(ids, revoked, strict=True))
    found = [_document(authenticator, record) for record in by_id.values() if record is not None]
    missing = [key_id for key_id, record in by_id.items() if record is None]
    return json_answer(200, {"items": found, "not_found": missing})


def revealing_answer(
    authenticator: BaseAuthenticator[Any],
    created: CreatedKey,
    collection: str,
    on_behalf_of: str | None = None,
) -> Answer:
    """The only answer that contains a key's value."""
    # Quoted: a path parameter in the application's own prefix may contain anything.
    location = f"{quote(collection.rstrip('/'))}/{created.record.id}"
    if on_behalf_of is not None:
        location += f"?on_behalf_of={quote(on_behalf_of, safe='')}"
    document = _document(authenticator, created.record) | {"key": created.value.reveal()}
    return json_answer(201, document, [("location", location)])


def _document(authenticator: BaseAuthenticator[Any], record: ApiKey) -> dict[str, Any]:
    """The document of a key, without its value."""
    return record.document() | {
        "mask": authenticator.rules.key_format.mask(record.id),
        "status": record.status(authenticator.clock.now()).value,
    }
