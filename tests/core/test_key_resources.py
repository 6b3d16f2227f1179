"""Keys that reach some resources only: a key passes where the operation names one of them, or limits itself (guarantee G4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.core.support import NOW, SECRET, MakeWorld, World

from msk_auth import (
    CredentialKind,
    KeyHasher,
    Owner,
    PepperRing,
    Policy,
    Principal,
    any_credential,
    local_principal,
    require,
    require_key,
)
from msk_auth.core.policy import lasting
from msk_auth.errors import ConfigurationError, InputInvalid, PermissionDenied

OWNER = Owner("ann", {"tasks:read", "tasks:run"}, "Ann")


def bound(*resources: str, kind: CredentialKind = CredentialKind.API_KEY) -> Principal[str]:
    permissions, reach = OWNER.permissions, frozenset(resources)
    return Principal(OWNER, kind, permissions, NOW, key_id="k", resources=reach)


def passes(policy: Policy, principal: Principal[str], **path: object) -> bool:
    try:
        policy.check(principal, NOW, path)
    except PermissionDenied as problem:
        refused = problem
    else:
        return True
    assert refused.challenge() == {"error": "insufficient_scope"}
    return False


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
def test_a_key_keeps_its_resources(given: Any, kept: Any) -> None:
    world = World("sync")
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
def test_other_resources_are_refused(given: Any) -> None:
    with pytest.raises(InputInvalid) as caught:
        World("sync").create(resources=given)
    (error,) = caught.value.errors
    assert error.field == "resources"
    assert error.message


def test_queued_work_reaches_what_its_key_does(make_world: MakeWorld) -> None:
    world = make_world(hasher=KeyHasher(PepperRing({"1": SECRET}, current="1")))
    principal = world.enter(world.create(resources=["task:42"]).value.reveal())
    resumed = world.call("resume", world.auth.reference(principal))
    assert (resumed.resources, resumed.resumed) == ({"task:42"}, True)
    assert not passes(require("tasks:run"), resumed)


def test_a_lease_covers_a_key_with_its_resources() -> None:
    world = World("sync", lease=timedelta(milliseconds=250))
    for resources in (["task:42"], ["task:43"], None):
        value = world.create(resources=resources).value.reveal()
        for _ in range(2):
            found = world.enter(value).resources
            assert found == (None if resources is None else set(resources))


# What it passes


@pytest.mark.parametrize("guard", [require, require_key])
def test_a_key_passes_where_the_operation_is_about_one_of_its_resources(
    guard: Callable[..., Policy],
) -> None:
    policy = guard("tasks:run", resource="task:{task_id}")
    key = bound("task:42", "task:a-b")
    assert passes(policy, key, task_id=42)
    assert passes(policy, key, task_id="42", other="x")
    assert passes(policy, key, task_id="a-b")
    for other in ("4", "421", "43", "", "*", "42 ", "task:42", None):
        assert not passes(policy, key, task_id=other)
    assert not passes(policy, bound(), task_id=42)
    assert not passes(guard("tasks:run", resource="run:{task_id}"), key, task_id=42)
    # A fixed one, and several parameters.
    assert passes(guard(resource="task:42"), key)
    assert passes(guard(resource="task:{first}-{second}"), key, first="a", second="b")


def test_a_key_passes_where_the_operation_limits_itself_and_nowhere_else() -> None:
    key = bound("task:42")
    assert passes(require("tasks:read", any_resource=True), key)
    assert passes(any_credential(), key)
    for policy in (Policy(), require("tasks:read"), require_key(), require_key("tasks:run")):
        assert not passes(policy, key)


def test_a_key_that_is_refused_for_its_resources_learns_that() -> None:
    for policy in (require("tasks:read"), require("tasks:read", resource="task:7")):
        with pytest.raises(PermissionDenied, match="limited to some resources"):
            policy.check(bound("task:42"), NOW)


def test_a_credential_without_resources_of_its_own_reaches_everything() -> None:
    policy = require("tasks:run", resource="task:{task_id}")
    for interactive in (True, False):
        principal = local_principal(OWNER, at=NOW, interactive=interactive)
        assert principal.reaches("task:42")
        assert passes(policy, principal, task_id=42)


def test_permissions_are_needed_as_well() -> None:
    with pytest.raises(PermissionDenied) as caught:
        require("tasks:admin", resource="task:42").check(bound("task:42"), NOW)
    assert caught.value.required == ("tasks:admin",)
    scoped = Principal(
        OWNER,
        CredentialKind.API_KEY,
        frozenset({"tasks:run"}),
        NOW,
        scopes=frozenset({"tasks:run"}),
        resources=frozenset({"task:42"}),
    )
    assert passes(require("tasks:run", resource="task:42"), scoped)
    assert not passes(require(resource="task:42"), scoped)


def test_a_path_without_the_parameter_lets_no_such_key_pass() -> None:
    policy = require("tasks:run", resource="task:{task_id}")
    with pytest.raises(ConfigurationError, match="no parameter 'task_id'"):
        policy.check(bound("task:{task_id}", "task:42"), NOW, {"id": 42})
    policy.check(local_principal(OWNER, at=NOW), NOW)


@pytest.mark.parametrize(
    "resource",
    ["", "task", "task:*", "task:{}", "task:{0}", "task:{a.b}", "task:{a!r}", "{kind:x}"],
)
def test_what_can_be_no_resource_is_refused_at_start(resource: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a resource"):
        require(resource=resource)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource": "task:42", "any_resource": True},
        {"resource": "task:42", "interactive": True},
        {"any_resource": True, "interactive": True},
        {"resource": "task:42", "any_credential": True},
        {"any_resource": True, "any_credential": True},
    ],
)
def test_what_contradicts_itself_is_refused_at_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Policy(**wrong)


def test_an_open_connection_goes_on_without_the_parameters_of_its_path() -> None:
    policy = require("tasks:read", resource="task:{task_id}")
    assert lasting(policy) == require("tasks:read", any_resource=True)
    assert lasting(require("tasks:read")) == require("tasks:read")
