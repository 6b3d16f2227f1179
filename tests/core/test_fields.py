"""The table of a key's fields, and the record that it describes."""

from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest
from tests.core.support import World

from msk_auth import ApiKey
from msk_auth.core.fields import EDITABLE, INPUTS, KEY_FIELDS, KeyDetails, KeyEdit, KeyUpdate


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


def test_a_field_that_does_not_exist_is_a_mistake_in_the_call(world: World) -> None:
    principal = world.login()
    with pytest.raises(TypeError, match="no field 'lables' to set"):
        world.call("create_key", principal, name="CI", lables=["a"])
    key = world.call("create_key", principal, name="CI").record
    with pytest.raises(TypeError, match="no field 'scopes' to set"):
        world.call("update_key", principal, key.id, scopes=["a"])
    assert world.call("get_key", principal, key.id) == key
