"""The application's existing logins: its functions turn a credential, or a request, into a `Login`.

A function returns None for a credential that is not its own, and the next function is called. The first `Login` counts as a
person's, since the application wrote the function. A `Problem` that a function raises is the answer. Any other exception or
result is a refusal with 503: the library cannot know its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn

from .errors import ConfigurationError, CredentialRefused, MskAuthError
from .model import Login
from .tokens import VerifiedToken

# A login is in the past. Two machines' clocks may differ a little.
_AHEAD: Final = timedelta(minutes=1)


class OpaqueToken:
    """A bearer credential for the application's functions: neither an API key nor a JWT of an issuer.

    Args:
        credential: The credential as sent. No text of this object contains it.
    """

    __slots__ = ("_credential",)

    def __init__(self, credential: str) -> None:
        self._credential = credential

    def reveal(self) -> str:
        """The credential."""
        return self._credential

    def __reduce__(self) -> NoReturn:
        raise TypeError("a credential must not be pickled or copied")


class RequestLogins(NamedTuple):
    """Functions that may find a login outside of the request's header.

    Attributes:
        functions: The application's functions.
        request: Their argument.
        is_foreign: True if another site may have made a browser send the request, so that its login does not count.
    """

    functions: Sequence[Callable[[Any], object]]
    request: object
    is_foreign: bool = False

    def __repr__(self) -> str:
        # The request would show the credential.
        return f"<RequestLogins {', '.join(map(name_of, self.functions))}>"


class LoginFailed(MskAuthError):
    """A function of `logins` raised an unexpected exception, which becomes a :class:`~msk_auth.errors.StoreUnavailable`.

    The message omits the exception's message and traceback: both may quote the credential.
    """

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(
            f"the login function {name} raised {type(error).__name__} at {raised_at(error)}. Let it return None for a"
            ' credential that is not its own, or raise CredentialRefused("token_invalid") to refuse it.'
        )


class NotALogin(ConfigurationError):
    """A function of `logins` returned something other than a `Login` or None, or a `Login` in the future."""


def name_of(function: object) -> str:
    """The name of a function in an error."""
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name


def verified_login(name: str, answer: object, now: datetime) -> VerifiedToken:
    """The verified login that a function returned.

    Args:
        name: The function's name in an error.
        answer: Its result, other than None.
        now: The current time.

    Raises:
        CredentialRefused: The login has ended.
        NotALogin: The result has the wrong type, or is in the future.
    """
    kind = type(answer).__qualname__
    if not isinstance(answer, Login):
        if isinstance(answer, Coroutine):
            # The function is `async`, and the authenticator blocks.
            answer.close()
        raise NotALogin(
            f"the login function {name} returned {kind}. Let it return Login(…), or None for a"
            " credential that is not its own."
        )
    if answer.valid_until is not None and now >= answer.valid_until:
        raise CredentialRefused("token_expired")
    if answer.authenticated_at is not None and answer.authenticated_at > now + _AHEAD:
        # An expiry, or local time taken for UTC: with it, the login would pass every max_age.
        raise NotALogin(
            f"the login function {name} returned a login of the future. authenticated_at is the moment at which the"
            " person logged in, with its time zone. Leave it out if it is not known."
        )
    return VerifiedToken(
        subject=answer.owner_id,
        expires_at=answer.valid_until,
        authenticated_at=answer.authenticated_at,
        session_id=answer.session_id,
        # The login belongs to a session if it names one.
        has_session=answer.session_id is not None,
        interactive=answer.interactive is True,
    )


def raised_at(error: Exception) -> str:
    """File and line where an exception was raised."""
    place = "an unknown place"
    traceback = error.__traceback__
    while traceback is not None:
        place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
