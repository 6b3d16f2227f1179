"""Under a lease users of ORMs and of pydantic are refused if a request could change them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Column, Integer, String
from sqlalchemy.orm import DeclarativeBase, registry
from tests.core.test_immutability import check_shareable

from msk_auth import immutable
from msk_auth.errors import ConfigurationError


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)
    name: str = "Ann"
    value: Any = None


@immutable
class DeclaredModel(Model):
    """For a model the application has to say so."""


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
        (Model(), "user", "Model"),
    ],
)
def test_what_can_change_is_found_and_named(value: object, path: str, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=f" owner\\.{path} can change: it is a {kind}\\."):
        check_shareable(value)


def test_a_model_that_is_declared_may_be_shared() -> None:
    check_shareable(DeclaredModel(name="ann"))
