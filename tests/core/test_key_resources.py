"""Keys that reach some resources only: they are kept, and stay (guarantee G4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.core.support import SECRET, World

from msk_auth import (
    KeyHasher,
    PepperRing,
)
from msk_auth.errors import InputInvalid

MakeWorld = Callable[..., World]


# What a key may be bound to


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        ([], frozenset()),
        (["task:42", "task:42"], {"task:42"}),
        (["task:a/b:c.d~e@f+g=", "a:" + "x" * 96], {"task:a/b:c.d~e@f+g=", "a:" + "x" * 96}),
        ([f"task:{number}" for number in range(100)], {f"task:{number}" for number in range(100)}),
    ],
)
def test_a_key_keeps_its_resources(make_world: MakeWorld, given: Any, kept: Any) -> None:
    world = make_world()
    created = world.create(resources=given)
    assert created.record.resources == world.store.get(created.record.id).resources == kept
    principal = world.enter(created.value.reveal())
    assert (principal.resources, principal.reaches("task:42")) == (
        kept,
        kept is None or "task:42" in kept,
    )


@pytest.mark.parametrize(
    "given",
    [
        "task:42",
        [1],
        ["task"],
        ["task:"],
        [":42"],
        ["Task:42"],
        ["task:*"],
        ["task:4 2"],
        ["task:42\n"],
        ["task:ü"],
        ["t" * 33 + ":1"],
        ["task:" + "x" * 97],
        [f"task:{number}" for number in range(101)],
    ],
)
def test_other_resources_are_refused(make_world: MakeWorld, given: Any) -> None:
    with pytest.raises(InputInvalid) as caught:
        make_world().create(resources=given)
    assert [error.field for error in caught.value.errors] == ["resources"]


def test_resources_are_set_for_good(make_world: MakeWorld) -> None:
    world = make_world()
    created = world.create(resources=["task:42"])
    with pytest.raises(TypeError, match="no field 'resources'"):
        world.call("update_key", world.login(), created.record.id, resources=None)


@pytest.mark.parametrize("overlap", [timedelta(0), timedelta(hours=1)])
def test_a_successor_reaches_the_same(make_world: MakeWorld, overlap: timedelta) -> None:
    world = make_world()
    created = world.create(resources=["task:42"])
    successor = world.call("rotate_key", world.login(), created.record.id, overlap=overlap)
    assert successor.record.resources == {"task:42"}
    assert world.enter(successor.value.reveal()).resources == {"task:42"}


def test_queued_work_reaches_what_its_key_does(make_world: MakeWorld) -> None:
    world = make_world(hasher=KeyHasher(PepperRing({"1": SECRET}, current="1")))
    principal = world.enter(world.create(resources=["task:42"]).value.reveal())
    resumed = world.call("resume", world.auth.reference(principal))
    assert (resumed.resources, resumed.resumed) == ({"task:42"}, True)


def test_a_lease_covers_a_key_with_its_resources(make_world: MakeWorld) -> None:
    world = make_world(lease=timedelta(milliseconds=250))
    for resources in (["task:42"], ["task:43"], None):
        value = world.create(resources=resources).value.reveal()
        for _ in range(2):
            found = world.enter(value).resources
            assert found == (None if resources is None else set(resources))
