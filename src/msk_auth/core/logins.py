"""The logins that an application has already: its functions turn a credential, or a request, into a `Login`.

A function returns None for a credential that is not its own, and the next one is asked. The first `Login` counts: it is a
person's, since the application wrote the function. A `Problem` that a function raises is the answer. Any other exception, and
any other result, is a refusal with 503: the library cannot know what it means for the credential.
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
    """A bearer credential that is neither an API key nor a JWT of an issuer: one for the application's functions.

    Args:
        credential: As it was sent. No text of this object shows it.
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
    """What may find a login elsewhere in a request than in its header.

    Attributes:
        functions: The application's.
        request: What they take.
        is_foreign: Whether another site may have made a browser send the request, so that its login does not count.
    """

    functions: Sequence[Callable[[Any], object]]
    request: object
    is_foreign: bool = False

    def __repr__(self) -> str:
        # The request has the credential.
        return f"<RequestLogins {', '.join(map(name_of, self.functions))}>"


class LoginFailed(MskAuthError):
    """A function of `logins` raised something unexpected. It becomes a :class:`~msk_auth.errors.StoreUnavailable`.

    The message has neither the message nor the traceback of the error: both may quote the credential.
    """

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(
            f"the login function {name} raised {type(error).__name__} at {raised_at(error)}. Let it return None for a"
            ' credential that is not its own, or raise CredentialRefused("token_invalid") to refuse it.'
        )


class NotALogin(ConfigurationError):
    """A function of `logins` returned something else than a `Login` or None, or one that cannot be right."""


def name_of(function: object) -> str:
    """What to call a function in an error."""
    name: str = getattr(function, "__qualname__", type(function).__qualname__)
    return name


def verified_login(name: str, answer: object, now: datetime) -> VerifiedToken:
    """What the answer of a function stands for.

    Args:
        name: What to call the function in an error.
        answer: What it returned, other than None.
        now: The moment.

    Raises:
        CredentialRefused: The login has ended.
        NotALogin: The answer is of the wrong type, or lies in the future.
    """
    kind = type(answer).__qualname__
    if not isinstance(answer, Login):
        if isinstance(answer, Coroutine):
            # Of a function that has to be awaited, under an authenticator that blocks.
            answer.close()
        raise NotALogin(
            f"the login function {name} returned {kind}. Let it return Login(…), or None for a"
            " credential that is not its own."
        )
    if answer.valid_until is not None and now >= answer.valid_until:
        raise CredentialRefused("token_expired")
    if answer.authenticated_at is not None and answer.authenticated_at > now + _AHEAD:
        # The end of a token, or local time taken for UTC: as an age it would pass every max_age.
        raise NotALogin(
            f"the login function {name} returned a login of the future. authenticated_at is the moment at which the"
            " person logged in, with its time zone. Leave it out if it is not known."
        )
    return VerifiedToken(
        subject=answer.owner_id,
        expires_at=answer.valid_until,
        authenticated_at=answer.authenticated_at,
        session_id=answer.session_id,
        # It belongs to a session if it names one.
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
