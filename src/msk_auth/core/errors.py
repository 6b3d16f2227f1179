"""The errors of this library, as one tree.

::

    MskAuthError
    ├── ConfigurationError              an unsafe configuration, mostly at start
    └── Problem                         an answer: status, code, challenge (RFC 9457, RFC 6750)
        ├── CredentialsMissing      401 credentials_missing
        ├── RequestMalformed        400 request_malformed
        ├── CredentialRefused       401 error="invalid_token"; a code for each reason, see `_REFUSED`
        ├── Forbidden               403 the same: see `_FORBIDDEN`
        ├── PermissionDenied        403 permission_denied
        ├── InteractiveRequired     403 interactive_required
        ├── LoginTooOld             401 login_too_old
        ├── NotFound                404
        │   └── KeyNotFound             key_not_found
        ├── KeyLimitReached         409 key_limit_reached
        ├── KeyNotActive            409 key_not_active
        ├── InputInvalid            422 input_invalid
        ├── TooManyAttempts         429 too_many_attempts
        ├── SigningKeysUnavailable  503 signing_keys_unavailable
        └── StoreUnavailable        503 store_unavailable

Answers that an application may treat differently have a class. Reasons that it treats alike are rows of a table.

An application adds its own answers by subclassing :class:`Problem` (or :class:`NotFound`) with a
`status`, a `code` and a `title`; every adapter renders them the same way. No message contains the
credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

_UNPRINTABLE: Final = re.compile(r"[^ -~]")
_NO_PARAMETERS: Final[Mapping[str, str]] = {}

PROBLEM_BASE: Final = "https://msk-auth.readthedocs.io/en/stable/reference/errors/"
"""The beginning of the `type` of problem documents; `#` and the code follow."""


class MskAuthError(Exception):
    """The root of all errors raised on purpose by this library."""


class ConfigurationError(MskAuthError):
    """An unsafe configuration. The message names the correct form."""


class _StatusCode:
    def __get__(self, _problem: Problem | None, kind: type[Problem]) -> int:
        return kind.status


class Problem(MskAuthError):
    """An answer other than success, independent of any web framework (RFC 9457).

    Args:
        detail: The problem and its remedy. Defaults to the class's text.

    Attributes:
        status: The HTTP status code.
        status_code: The same value, also on the class, for tools of Starlette and Litestar.
        code: The stable, machine-readable name of this answer; also the anchor of its section in the
            docs.
        title: The same for every occurrence of this code.
        retry_after: The seconds after which the client may try again (RFC 9110, section 10.2.3), or
            None.
    """

    status: ClassVar[int] = 500
    code: str = "internal_error"
    title: str = "Internal error"
    default_detail: str = "The request could not be handled."

    retry_after: int | None = None
    status_code: ClassVar[_StatusCode] = _StatusCode()

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(*(() if detail is None else (detail,)))

    def __reduce__(self) -> tuple[Any, ...]:
        # For pickle and copy, which would give the initializer of a subclass the text in place of its own arguments.
        kind = type(self)
        return kind.__new__, (kind, *self.args), vars(self)

    @property
    def detail(self) -> str:
        """The problem and its remedy."""
        detail: str = self.args[0] if self.args else self.default_detail
        return detail

    def __str__(self) -> str:
        return self.detail

    def challenge(self) -> Mapping[str, str] | None:
        """Parameters for `WWW-Authenticate: Bearer`, after the realm; None when there is no challenge."""
        return None

    def response_headers(
        self, realm: str = "api", parameters: Mapping[str, str] = _NO_PARAMETERS
    ) -> dict[str, str]:
        """The headers of the answer, for an application with its own error format.

        They are `cache-control`, and if they apply `www-authenticate` and `retry-after`.

        Args:
            realm: The authenticator's realm.
            parameters: Further parameters of a challenge, such as `resource_metadata` (RFC 9728).
        """
        headers = {"cache-control": "no-store"}
        challenge = self.challenge()
        if challenge is None and self.status == 401:
            # A 401 without a challenge is not HTTP (RFC 9110, section 15.5.2).
            challenge = _NO_PARAMETERS
        if challenge is not None:
            headers["www-authenticate"] = bearer_challenge(realm, {**challenge, **parameters})
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return headers

    def members(self) -> Mapping[str, object]:
        """Extension members of the problem document (RFC 9457, section 3.2)."""
        return {}


class CredentialsMissing(Problem):
    """No credentials, or credentials of another scheme. The challenge has no error (RFC 6750, section 3.1)."""

    status = 401
    code = "credentials_missing"
    title = "Credentials are missing"
    default_detail = "Send an API key or a login token in the header 'Authorization: Bearer …'."

    def challenge(self) -> Mapping[str, str] | None:
        return {}


class RequestMalformed(Problem):
    """The request is malformed: a broken header, or more than one credential (RFC 6750, section 3.1)."""

    status = 400
    code = "request_malformed"
    title = "The request is malformed"
    default_detail = (
        "The Authorization header is malformed. Send exactly one 'Authorization: Bearer …'."
    )

    def challenge(self) -> Mapping[str, str] | None:
        return {"error": "invalid_request"}


RefusedCode: TypeAlias = Literal[
    "key_malformed",
    "key_unknown",
    "key_revoked",
    "key_expired",
    "owner_disabled",
    "token_invalid",
    "token_expired",
    "token_revoked",
    "reference_invalid",
]
ForbiddenCode: TypeAlias = Literal[
    "address_not_allowed", "key_required", "cross_origin_refused", "signature_invalid"
]

# The title and the detail of each reason.
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    # Found without touching the store.
    "key_malformed": (
        "The API key is malformed",
        "This is not a complete API key. Copy the whole value, beginning with its prefix.",
    ),
    # No such key, or the secret is wrong: the two are indistinguishable, in body and in time.
    "key_unknown": (
        "The API key is not known",
        "No key with this value exists here. Check that it belongs to this server, or create a new one.",
    ),
    # For the following codes, the secret was right.
    "key_revoked": (
        "The API key was revoked",
        "This key was revoked and will not work again. Create a new one.",
    ),
    "key_expired": ("The API key has expired", "This key has expired. Create a new one."),
    "owner_disabled": (
        "The owner of the API key is disabled",
        "The account that owns this key is disabled. Ask an administrator.",
    ),
    # The detail never says which check failed (RFC 8725).
    "token_invalid": (
        "The login token is not valid",
        "This login token is not valid here. Log in again.",
    ),
    "token_expired": ("The login has expired", "This login has expired. Log in again."),
    # Its session has ended, or its user is disabled or gone.
    "token_revoked": ("The login has ended", "This login has ended. Log in again."),
    # Malformed, changed, or signed with a pepper that is not in the ring.
    "reference_invalid": (
        "The reference is not valid",
        "This application did not make this reference, or it was changed. Make the request for this work again.",
    ),
}
_FORBIDDEN: Final[Mapping[str, tuple[str, str]]] = {
    # Only the holder of the right secret gets this code.
    "address_not_allowed": (
        "The API key does not work from this address",
        (
            "This key works only from the networks on its list, and the address of this request, as the server sees it, is in"
            " none of them. Send the request from one of them, or ask the owner to change the list."
        ),
    ),
    # A login, or a token of another issuer.
    "key_required": (
        "An API key is required",
        "This operation is for API keys only. Send a key in the Authorization header.",
    ),
    # The login is in a cookie, which another site may have made a browser send (OWASP ASVS 5.0, 3.5).
    "cross_origin_refused": (
        "Requests from other sites are refused",
        "Another site may have sent this request. Repeat the action on a page of this site.",
    ),
    # A report of leaked keys. The detail does not say which check failed.
    "signature_invalid": (
        "The signature is not valid",
        "The report is not signed with a key that its reporter publishes.",
    ),
}


CodeT = TypeVar("CodeT", bound=str)


class _Refusal(Problem, Generic[CodeT]):
    """A problem with a code for each reason.

    Attributes:
        reasons: The title and the detail of each code.
    """

    reasons: ClassVar[Mapping[str, tuple[str, str]]] = {}
    code: str
    title: str
    default_detail: str
    key_id: str | None = None

    def __init__(
        self, code: CodeT, detail: str | None = None, *, key_id: str | None = None
    ) -> None:
        # The `repr` shows the code.
        self.args: tuple[Any, ...] = (code,) if detail is None else (code, detail)
        self.code = code
        self.title, self.default_detail = self.reasons[code]
        if key_id is not None:
            self.key_id = key_id

    @property
    def detail(self) -> str:
        detail: str = self.args[1] if len(self.args) > 1 else self.default_detail
        return detail


class CredentialRefused(_Refusal[RefusedCode]):
    """A credential that is not accepted: `error="invalid_token"` (RFC 6750, section 3.1).

    Args:
        code: The reason: `key_malformed`, `key_unknown`, `key_revoked`, `key_expired`, `owner_disabled`, `token_invalid`,
            `token_expired`, `token_revoked` or `reference_invalid`.
        detail: As for :class:`Problem`.
        key_id: The public id of the presented key, for events and logs; never shown to the
            client.
    """

    status = 401
    reasons: ClassVar[Mapping[str, tuple[str, str]]] = _REFUSED

    def challenge(self) -> Mapping[str, str] | None:
        return {"error": "invalid_token"}


class Forbidden(_Refusal[ForbiddenCode]):
    """The server accepts the credential and refuses the request; no permission of the owner changes that.

    Args:
        code: The reason: `address_not_allowed`, `key_required`, `cross_origin_refused` or `signature_invalid`.
        detail: As for :class:`Problem`.
        key_id: As for :class:`CredentialRefused`.
    """

    status = 403
    reasons: ClassVar[Mapping[str, tuple[str, str]]] = _FORBIDDEN


class PermissionDenied(Problem):
    """The principal lacks a permission (RFC 6750, section 3.1: `insufficient_scope`).

    Args:
        required: All permissions that the operation needs, not only the missing ones. Empty if the credential is a
            scoped key, or a token with grants, and the operation names no permission; if a key does not reach
            the resource; or if no permission would help.
        detail: The problem, if the default text does not fit.
    """

    status = 403
    code = "permission_denied"
    title = "A permission is missing"

    def __init__(self, required: Iterable[str], detail: str | None = None) -> None:
        self.required: tuple[str, ...] = tuple(sorted(required))
        if detail is None:
            detail = (
                f"This operation needs the permission {' and '.join(self.required)}."
                if self.required
                else "This key has scopes, and this operation names no permission. Log in, or use a key without scopes."
            )
        super().__init__(detail)

    def challenge(self) -> Mapping[str, str] | None:
        error = {"error": "insufficient_scope"}
        return {**error, "scope": " ".join(self.required)} if self.required else error


class InteractiveRequired(Problem):
    """An API key, or a token without a person's login, on an operation that needs an interactive login."""

    status = 403
    code = "interactive_required"
    title = "An interactive login is required"
    default_detail = "API keys cannot be used for this operation. Log in and use the login token."

    def challenge(self) -> Mapping[str, str] | None:
        return {"error": "insufficient_user_authentication"}


