"""Set-ups that cannot work are refused while the application starts, in words (ASVS 5.0, section 13.2)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import pytest

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    Authenticator,
    KeyFormat,
    KeyRing,
    Owner,
    PepperRing,
    SigningKey,
    TokenProfile,
    require,
    require_interactive,
)
from msk_auth.errors import ConfigurationError
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore


def no_owner(_owner_id: str) -> Any:
    return None


async def no_owner_async(_owner_id: str) -> Any:
    return None


def blocking(**settings: Any) -> Authenticator[Any]:
    """An authenticator with these settings, and what is needed besides."""
    needed: dict[str, Any] = {"store": MemoryKeyStore(), "find_owner": no_owner}
    return Authenticator(**needed | settings)


def waiting(**settings: Any) -> AsyncAuthenticator[Any]:
    """The same on an event loop."""
    needed: dict[str, Any] = {"store": AsyncMemoryKeyStore(), "find_owner": no_owner_async}
    return AsyncAuthenticator(**needed | settings)


def profile(issuer: str = "i", **settings: Any) -> TokenProfile:
    keys = KeyRing([SigningKey.generate("k", "HS256")])
    return TokenProfile(**{"issuer": issuer, "audience": "a", "keys": keys} | settings)


def adapter(framework: str) -> tuple[Callable[[Any], Any], Callable[[], Any]]:
    """A framework's adapter over a fresh authenticator, by way of what installs it, and a fresh application."""
    module = import_module(f"msk_auth.integrations.{framework}")
    match framework:
        case "fastapi":
            make = import_module("fastapi").FastAPI
            return lambda app: module.FastAPIAuth(waiting()).install(app), make
        case "starlette":
            make = import_module("starlette.applications").Starlette
            return lambda app: module.StarletteAuth(waiting()).install(app), make
        case "flask":
            flask = import_module("flask")
            return lambda app: module.FlaskAuth(blocking(), app), lambda: flask.Flask("app")
        case _:
            litestar = import_module("litestar")
            plugins = [module.LitestarAuth(waiting()), module.LitestarAuth(waiting())]
            # Its adapters are there from the beginning or not at all.
            return lambda count: litestar.Litestar(plugins=plugins[:count]), lambda: 1


FRAMEWORKS = [
    name for name in ("fastapi", "starlette", "flask", "litestar") if find_spec(name) is not None
]
AUTHENTICATORS = {"blocking": blocking, "async": waiting}

# What is wrong, and a part of the message.
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a secret too short": (
        lambda: SigningKey("k", "HS256", b"short"),
        r"has 5 bytes and needs 32 .*Make one with: python -c .*secrets\.token_urlsafe\(48\)",
    ),
    "a pepper too short": (
        lambda: PepperRing({"a": b"short"}, current="a"),
        r"has 5 bytes and needs 32 .*Make one with: python -c .*secrets\.token_urlsafe\(48\)",
    ),
    "a published example as a secret": (
        lambda: SigningKey("k", "HS256", b"a-string-secret-at-least-256-bits-long"),
        r"The secret of the key 'k' is an example that is published.*Make one with",
    ),
    "a pattern as a pepper": (
        lambda: PepperRing({"a": b"x" * 32}, current="a"),
        r"The pepper 'a' has a pattern.*Make one with",
    ),
    "text as a secret": (
        lambda: SigningKey("k", "HS256", "x" * 32),  # type: ignore[arg-type]
        r"The key 'k' is not of type bytes: use text\.encode\(\)",
    ),
    "text as a pepper": (
        lambda: PepperRing({"a": "x" * 32}, current="a"),  # type: ignore[dict-item]
        r"The pepper 'a' is not of type bytes",
    ),
    "an unknown algorithm": (
        lambda: SigningKey("k", "HS512", b"x" * 64),  # type: ignore[arg-type]
        r"The algorithm 'HS512' is not supported\. Use one of .*HS256.*RS256",
    ),
    "no algorithm": (
        lambda: SigningKey("k", "none", b"x" * 64),  # type: ignore[arg-type]
        r"The algorithm 'none' is not supported\. Use one of",
    ),
    "an algorithm to generate a key for": (
        lambda: SigningKey.generate("k", "RS512"),  # type: ignore[arg-type]
        r"The algorithm 'RS512' is not supported\. Use one of",
    ),
    "a public key as a secret": (
        lambda: SigningKey("k", "HS256", SigningKey.generate("p", "ES256").export()),
        r"is a key of another algorithm, and not random bytes\. Make one with",
    ),
    "a ring without a key": (lambda: KeyRing([]), r"needs at least one key: KeyRing\("),
    "two keys of one name": (
        lambda: KeyRing([SigningKey.generate("k", "HS256"), SigningKey.generate("k", "HS256")]),
        r"Two keys of the ring share an id",
    ),
    "two issuers of one name": (
        lambda: blocking(tokens=[profile("i"), profile("i")]),
        r"Two token profiles have the same issuer",
    ),
    "clashing prefixes": (
        lambda: KeyFormat("acme", older_prefixes=["msk", "acme"]),
        r"'acme' is given twice\. Give each prefix once",
    ),
    "a prefix like a JWT's": (lambda: KeyFormat("eyjx"), r"Choose one that does not begin with"),
    "a prefix in capitals": (lambda: KeyFormat("MSK"), r"Use 2 to 16 characters, .*such as 'msk'"),
}
# Those of either authenticator.


