"""What may be shared between requests under a lease, and what happens to an owner of which a request could change a part."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntFlag, StrEnum
from functools import cached_property
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from tests.core.support import NOW, MakeWorld, World, token

from msk_auth import Owner, immutable
from msk_auth.errors import ConfigurationError, StoreUnavailable
from msk_auth.events import Refusal

LEASE = timedelta(seconds=1)


class Role(Enum):
    ADMIN = {"a": "dictionary, which the whole process shares anyway"}  # noqa: RUF012


class Text(StrEnum):
    ADMIN = "admin"


class Bits(IntFlag):
    READ = 1


class Pair(NamedTuple):
    name: str
    value: object = None


class SubPair(Pair):
    """Without slots: attributes can be added."""


@dataclass(frozen=True)
class Frozen:
    name: str = "Ann"
    value: object = None


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str = "Ann"
    value: object = None


@dataclass(frozen=True)
class FrozenToo(Frozen):
    more: object = None


class Undecorated(Frozen):
    """A subclass that takes further attributes."""


@dataclass
class Thawed:
    name: str = "Ann"


@dataclass(frozen=True)
class Lazy:
    """One that keeps what it computed in its dictionary."""

    name: str = "Ann"
    value: object = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class Unset:
    """One whose first slot is empty."""

    cached: object = field(init=False)
    value: object = None


@dataclass(frozen=True)
class FrozenDict(dict[str, str]):
    """Its entries are no attributes, so `frozen` does not cover them."""

    name: str = "Ann"


@dataclass(frozen=True)
class FrozenList(list[str]):
    name: str = "Ann"


@dataclass(frozen=True)
class FrozenSet(set[str]):
    name: str = "Ann"


@dataclass(frozen=True)
class FrozenBytes(bytearray):
    name: str = "Ann"


class Memo(cached_property):  # type: ignore[type-arg]
    """As frameworks have one."""


@dataclass(frozen=True)
class Computing:
    """Its attribute is written with the first read, after the owner was judged."""

    name: str = "Ann"

    @cached_property
    def roles(self) -> list[str]:
        return [self.name]


@dataclass(frozen=True)
class OfComputing(Computing):
    """It inherits the attribute."""


@dataclass(frozen=True)
class Memoizing:
    name: str = "Ann"

    @Memo
    def roles(self) -> list[str]:
        return [self.name]


class ComputingText(str):  # noqa: SLOT000 - that is the point
    @cached_property
    def roles(self) -> list[str]:
        return [self]


class ComputingPair(Pair):
    @cached_property
    def roles(self) -> list[str]:
        return [self.name]


class ComputingRole(Enum):
    """Its members are the process's own."""

    ADMIN = 1

    @cached_property
    def roles(self) -> list[str]:
        return [self.name]


@immutable
@dataclass(frozen=True)
class DeclaredComputing(Computing):
    """What it computes never changes."""


class Plain:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class OwnText(str):  # noqa: SLOT000 - that is the point
    """As a library may have one for user names."""


class OwnTime(datetime):
    """As libraries for dates have one."""


class SlottedText(str):
    __slots__ = ("extra",)


@immutable
class Declared:
    def __init__(self) -> None:
        self.roles = ["a list that nothing changes"]


class OfDeclared(Declared):
    """A subclass for which nothing was declared."""


def with_attribute(value: Any) -> Any:
    value.extra = []
    return value