class LoginTooOld(Problem):
    """The login is older than the operation allows (RFC 9470, section 3).

    Args:
        max_age: The greatest age of a login that the operation accepts; sent in whole seconds.
    """

    status = 401
    code = "login_too_old"
    title = "A more recent login is required"
    default_detail = "This operation needs a recent login. Log in again and repeat it."

    def __init__(self, max_age: timedelta) -> None:
        super().__init__()
        self.max_age = max_age

    def challenge(self) -> Mapping[str, str] | None:
        seconds = int(self.max_age.total_seconds())
        return {"error": "insufficient_user_authentication", "max_age": str(seconds)}


class NotFound(Problem):
    """The resource does not exist or belongs to another owner: the two are indistinguishable."""

    status = 404
    code = "not_found"
    title = "Not found"
    default_detail = "Nothing exists at this address."


class KeyNotFound(NotFound):
    """The principal's owner has no such key."""

    code = "key_not_found"
    title = "The API key was not found"
    default_detail = "You have no API key with this id."


class KeyLimitReached(Problem):
    """The owner already has as many active keys as allowed.

    Args:
        limit: The number of active keys that an owner may have.
    """

    status = 409
    code = "key_limit_reached"
    title = "The limit of API keys is reached"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"An account may have {limit} active API keys. Revoke an unused key first."
        )


