"""Validates the arguments of an authenticator before any of them is used.

A mistake would otherwise show on the first request, as a 503. A function may return the awaitable of another one without
being `async` itself, so only arguments that are certainly wrong are refused.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from msk_auth._callables import called_function, return_hint, returns_awaitable
from msk_auth.core.activity import ActivitySettings
from msk_auth.core.digest import KeyHasher
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.immutability import NotShareable, is_mutable_class
from msk_auth.core.keys import KeyFormat
from msk_auth.core.model import KeyLimits, Owner
from msk_auth.core.store import offered
from msk_auth.tokens.profile import TokenProfile

_WRITES: Final = ("insert", "revoke", "delete", "expire", "rotate", "update")

_ACTIVITY: Final = ("record_activity", "activity", "delete_activity")

_MEANT_FOR: Final[Mapping[str, str]] = {
    "find_owner": "a function that returns the Owner with an id, or None",
    "find_external_owner": "a function that returns the Owner for an ExternalIdentity, or None",
    "find_session": "a function that returns the Session with an id, or None",
    "may_act_for": "a function that takes a Principal and an Owner, and returns the permissions that the one may hand out"
    " for the other, or None",
    "on_event": "a function that takes an Event",
}


def validate_components(
    *,
    store: object,
    find_owner: object,
    find_external_owner: object,
    find_session: object,
    key_limits: object,
    may_act_for: object,
    on_event: object,
    key_format: object,
    hasher: object,
    tokens: object,
    issuers: object,
    logins: object,
    activity: object,
    awaits: bool,
) -> None:
    """Refuse components of the wrong kind. `awaits`: whether the authenticator awaits the store and the look-ups.

    Raises:
        ConfigurationError: A component is of the wrong kind; the message says what to write.
    """
    if isinstance(store, type | str) or not callable(getattr(store, "find", None)):
        # The message does not repeat the argument: a database URL may contain a password.
        raise ConfigurationError(
            "The store is not a key store. Create one first, such as MemoryKeyStore()."
        )
    given = {
        "find_owner": find_owner,
        "find_external_owner": find_external_owner,
        "find_session": find_session,
        "may_act_for": may_act_for,
        "on_event": on_event,
    }
    for name, function in given.items():
        if not callable(function) and (function is not None or name == "find_owner"):
            raise ConfigurationError(f"{name} must be {_MEANT_FOR[name]}.")
    if not isinstance(key_limits, KeyLimits) and not callable(key_limits):
        raise ConfigurationError(
            "key_limits must be KeyLimits(…) or a function that returns KeyLimits."
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
            "tokens must be a TokenProfile or a list of them. Each names an issuer of accepted JWTs and its"
            " keys. Leave it out to accept no JWTs."
        )
    if (
        activity is not None
        and not isinstance(activity, ActivitySettings)
        and not callable(activity)
    ):
        raise ConfigurationError(
            "activity must be ActivitySettings(…) or a function that returns ActivitySettings."
        )
    _validate_issuers(issuers, find_external_owner)
    validate_logins(logins, "the credential", awaits=awaits)
    called = {
        "store.find": getattr(store, "find", None),
        "store.on_change": offered(store, "on_change"),
        "find_owner": find_owner,
        "find_external_owner": find_external_owner,
        "find_session": find_session,
        "key_limits": key_limits,
        "may_act_for": may_act_for,
        "activity": activity,
    }
    if awaits:
        _check_awaited(called)
    else:
        _check_blocking(called | {"on_event": on_event})
    # After its kind: a store of the other kind need not be completed.
    _validate_writes(store)
    if activity is not None:
        _validate_activity(store)


def validate_logins(logins: object, subject: str, *, awaits: bool) -> None:
    """Refuse what is no list of functions that return a `Login`.

    Args:
        logins: What was given.
        subject: What each function takes.
        awaits: Whether a result is awaited if it has to be.

    Raises:
        ConfigurationError: It is something else, or a function is async and `awaits` is False.
    """
    listed = cast("Sequence[object]", logins) if isinstance(logins, list | tuple) else [None]
    if not all(callable(function) for function in listed):
        raise ConfigurationError(
            f"logins must be a list of functions that take {subject} and return Login(…), or None for what is not their"
            " own, such as logins=[find_login]."
        )
    if not awaits:
        _check_blocking({f"logins[{n}]": function for n, function in enumerate(listed)})


def _validate_issuers(issuers: object, find_external_owner: object) -> None:
    # One that is not in a list has the method, and cannot be counted.
    listed = cast("Sequence[object]", issuers) if isinstance(issuers, list | tuple) else [None]
    if not all(callable(getattr(issuer, "authenticate", None)) for issuer in listed):
        raise ConfigurationError(
            "issuers must be a list of identity providers, such as [Auth0(domain, audience=…)]."
        )
    if bool(listed) != (find_external_owner is not None):
        raise ConfigurationError(
            "issuers and find_external_owner belong together: a function that returns the Owner for"
            " an ExternalIdentity, by its issuer and its subject."
        )


def _validate_writes(store: object) -> None:
    """Refuse a store without `update`, or whose writes do not take `change`, which every write of an authenticator carries.

    Raises:
        ConfigurationError: It would fail when the first key is edited, or created.
    """
    if offered(store, "update") is None:
        raise ConfigurationError(
            f"{type(store).__name__} cannot change what people edit about a key. Add update to it, as in KeyStore.update, keep"
            " description, labels and networks of ApiKey, and run StoreContract."
        )
    for name in _WRITES:
        method = offered(store, name)
        if method is not None and not takes(method, "change"):
            raise ConfigurationError(
                f"store.{name} does not take `change`. Add the keyword argument, as in KeyStore.{name}: a wrapper passes"
                " it on, a store without an on_change hook ignores it."
            )


def _validate_activity(store: object) -> None:
    """Refuse a store that cannot keep what keys did.

    Raises:
        ConfigurationError: It lacks a method of an `ActivityStore`.
    """
    missing = [name for name in _ACTIVITY if offered(store, name) is None]
    if missing:
        raise ConfigurationError(
            f"{type(store).__name__} cannot keep what keys did. Add {', '.join(missing)} to it, as in ActivityStore, and run"
            " StoreContract; or leave activity out."
        )


def takes(method: Any, keyword: str) -> bool:
    """Whether a function takes an argument by this name."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        # Built-in functions do not always show it.
        return True
    return keyword in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _check_blocking(functions: Mapping[str, object]) -> None:
    """Refuse functions that have to be awaited.

    Args:
        functions: The functions that a blocking authenticator calls, by name.

    Raises:
        ConfigurationError: One of them is async.
    """
    for name, function in functions.items():
        if returns_awaitable(function) is True:
            raise ConfigurationError(
                f"{name} is async. Use AsyncAuthenticator, or pass a plain function."
            )


