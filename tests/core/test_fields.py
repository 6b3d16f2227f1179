"""The table of a key's fields, and the record that it describes."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import get_type_hints

import pytest
from tests.core.support import World

from msk_auth import ApiKey
from msk_auth.core.fields import (
    EDITABLE,
    FIELD_OF,
    INPUTS,
    KEY_FIELDS,
    KeyDetails,
    KeyEdit,
    KeyUpdate,
)


def test_the_table_has_the_attributes_of_a_record_in_their_order() -> None:
    attributes = dataclasses.fields(ApiKey)
    assert [field.name for field in KEY_FIELDS] == [each.name for each in attributes]
    for field, attribute in zip(KEY_FIELDS, attributes, strict=True):
        # Scopes decide what a key may do, so a record never has them by default.
        if attribute.default is not dataclasses.MISSING:
            assert field.empty == attribute.default


def test_the_arguments_of_the_authenticators_are_the_fields_that_people_set() -> None:
    assert set(get_type_hints(KeyEdit)) == set(get_type_hints(KeyUpdate)) == set(EDITABLE)
    assert {"name", "scopes", *get_type_hints(KeyDetails)} == set(INPUTS)


def test_the_document_of_a_key_has_what_clients_may_see_and_follows_its_schema(
    world: World,
) -> None:
    scopes = {"tasks:run", "tasks:read"}
    made = world.call("create_key", world.login(), name="CI", scopes=scopes).record
    at = datetime(2026, 3, 1, 13, tzinfo=timezone(timedelta(hours=1)))
    document = dataclasses.replace(made, expires_at=at).document()
    assert document["scopes"] == ["tasks:read", "tasks:run"]
    assert document["expires_at"] == "2026-03-01T12:00:00.000000Z"
    assert (document["labels"], document["networks"]) == ([], None)
    assert document.keys().isdisjoint({"digest", "deleted_at", "announced_days"})
    assert list(document) == ApiKey.document_schema()["required"]


def test_times_in_a_document_are_in_utc_wherever_the_server_stands(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    made = world.call("create_key", world.login(), name="CI").record
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    document = dataclasses.replace(made, expires_at=at).document()
    monkeypatch.undo()
    time.tzset()
    assert document["expires_at"] == "2026-03-01T12:00:00.000000Z"


def test_the_schema_of_a_document_follows_the_kind_of_each_field() -> None:
    schema = ApiKey.document_schema()
    assert schema.keys() == {"type", "required", "properties"}
    assert schema["type"] == "object"
    texts = {"type": "array", "items": {"type": "string"}}
    expected = {
        "id": {"type": "string"},
        "name": {"type": "string"},
        "created_at": {"type": "string", "format": "date-time"},
        "expires_at": {"type": ["string", "null"], "format": "date-time"},
        "labels": texts,
        "networks": {
            **texts,
            "type": ["array", "null"],
            "description": FIELD_OF["networks"].about,
        },
    }
    assert {name: schema["properties"][name] for name in expected} == expected


def test_the_schema_of_a_request_has_the_constraints_of_its_field() -> None:
    line = {"pattern": r"^\s*[^\x00-\x1f\x7f-\x9f]*\s*$"}
    expected = {
        "id": {"type": "string"},
        "name": {"type": "string", "minLength": 1, "maxLength": 100, **line},
        "description": {"type": ["string", "null"], "maxLength": 500, **line},
        "labels": {
            "type": ["array", "null"],
            "maxItems": 20,
            "items": {"type": "string", "pattern": "^[0-9a-z][0-9a-z._:/-]{0,49}$"},
            "description": "Labels for searching.",
        },
    }
    assert {name: FIELD_OF[name].input_schema() for name in expected} == expected
    networks = FIELD_OF["networks"].input_schema()
    assert (networks["minItems"], networks["maxItems"]) == (1, 50)


def test_the_details_of_a_key_are_what_its_creator_chose(world: World) -> None:
    principal = world.login()
    plain = world.call("create_key", principal, name="CI", labels=[], networks=None).record
    assert plain.details() == {"name": "CI"}
    chosen = {"name": "CI", "scopes": [], "labels": ["a", "b"], "resources": []}
    assert world.call("create_key", principal, **chosen).record.details() == chosen


def test_a_field_that_does_not_exist_is_a_mistake_in_the_call(world: World) -> None:
    principal = world.login()
    with pytest.raises(TypeError, match="no field 'lables' to set"):
        world.call("create_key", principal, name="CI", lables=["a"])
    key = world.call("create_key", principal, name="CI").record
    with pytest.raises(TypeError, match="no field 'scopes' to set"):
        world.call("update_key", principal, key.id, scopes=["a"])
    assert world.call("get_key", principal, key.id) == key