class KeyNotActive(Problem):
    """The operation needs an active key, and this key is revoked, expired or already rotated."""

    status = 409
    code = "key_not_active"
    title = "The API key is not active"
    default_detail = "This key is revoked, expired or already rotated. Create a new one instead."


class FieldError(NamedTuple):
    """The error of a member of the input.

    Attributes:
        field: The member's name; nested members are joined with dots. Empty for the whole input.
        message: The problem and the accepted values.
    """

    field: str
    message: str


class InputInvalid(Problem):
    """The request is well-formed and its content is invalid (RFC 9110, section 15.5.21).

    Args:
        errors: For each invalid member its name (nested members joined with dots, empty for the whole input) and a message with
            the problem and the accepted values. Kept as named tuples, `field` and `message`.
    """

    status = 422
    code = "input_invalid"
    title = "The input is not valid"

    def __init__(self, errors: Iterable[tuple[str, str]]) -> None:
        self.errors: tuple[FieldError, ...] = tuple(FieldError(*each) for each in errors)
        text = "; ".join(f"{e.field}: {e.message}" if e.field else e.message for e in self.errors)
        super().__init__(text)

    @classmethod
    def of(cls, field: str, message: str) -> InputInvalid:
        """An error with one invalid member."""
        return cls([(field, message)])

    def members(self) -> Mapping[str, object]:
        return {"errors": [{"field": e.field, "message": e.message} for e in self.errors]}