def _check_awaited(functions: Mapping[str, object]) -> None:
    """Refuse functions that certainly cannot be awaited.

    Args:
        functions: The functions that an asynchronous authenticator awaits, by name.

    Raises:
        ConfigurationError: One of them is a plain function by its own annotation.
    """
    for name, function in functions.items():
        if returns_awaitable(function) is False:
            raise ConfigurationError(
                f"{name} is not async, and AsyncAuthenticator would await it. Use Authenticator, or pass an"
                " async function (of an async store, such as AsyncMemoryKeyStore)."
            )


def not_a_list_of_values() -> TypeError:
    """The error for one header value in place of the list of all: each of its characters would count as a value."""
    return TypeError(
        "authenticate takes a list with the values of all Authorization headers. Write"
        " authenticate([value]), or authenticate([]) if there is none."
    )


def check_users_shareable(find_owner: object) -> None:
    """Refuse, under a lease, a look-up whose return annotation names a class of users that can change.

    Args:
        find_owner: The application's function. Only its annotation is read here: the owners that it returns are checked
            one by one later.

    Raises:
        ConfigurationError: The annotation is an `Owner` of such a class.
    """
    for kind in _owner_arguments(return_hint(called_function(find_owner))):
        if isinstance(kind, type) and is_mutable_class(kind):
            raise NotShareable("Owner.user", kind)


def _owner_arguments(hint: object) -> Iterator[object]:
    """The arguments of each `Owner[…]` in an annotation."""
    for argument in typing.get_args(hint):
        if typing.get_origin(hint) is Owner:
            yield argument
        else:
            yield from _owner_arguments(argument)
