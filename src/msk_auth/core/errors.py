"""The errors of this library, as one tree.

::

    MskAuthError
    ├── ConfigurationError              an unsafe configuration; raised at start
    └── Problem                         an answer: status, code, challenge (RFC 9457, RFC 6750)
        ├── CredentialsMissing      401 credentials_missing
        ├── RequestMalformed        400 request_malformed
        ├── CredentialRefused       401 error="invalid_token"
        │   ├── KeyMalformed            key_malformed
        │   ├── KeyUnknown              key_unknown
        │   ├── KeyRevoked              key_revoked
        │   ├── KeyExpired              key_expired
        │   ├── OwnerDisabled           owner_disabled
        │   ├── TokenInvalid            token_invalid
        │   ├── TokenExpired            token_expired
        │   ├── TokenRevoked            token_revoked
        │   └── ReferenceInvalid        reference_invalid
        ├── CrossOriginRefused      403 cross_origin_refused
        ├── PermissionDenied        403 permission_denied
        ├── InteractiveRequired     403 interactive_required
        ├── KeyRequired             403 key_required
        ├── AddressNotAllowed       403 address_not_allowed
        ├── LoginTooOld             401 login_too_old
        ├── NotFound                404
        │   └── KeyNotFound             key_not_found
        ├── KeyLimitReached         409 key_limit_reached
        ├── KeyNotActive            409 key_not_active
        ├── InputInvalid            422 input_invalid
        ├── SignatureInvalid        403 signature_invalid
        ├── TooManyAttempts         429 too_many_attempts
        ├── SigningKeysUnavailable  503 signing_keys_unavailable
        └── StoreUnavailable        503 store_unavailable

An application adds its own answers by subclassing :class:`Problem` (or :class:`NotFound`) with a
`status`, a `code` and a `title`; every adapter renders them the same way. No message contains the
credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final

_UNPRINTABLE: Final = re.compile(r"[^ -~]")
_NO_PARAMETERS: Final[Mapping[str, str]] = {}


class MskAuthError(Exception):
    """The root of all errors raised on purpose by this library."""


class ConfigurationError(MskAuthError):
    """An unsafe configuration. The message says what to write instead."""


class _StatusCode:
    def __get__(self, _problem: Problem | None, kind: type[Problem]) -> int:
        return kind.status


class Problem(MskAuthError):
    """An answer other than success, independent of any web framework (RFC 9457).

    Args:
        detail: What is wrong and what to do about it. Defaults to the class's text.

    Attributes:
        status: The HTTP status code.
        status_code: The same, on the class too, under the name where the tools of Starlette and Litestar look for it.
        code: The stable, machine-readable name of this answer; also the anchor of its page in the
            docs.
        title: The same for every occurrence of this code.
        retry_after: Seconds after which trying again makes sense (RFC 9110, section 10.2.3), or
            None.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "Internal error"
    default_detail: ClassVar[str] = "The request could not be handled."

    retry_after: int | None = None
    status_code: ClassVar[_StatusCode] = _StatusCode()

    def __init__(self, detail: str | None = None) -> None:
        super().__init__(*(() if detail is None else (detail,)))

    @property
    def detail(self) -> str:
        """What is wrong and what to do about it."""
        detail: str = self.args[0] if self.args else self.default_detail
        return detail

    def __str__(self) -> str:
        return self.detail

    def challenge(self) -> Mapping[str, str] | None:
        """Parameters for `WWW-Authenticate: Bearer`, after the realm; None when there is no challenge."""
        return None

    def response_headers(self, realm: str = "api") -> dict[str, str]:
        """The headers of the answer, for an application that writes its errors in a form of its own.

        They are `cache-control`, and where they apply `www-authenticate` and `retry-after`.

        Args:
            realm: That of the authenticator.
        """
        headers = {"cache-control": "no-store"}
        challenge = self.challenge()
        if challenge is None and self.status == 401:
            # A 401 without a challenge is not HTTP (RFC 9110, section 15.5.2).
            challenge = _NO_PARAMETERS
        if challenge is not None:
            headers["www-authenticate"] = bearer_challenge(realm, challenge)
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return headers

    def members(self) -> Mapping[str, object]:
        """Extension members of the problem document (RFC 9457, section 3.2)."""
        return {}


class CredentialsMissing(Problem):
    """No credentials, or credentials of another scheme. The challenge carries no error (RFC 6750, section 3.1)."""

    status = 401
    code = "credentials_missing"
    title = "Credentials are missing"
    default_detail = "Send an API key or a login token in the header 'Authorization: Bearer …'."

    def challenge(self) -> Mapping[str, str] | None:
        return {}


class RequestMalformed(Problem):
    """The request cannot be read: a broken header, or more than one credential (RFC 6750, section 3.1)."""

    status = 400
    code = "request_malformed"
    title = "The request is malformed"
    default_detail = (
        "The Authorization header is malformed. Send exactly one 'Authorization: Bearer …'."
    )

    def challenge(self) -> Mapping[str, str] | None:
        return {"error": "invalid_request"}


class CredentialRefused(Problem):
    """A credential that is not accepted: `error="invalid_token"` (RFC 6750, section 3.1).

    Args:
        detail: As for :class:`Problem`.
        key_id: The public id of the key that was presented, for events and logs; never shown to the
            client.
    """

    status = 401
    key_id: str | None = None

    def __init__(self, detail: str | None = None, *, key_id: str | None = None) -> None:
        # As in :class:`Problem`. A call of `super` would double the cost.
        self.args: tuple[Any, ...] = () if detail is None else (detail,)
        if key_id is not None:
            self.key_id = key_id

    def challenge(self) -> Mapping[str, str] | None:
        return {"error": "invalid_token"}