class SigningKeysUnavailable(Problem):
    """The public keys of an issuer or a reporter could not be fetched, so no signature can be verified: fail closed.

    Args:
        retry_after: Whole seconds until the next fetch.
    """

    status = 503
    code = "signing_keys_unavailable"
    title = "The signature cannot be checked"
    default_detail = "The public keys of the signer cannot be fetched right now. Try again later."

    def __init__(self, retry_after: int) -> None:
        super().__init__()
        self.retry_after: int | None = retry_after


def _rounded_up(seconds: int) -> str:
    """A wait in words, rounded up."""
    size, unit = 1, "second"
    if seconds >= 60:
        size, unit = (60, "minute") if seconds < 3600 else (3600, "hour")
    count = -(-seconds // size)
    return f"{count} {unit}{'' if count == 1 else 's'}"


class TooManyAttempts(Problem):
    """Too many attempts in too short a time (RFC 6585, section 4).

    Args:
        retry_after: Whole seconds until the next attempt can succeed.
    """

    status = 429
    code = "too_many_attempts"
    title = "Too many attempts"

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"Too many attempts. Try again in {_rounded_up(retry_after)}.")
        self.retry_after: int | None = retry_after


class StoreUnavailable(Problem):
    """The store did not answer, so no request can be authenticated: fail closed, and let the client retry."""

    status = 503
    code = "store_unavailable"
    title = "The service is temporarily unavailable"
    default_detail = "The service cannot reach its data right now. Try again in a few seconds."
    retry_after: int | None = 5


def bearer_challenge(realm: str, parameters: Mapping[str, str]) -> str:
    """The value of `WWW-Authenticate` (RFC 6750, section 3), every parameter a quoted string."""
    pairs = [("realm", realm), *parameters.items()]
    text = "Bearer " + ", ".join(f'{name}="{_escape(value)}"' for name, value in pairs)
    # An application's own problem may repeat what a client sent. A line break in it would begin a
    # new header.
    return _UNPRINTABLE.sub("?", text)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
