"""Set-ups that cannot work are refused while the application starts, in words (ASVS 5.0, section 13.2)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from tests.cases import case

from msk_auth import AsyncAuthenticator, Authenticator, Owner
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
async def test_one_header_in_place_of_all() -> None:
    wrong: tuple[Any, ...] = ("Bearer x", b"Bearer x", "B", "")
    for value, lease in itertools.product(wrong, (None, timedelta(milliseconds=250))):
        with case(value, lease), pytest.raises(TypeError, match=r"Write authenticate\(\[value\]\)"):
            blocking(lease=lease).authenticate(value)
    with pytest.raises(TypeError, match=r"Write authenticate\(\[value\]\)"):
        await waiting().authenticate(wrong[0])
