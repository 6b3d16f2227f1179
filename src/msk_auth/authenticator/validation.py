"""Validates the arguments of an authenticator where a mistake would be silent, or would show on the first request only.

What a type checker finds is not checked again. A function may return the awaitable of another one without being `async` itself,
so only arguments that are certainly wrong are refused.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msk_auth._callables import called_function, return_hint, returns_awaitable
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.immutability import NotShareable, is_mutable_class
from msk_auth.core.model import Owner
from msk_auth.core.store import offered

_ACTIVITY: Final = ("record_activity", "activity", "delete_activity")


def validate_components(
    *,
    store: object,
    find_owner: object,
    find_external_owner: object,
    find_session: object,
    key_limits: object,
    may_act_for: object,
    on_event: object,
    issuers: Sequence[object],
    logins: Sequence[Callable[[str], object]],
    activity: object,
    awaits: bool,
) -> None:
    """Refuse components that contradict each other. `awaits`: whether the authenticator awaits the store and the look-ups.

    Raises:
        ConfigurationError: A function has to be awaited and will not be, or the other way round; or a component is missing
            that another one needs. The message says what to write.
    """
    if bool(issuers) != (find_external_owner is not None):
        raise ConfigurationError(
            "issuers and find_external_owner belong together: a function that returns the Owner for"
            " an ExternalIdentity, by its issuer and its subject."
        )
    called = {
        "store.find": offered(store, "find"),
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
        check_blocking_logins(logins)
    if activity is not None:
        _validate_activity(store)


def check_blocking_logins(logins: Sequence[Callable[[Any], object]]) -> None:
    """Refuse functions of `logins` whose result has to be awaited.

    Raises:
        ConfigurationError: One of them is async.
    """
    _check_blocking({f"logins[{n}]": function for n, function in enumerate(logins)})


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


def takes(method: Callable[..., object], keyword: str) -> bool:
    """Whether a function takes an argument by this name."""
    parameters = inspect.signature(method).parameters
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
