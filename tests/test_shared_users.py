"""Under a lease users of ORMs and of pydantic are refused if a request could change them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr, computed_field
from sqlalchemy import Column, Integer, String
from sqlalchemy.orm import DeclarativeBase, registry
from tests.core.support import SHORT_LEASE, assert_users_refused_at_start, start_with_users
from werkzeug.utils import cached_property as werkzeug_property

from msk_auth import Owner
from msk_auth.core.immutability import NotShareable, check_shareable


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", arbitrary_types_allowed=True)
    name: str = "Ann"
    value: Any = None


class PrivateModel(Model):
    _cache: Any = PrivateAttr(default=1)


class ComputingModel(Model):
    @cached_property
    def roles(self) -> list[str]:
        return [self.name]


class SerializingModel(Model):
    @computed_field  # type: ignore[prop-decorator]
    @cached_property
    def roles(self) -> list[str]:
        return [self.name]


class MemoizingModel(Model):
    @werkzeug_property
    def roles(self) -> list[str]:
        return [self.name]


class ThawedModel(BaseModel):
    name: str = "Ann"


class Base(DeclarativeBase):
    pass


class Mapped(Base):
    __tablename__ = "mapped"
    id = Column(Integer, primary_key=True)
    name = Column(String)


@registry().mapped_as_dataclass
class MappedDataclass:
    __tablename__ = "mapped_dataclass"
    id = Column(Integer, primary_key=True)


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (Mapped(id=1, name="ann"), "user", "Mapped"),
        (MappedDataclass(), "user", "MappedDataclass"),
        (("ann", Mapped(id=1)), r"user\[1\]", "Mapped"),
        (ThawedModel(), "user", "ThawedModel"),
        (PrivateModel(), "user", "PrivateModel"),
        (ComputingModel(), "user", "ComputingModel"),
        (SerializingModel(), "user", "SerializingModel"),
        (MemoizingModel(), "user", "MemoizingModel"),
        (Model(value=[]), r"user\.value", "list"),
        (Model(value=ThawedModel()), r"user\.value", "ThawedModel"),
        (Model(more=[]), r"user\.more", "list"),
    ],
)
def test_what_can_change_is_found_and_named(value: object, path: str, kind: str) -> None:
    with pytest.raises(NotShareable, match=f" {path} can change: it is a {kind}\\."):
        check_shareable(value, "user")


def test_a_frozen_model_may_be_shared() -> None:
    check_shareable(Model(name="ann", value=("a", Model()), more=1), "user")


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (Owner[Mapped] | None, "Mapped"),
        (Owner[MappedDataclass], "MappedDataclass"),
        (Owner[ThawedModel] | None, "ThawedModel"),
        (Owner[ComputingModel] | None, "ComputingModel"),
    ],
)
def test_a_look_up_that_returns_them_by_its_annotation_is_refused_under_a_lease(
    hint: object, kind: str
) -> None:
    assert_users_refused_at_start(hint, kind)


def test_a_look_up_that_returns_frozen_models_is_accepted_under_a_lease() -> None:
    start_with_users(Owner[Model] | None, SHORT_LEASE)
