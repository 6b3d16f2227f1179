"""Set-ups that cannot work are refused while the application starts, in words (ASVS 5.0, section 13.2)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    KeyFormat,
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
    keys = [SigningKey.generate("k", "HS256")]
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
    "a profile without a key": (
        lambda: TokenProfile(issuer="i", audience="a", keys=[]),
        r"needs at least one key: \[SigningKey\(",
    ),
    "two keys of one name": (
        lambda: TokenProfile(
            issuer="i",
            audience="a",
            keys=[SigningKey.generate("k", "HS256"), SigningKey.generate("k", "HS256")],
        ),
        r"Two keys of a token profile share an id",
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
        with pytest.raises(ConfigurationError, match=r"Use (it|one) for all "):
            install(2 if framework == "litestar" else app)
    for first, second in itertools.permutations({"fastapi", "starlette"} & set(FRAMEWORKS), 2):
        app = adapter("fastapi")[1]()
        adapter(first)[0](app)
        with pytest.raises(ConfigurationError, match=r"already has a \w+Auth\. Use it"):
            adapter(second)[0](app)


class Finder:
    async def find(self, owner_id: str) -> Owner[str] | None:
        return None


@pytest.mark.parametrize(
    "function",
    [no_owner_async, Finder().find, functools.partial(no_owner_async, "x")],
    ids=["a function", "a method", "with a parameter less"],
)
def test_an_async_function_under_a_blocking_authenticator(function: Any) -> None:
    for part in ("find_owner", "on_event"):
        with pytest.raises(ConfigurationError, match=rf"{part} is async\. Use AsyncAuthenticator"):
            blocking(**{part: function})


def test_an_async_store_under_a_blocking_authenticator() -> None:
    with pytest.raises(ConfigurationError, match=r"store\.find is async\. Use AsyncAuthenticator"):
        blocking(store=AsyncMemoryKeyStore())


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