def check_shareable(value: object) -> None:
    """Return if an owner with this user may be shared between the requests of a lease.

    Raises:
        ConfigurationError: A part of the user can change.
    """
    world = World("sync", lease=LEASE)
    world.owners["ann"] = Owner("ann", {"tasks:read"}, value)
    try:
        world.enter(token())
    except StoreUnavailable as refused:
        if refused.__cause__ is None:
            raise
        raise refused.__cause__ from None


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        1.5,
        1j,
        "ann",
        b"ann",
        NOW,
        date(2026, 1, 1),
        time(12),
        LEASE,
        UTC,
        ZoneInfo("Europe/Berlin"),
        NOW.replace(tzinfo=ZoneInfo("Europe/Berlin")),
        Decimal("1.5"),
        UUID(int=1),
        Role.ADMIN,
        Text.ADMIN,
        Bits.READ,
        (),
        ("ann", (1, frozenset({2}))),
        frozenset({("a", 1)}),
        Pair("ann", Pair("bob")),
        SubPair("ann"),
        Frozen("ann", Slotted("bob", ("a",))),
        FrozenToo("ann", "b", Frozen()),
        OwnText("ann"),
        OwnTime(2026, 1, 1, tzinfo=UTC),
        Declared(),
        (Declared(), Frozen("ann", Declared())),
        Owner("ann", {"read"}, Frozen()),
        Unset("ann"),
        ComputingRole.ADMIN,
        DeclaredComputing(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_change_may_be_shared(value: object) -> None:
    check_shareable(value)


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        ([], "user", "list"),
        ({}, "user", "dict"),
        (set(), "user", "set"),
        (bytearray(), "user", "bytearray"),
        (OrderedDict(), "user", "OrderedDict"),
        (MappingProxyType({}), "user", "mappingproxy"),  # a view of what may change
        (SimpleNamespace(name="ann"), "user", "SimpleNamespace"),
        (Plain(name="ann"), "user", "Plain"),
        (Plain, "user", "type"),
        (object(), "user", "object"),
        (lambda: None, "user", "function"),
        (("ann", 1, []), r"user\[2\]", "list"),
        ((("ann", ({},)),), r"user\[0\]\[1\]\[0\]", "dict"),
        (frozenset({Plain()}), r"user\[0\]", "Plain"),
        (Pair("ann", []), r"user\[1\]", "list"),
        (with_attribute(SubPair("ann")), "user", "SubPair"),
        (Frozen("ann", []), r"user\.value", "list"),
        (Slotted("ann", {"a": 1}), r"user\.value", "dict"),
        (Frozen("ann", Slotted("bob", ([],))), r"user\.value\.value\[0\]", "list"),
        (FrozenToo("ann", None, []), r"user\.more", "list"),
        (Undecorated("ann"), "user", "Undecorated"),
        (Thawed(), "user", "Thawed"),
        (with_attribute(OwnText("ann")), "user", "OwnText"),
        (with_attribute(SlottedText("ann")), "user", "SlottedText"),
        (OfDeclared(), "user", "OfDeclared"),
        (Owner("ann", (), Thawed()), r"user\.user", "Thawed"),
        (Unset([]), r"user\.value", "list"),
        (FrozenDict(), "user", "FrozenDict"),
        (FrozenList(), "user", "FrozenList"),
        (FrozenSet(), "user", "FrozenSet"),
        (FrozenBytes(), "user", "FrozenBytes"),
        (Frozen("ann", FrozenDict()), r"user\.value", "FrozenDict"),
        (Computing(), "user", "Computing"),
        (OfComputing(), "user", "OfComputing"),
        (Memoizing(), "user", "Memoizing"),
        (ComputingText("ann"), "user", "ComputingText"),
        (ComputingPair("ann"), "user", "ComputingPair"),
        (Frozen("ann", Computing()), r"user\.value", "Computing"),
    ],
    ids=lambda value: value.replace("\\", "") if isinstance(value, str) else type(value).__name__,
)
def test_what_can_change_is_found_and_named(value: object, path: str, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f" owner\\.{path} can change: it is a {kind}\\."):
        check_shareable(value)


def test_private_attributes_of_a_frozen_object_count_too() -> None:
    lazy = Lazy()
    lazy.__dict__["cached"] = "a text"
    check_shareable(lazy)
    lazy.__dict__["cached"] = ["a list"]
    with pytest.raises(ConfigurationError, match=r"owner\.user\.cached can change"):
        check_shareable(lazy)


def test_only_a_class_can_be_declared_immutable() -> None:
    assert immutable(Declared) is Declared
    with pytest.raises(ConfigurationError, match="Write @immutable above the class"):
        immutable(Declared())  # type: ignore[type-var]


# Under a lease.


def test_a_request_cannot_change_the_owner_of_another_one(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE, on_event=None)
    permissions = {"tasks:read"}
    world.owners["ann"] = Owner("ann", permissions, Frozen())
    credential = world.create().value.reveal()
    first = world.enter(credential)
    permissions.add("admin")
    second = world.enter(credential)
    assert first is second
    for holder in (second, second.owner):
        with pytest.raises(AttributeError):
            holder.permissions.add("admin")
    with pytest.raises(AttributeError):
        second.user.name = "Eve"
    assert second.permissions == second.owner.permissions == {"tasks:read"}


def named(name: str) -> Any:
    """An instance of a class of its own, which can change."""
    return type(name, (), {})()


@pytest.mark.parametrize("credential", ["key", "token"])
def test_under_a_lease_a_user_that_can_change_is_refused_and_logged_once(
    credential: str,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    world = World("sync", lease=LEASE)
    name = "User" + "".join(filter(str.isalnum, request.node.name))
    presented = world.create().value.reveal() if credential == "key" else token()
    world.owners["ann"] = Owner("ann", {"tasks:read"}, named(name))
    world.forget_calls()
    for _ in range(3):
        with pytest.raises(StoreUnavailable) as refused:
            world.enter(presented)
        assert refused.value.status == 503
        assert name not in refused.value.detail
    assert world.events == [Refusal(NOW, "store_unavailable", None)] * 3
    (record,) = [each for each in caplog.records if name in each.getMessage()]
    assert (record.name, record.levelno) == ("msk_auth", logging.ERROR)
    message = record.getMessage()
    assert f"owner.user can change: it is a {name}" in message
    assert "load the user per request" in message
    assert "an ORM instance" in message
    # As soon as the application returns an immutable one, everything works.
    world.owners["ann"] = Owner("ann", {"tasks:read"}, "ann")
    assert world.enter(presented).user == "ann"


def test_without_a_lease_each_request_has_a_user_of_its_own() -> None:
    world = World("sync", find_owner=lambda owner_id: Owner(owner_id, (), Plain()))
    presented = world.create().value.reveal()
    assert world.enter(presented).user is not world.enter(presented).user