WRONG_PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "a realm with a quote": ({"realm": 'a"b'}, r"realm must be printable ASCII .*such as 'api'"),
    "a lease without end": (
        {"lease": timedelta(hours=1)},
        r"such as timedelta\(milliseconds=250\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_impossible_configuration_is_refused_with_the_remedy(mistake: str) -> None:
    make, message = MISTAKES[mistake]
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("mistake", WRONG_PARTS)
@pytest.mark.parametrize("driver", AUTHENTICATORS)
def test_a_part_of_the_wrong_kind_is_refused_by_both_authenticators(
    driver: str, mistake: str
) -> None:
    settings, message = WRONG_PARTS[mistake]
    with pytest.raises(ConfigurationError, match=message):
        AUTHENTICATORS[driver](**settings)


@pytest.mark.parametrize("kind", [Authenticator, AsyncAuthenticator])
def test_an_owner_resolver_that_was_forgotten(kind: Any) -> None:
    with pytest.raises(TypeError, match="keyword-only argument: 'find_owner'"):
        kind(MemoryKeyStore())


def test_two_adapters_on_one_application() -> None:
    # Not a parameter: where no framework is installed, nothing would be left to run.
    for framework in FRAMEWORKS:
        install, make = adapter(framework)
        app = make()
        install(app)
        with pytest.raises(ConfigurationError, match=r"Use (that one|one) for all of its"):
            install(2 if framework == "litestar" else app)
    for first, second in itertools.permutations({"fastapi", "starlette"} & set(FRAMEWORKS), 2):
        app = adapter("fastapi")[1]()
        adapter(first)[0](app)
        with pytest.raises(ConfigurationError, match=r"has a .*Auth already\. Use that one"):
            adapter(second)[0](app)


# A plain function cannot be awaited, and an async one has to be. Where it cannot be determined, nothing is refused.

T = TypeVar("T")


def owner(owner_id: str) -> Owner[str] | None:
    return None


async def owner_async(owner_id: str) -> Owner[str] | None:
    return None


def owner_later(owner_id: str) -> Awaitable[Owner[str] | None]:
    return owner_async(owner_id)


def unannotated(owner_id):  # type: ignore[no-untyped-def]
    return None


def unresolvable(owner_id: str) -> NoSuchName:  # type: ignore[name-defined]  # noqa: F821
    return None


def some_of_each(owner_id: str) -> Owner[str] | Awaitable[Owner[str]]:
    return Owner(owner_id, frozenset(), "")


def generic(owner_id: T) -> T:
    return owner_id


@functools.wraps(owner_async)
def retried(owner_id: str) -> Any:
    """Its annotations are those of what it wraps, and describe what that one's coroutine returns."""
    return owner_async(owner_id)


class Finder(Generic[T]):
    def __init__(self, answer: T) -> None:
        self.answer = answer

    def __call__(self, owner_id: str) -> Owner[str] | None:
        return None

    def find(self, owner_id: str) -> Owner[str] | None:
        return None

    async def find_async(self, owner_id: str) -> Owner[str] | None:
        return None

    def find_later(self, owner_id: str) -> T:
        return self.answer


class AsyncFinder:
    async def __call__(self, owner_id: str) -> Owner[str] | None:
        return None


PLAIN: dict[str, Any] = {
    "a function": owner,
    "a method": Finder(None).find,
    "an object": Finder(None),
    "with a parameter less": functools.partial(owner, owner_id="x"),
}
ASYNC: dict[str, Any] = {
    "a function": owner_async,
    "a function that delegates": owner_later,
    "a method": Finder(None).find_async,
    "an object": AsyncFinder(),
    "with a parameter less": functools.partial(owner_async, owner_id="x"),
}
UNKNOWN: dict[str, Any] = {
    "no annotation": unannotated,
    "an annotation that cannot be read": unresolvable,
    "either": some_of_each,
    "anything": no_owner,
    "generic": generic,
    "generic method": Finder(None).find_later,
    "decorated": retried,
    "built in": {}.get,
    "a lambda": lambda _: None,
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_function_where_one_is_awaited(name: str) -> None:
    blocking(find_owner=PLAIN[name])
    for part in ("find_owner", "find_session", "key_limits"):
        with pytest.raises(
            ConfigurationError, match=rf"{part} is not async, .*\. Use Authenticator"
        ):
            waiting(**{part: PLAIN[name]})


@pytest.mark.parametrize("name", ASYNC)
def test_an_async_function_under_a_blocking_authenticator(name: str) -> None:
    waiting(find_owner=ASYNC[name])
    for part in ("find_owner", "find_session", "key_limits", "on_event"):
        with pytest.raises(ConfigurationError, match=rf"{part} is async\. Use AsyncAuthenticator"):
            blocking(**{part: ASYNC[name]})


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_function_of_an_unknown_kind_is_accepted(name: str) -> None:
    blocking(find_owner=UNKNOWN[name])
    waiting(find_owner=UNKNOWN[name])


class Delegating:
    """A store around an async one, without annotations."""

    def __init__(self) -> None:
        self._inner = AsyncMemoryKeyStore()

    def find(self, key_id):  # type: ignore[no-untyped-def]
        return self._inner.find(key_id)

    def update(self, key_id, **more):  # type: ignore[no-untyped-def]
        return self._inner.update(key_id, **more)


class AnnotatedDelegating(Delegating):
    def find(self, key_id: str) -> Awaitable[ApiKey | None]:
        return self._inner.find(key_id)


def test_stores_of_the_other_kind() -> None:
    with pytest.raises(ConfigurationError, match=r"store\.find is async\. Use AsyncAuthenticator"):
        blocking(store=AsyncMemoryKeyStore())
    with pytest.raises(ConfigurationError, match=r"store\.find is async\. Use AsyncAuthenticator"):
        blocking(store=AnnotatedDelegating())
    with pytest.raises(ConfigurationError, match=r"store\.find is not async.*\. Use Authenticator"):
        waiting(store=MemoryKeyStore())
    for store in (Delegating(), AnnotatedDelegating()):
        waiting(store=store)


@pytest.mark.anyio
@pytest.mark.parametrize("value", ["Bearer x", b"Bearer x", "B", ""])
@pytest.mark.parametrize("lease", [None, timedelta(milliseconds=250)])
async def test_one_header_in_place_of_all(value: Any, lease: timedelta | None) -> None:
    with pytest.raises(TypeError, match=r"Write authenticate\(\[value\]\)"):
        blocking(lease=lease).authenticate(value)
    with pytest.raises(TypeError, match=r"Write authenticate\(\[value\]\)"):
        await waiting(lease=lease).authenticate(value)


@pytest.mark.parametrize("wrong", [["tasks:read"], no_owner, None, 5])
@pytest.mark.parametrize("guard", [require, require_interactive])
def test_permissions_that_are_none(guard: Any, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a permission"):
        guard(wrong)


def test_an_age_without_a_unit() -> None:
    seconds: Any = 300
    with pytest.raises(ConfigurationError, match="such as timedelta"):
        require_interactive(max_age=seconds)


def test_a_token_of_a_time_without_a_zone() -> None:
    tokens = profile()
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    naive = now.replace(tzinfo=None)
    lifetime = timedelta(hours=1)
    with pytest.raises(ValueError, match="time zone"):
        tokens.issue(subject="u", now=naive, lifetime=lifetime)
    with pytest.raises(ValueError, match="time zone"):
        tokens.issue(subject="u", now=now, authenticated_at=naive, lifetime=lifetime)