class KeyMalformed(CredentialRefused):
    """Not a well-formed API key, or its checksum does not match. Found without touching the store."""

    code = "key_malformed"
    title = "The API key is malformed"
    default_detail = (
        "This is not a complete API key. Copy the whole value, beginning with its prefix."
    )


class KeyUnknown(CredentialRefused):
    """No such key, or the secret is wrong: the two are indistinguishable, in body and in time."""

    code = "key_unknown"
    title = "The API key is not known"
    default_detail = "No key with this value exists here. Check that it belongs to this server, or create a new one."


class KeyRevoked(CredentialRefused):
    """The right secret of a key that was revoked."""

    code = "key_revoked"
    title = "The API key was revoked"
    default_detail = "This key was revoked and will not work again. Create a new one."


class KeyExpired(CredentialRefused):
    """The right secret of a key that has expired."""

    code = "key_expired"
    title = "The API key has expired"
    default_detail = "This key has expired. Create a new one."


class OwnerDisabled(CredentialRefused):
    """The right secret of a key whose owner is disabled or gone."""

    code = "owner_disabled"
    title = "The owner of the API key is disabled"
    default_detail = "The account that owns this key is disabled. Ask an administrator."


class TokenInvalid(CredentialRefused):
    """Not a JWT that this application accepts. The detail never says which check failed (RFC 8725)."""

    code = "token_invalid"
    title = "The login token is not valid"
    default_detail = "This login token is not valid here. Log in again."


class TokenExpired(CredentialRefused):
    """A genuine JWT that has expired."""

    code = "token_expired"
    title = "The login has expired"
    default_detail = "This login has expired. Log in again."


class TokenRevoked(CredentialRefused):
    """A genuine JWT of a session that ended, or of a user who is disabled or gone."""

    code = "token_revoked"
    title = "The login has ended"
    default_detail = "This login has ended. Log in again."


class ReferenceInvalid(CredentialRefused):
    """Not a reference of this application: malformed, changed, or signed with a pepper that is not in the ring."""

    code = "reference_invalid"
    title = "The reference is not valid"
    default_detail = "This application did not make this reference, or it was changed. Make the request for this work again."


class CrossOriginRefused(Problem):
    """A request with a login of its session that another site may have made a browser send (OWASP ASVS 5.0, 3.5)."""

    status = 403
    code = "cross_origin_refused"
    title = "Requests from other sites are refused"
    default_detail = (
        "Another site may have sent this request. Repeat the action on a page of this one."
    )


class PermissionDenied(Problem):
    """The principal lacks a permission (RFC 6750, section 3.1: `insufficient_scope`).

    Args:
        required: All permissions that the operation needs, not only the missing ones. Empty where the credential is a key
            with scopes of its own, or a token with grants, and the operation names no permission, or where no permission
            would help.
        detail: What is wrong, where it is neither of the two.
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
                else "This key is limited to scopes of its own, and this operation belongs to none. Log in, or use a key"
                " without scopes of its own."
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


class KeyRequired(Problem):
    """A login, or a token of another issuer, on an operation that is for API keys only."""

    status = 403
    code = "key_required"
    title = "An API key is required"
    default_detail = "This operation is for API keys only. Send a key in the Authorization header."


class AddressNotAllowed(Problem):
    """The right secret of a key, from an address outside of its networks.

    Args:
        key_id: The public id of the key, for events and logs.
    """

    status = 403
    code = "address_not_allowed"
    title = "The API key does not work from this address"
    default_detail = (
        "This key works only from the networks that its owner has listed, and the address of this request, as the server"
        " knows it, is in none of them. Send it from there, or ask the owner to change the list."
    )

    def __init__(self, *, key_id: str | None = None) -> None:
        super().__init__()
        self.key_id = key_id


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
    default_detail = "There is nothing here under this address."


class KeyNotFound(NotFound):
    """No such key among the principal's own."""

    code = "key_not_found"
    title = "The API key was not found"
    default_detail = "You have no API key with this id."


class KeyLimitReached(Problem):
    """The owner already has as many active keys as allowed.

    Args:
        limit: How many active keys one owner may have.
    """

    status = 409
    code = "key_limit_reached"
    title = "The limit of API keys is reached"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"An account may have {limit} active API keys. Revoke one that is no longer used first."
        )


class KeyNotActive(Problem):
    """The operation needs an active key, and this one is revoked, expired or already rotated."""

    status = 409
    code = "key_not_active"
    title = "The API key is not active"
    default_detail = "This key is revoked, expired or already rotated. Create a new one instead."


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one member of the input.

    Attributes:
        field: The member's name; nested members are joined with dots. Empty for the whole input.
        message: What is wrong and what would be accepted.
    """

    field: str
    message: str


class InputInvalid(Problem):
    """The request was understood and its content is not acceptable (RFC 9110, section 15.5.21).

    Args:
        errors: One entry for each member that is wrong.
    """

    status = 422
    code = "input_invalid"
    title = "The input is not valid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors: tuple[FieldError, ...] = tuple(errors)
        text = "; ".join(f"{e.field}: {e.message}" if e.field else e.message for e in self.errors)
        super().__init__(text)

    @classmethod
    def of(cls, field: str, message: str) -> InputInvalid:
        """One wrong member."""
        return cls([FieldError(field, message)])

    def members(self) -> Mapping[str, object]:
        return {"errors": [{"field": e.field, "message": e.message} for e in self.errors]}


class SignatureInvalid(Problem):
    """A report of leaked keys without a valid signature of its reporter. The detail does not say which check failed."""

    status = 403
    code = "signature_invalid"
    title = "The signature is not valid"
    default_detail = "The report is not signed with a key that its reporter publishes."


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
    """A wait as people say it, and never too short."""
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
