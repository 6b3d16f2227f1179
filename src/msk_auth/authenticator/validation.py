"""What is wrong with an authenticator's parts, as far as it can be told before any of them is used.

Otherwise it would show as a 503 for everybody, on the first request. A function may be async without looking like it, if
it hands on what an async one returned; so nothing is refused that could be right.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from msk_auth.core.digest import KeyHasher
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.immutability import NotShareable, is_mutable_class
from msk_auth.core.keys import KeyFormat
from msk_auth.core.model import KeyLimits, Owner
from msk_auth.tokens.profile import TokenProfile

_MEANT_FOR: Final[Mapping[str, str]] = {
    "find_owner": "a function that returns the Owner with an id, or None",
    "find_external_owner": "a function that returns the Owner for an ExternalIdentity, or None",
    "find_session": "a function that returns the Session with an id, or None",
    "on_event": "a function that takes an Event",
}


def validate_components(
    *,
    store: object,
    find_owner: object,
    find_external_owner: object,
    find_session: object,
    key_limits: object,
    on_event: object,
    key_format: object,
    hasher: object,
    tokens: object,
    issuers: object,
    awaits: bool,
) -> None:
    """Refuse components of the wrong kind. `awaits` tells whether the authenticator awaits the store and the look-ups.

    Raises:
        ConfigurationError: A component is of the wrong kind; the message says what to write.
    """
    if isinstance(store, type | str) or not callable(getattr(store, "find", None)):
        # Not what it is instead: somebody's database URL has a password in it.
        raise ConfigurationError(
            "The store is no key store. Make one first, such as MemoryKeyStore()."
        )
    given = {
        "find_owner": find_owner,
        "find_external_owner": find_external_owner,
        "find_session": find_session,
        "on_event": on_event,
    }
    for name, function in given.items():
        if not callable(function) and (function is not None or name == "find_owner"):
            raise ConfigurationError(f"{name} must be {_MEANT_FOR[name]}.")
    if not isinstance(key_limits, KeyLimits) and not callable(key_limits):
        raise ConfigurationError(
            "key_limits must be KeyLimits(…), or a function that returns them each time."
        )
    if key_format is not None and not isinstance(key_format, KeyFormat):
        raise ConfigurationError("key_format must be a KeyFormat, such as KeyFormat('msk').")
    if hasher is not None and not isinstance(hasher, KeyHasher):
        raise ConfigurationError("hasher must be a KeyHasher, such as KeyHasher(peppers).")
    profiles: Sequence[object] = (
        cast("Sequence[object]", tokens) if isinstance(tokens, list | tuple) else [tokens]
    )
    if not all(isinstance(profile, TokenProfile) for profile in profiles):
        raise ConfigurationError(
            "tokens must be a TokenProfile or a list of them: who issues the JWTs that are accepted,"
            " and with which keys. Leave it out to accept none."
        )
    _validate_issuers(issuers, find_external_owner)
    called = {
        "store.find": getattr(store, "find", None),
        "find_owner": find_owner,
        "find_external_owner": find_external_owner,
        "find_session": find_session,
        "key_limits": key_limits,
    }
    if awaits:
        _check_awaited(called)
    else:
        _check_blocking(called | {"on_event": on_event})


def _validate_issuers(issuers: object, find_external_owner: object) -> None:
    listed: Sequence[object] = (
        cast("Sequence[object]", issuers) if isinstance(issuers, list | tuple) else [issuers]
    )
    if not all(callable(getattr(issuer, "authenticate", None)) for issuer in listed):
        raise ConfigurationError(
            "issuers must be a list of identity providers, such as [Auth0(domain, audience=…)]."
        )
    if bool(listed) != (find_external_owner is not None):
        raise ConfigurationError(
            "issuers and find_external_owner belong together: a function that returns the Owner for"
            " an ExternalIdentity, by its issuer and its subject."
        )


def _check_blocking(functions: Mapping[str, object]) -> None:
    """Refuse what has to be awaited.

    Args:
        functions: What a blocking authenticator calls, by its name.

    Raises:
        ConfigurationError: One of them is async.
    """
    for name, function in functions.items():
        if _answers_later(function) is True:
            raise ConfigurationError(
                f"{name} is async: use AsyncAuthenticator, or hand in a plain function."
            )


def _check_awaited(functions: Mapping[str, object]) -> None:
    """Refuse what certainly cannot be awaited.

    Args:
        functions: What an asynchronous authenticator awaits, by its name.

    Raises:
        ConfigurationError: One of them is a plain function by its own annotation.
    """
    for name, function in functions.items():
        if _answers_later(function) is False:
            raise ConfigurationError(
                f"{name} is not async, and AsyncAuthenticator would await it: use Authenticator, or"
                " hand in an async function (of an async store, such as AsyncMemoryKeyStore)."
            )


def not_a_list_of_values() -> TypeError:
    """What whoever passes one value in place of the list of all is told: it would be taken for as many as it has characters."""
    return TypeError(
        "authenticate takes the values of all Authorization headers of a request: write"
        " authenticate([value]), or authenticate([]) if there is none."
    )


def check_users_shareable(find_owner: object) -> None:
    """Refuse a look-up whose owners certainly hold users that can change; to be asked where there is a lease.

    Args:
        find_owner: The application's function. Only what it is annotated with is looked at: what it returns is judged
            when it does.

    Raises:
        ConfigurationError: It says that it returns an `Owner` of such a class.
    """
    for kind in _owner_arguments(_return_hint(_called(find_owner))):
        if isinstance(kind, type) and is_mutable_class(kind):
            raise NotShareable("Owner.user", kind)


def _owner_arguments(hint: object) -> Iterator[object]:
    """What stands in the brackets of `Owner[…]`, wherever in the annotation that is."""
    for argument in typing.get_args(hint):
        if typing.get_origin(hint) is Owner:
            yield argument
        else:
            yield from _owner_arguments(argument)


def _answers_later(function: object) -> bool | None:
    """True if what it returns has to be awaited, False if it cannot be, None if nobody can tell."""
    function = _called(function)
    if inspect.iscoroutinefunction(function):
        return True
    return _is_awaitable(_return_hint(function))


def _called(function: object) -> object:
    """The function behind a partial one or an object with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        # An object: what counts is how it is called.
        function = getattr(type(function), "__call__", None)  # noqa: B004 - not whether it can be
    return function


def _return_hint(function: object) -> object:
    """What a function says that it returns; `Any` if it does not say."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        return Any
    if hasattr(function, "__wrapped__"):
        # A decorator took over the annotations of what it wraps; what it returns itself may differ.
        return Any
    try:
        return typing.get_type_hints(function).get("return", Any)
    except Exception:  # noqa: BLE001 - annotations may be anything, names that do not exist included
        return Any


def _is_awaitable(hint: object) -> bool | None:
    kind = typing.get_origin(hint) or hint
    if kind is typing.Union or kind is types.UnionType:
        members = {_is_awaitable(member) for member in typing.get_args(hint)}
        return members.pop() if len(members) == 1 else None
    if kind is Any or kind is object or not isinstance(kind, type):
        return None
    if getattr(kind, "_is_protocol", False):
        return None
    return issubclass(kind, Awaitable)
