"""Users as ORMs and pydantic make them, under a lease: what a request could change is not shared."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr
from sqlalchemy import Column, Integer, String
from sqlalchemy.orm import DeclarativeBase, registry

from msk_auth import AsyncAuthenticator, Authenticator, ConfigurationError, Owner
from msk_auth.core.immutability import NotShareable, check_shareable
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore

LEASE = timedelta(seconds=1)


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", arbitrary_types_allowed=True)
    name: str = "Ann"
    value: Any = None


class PrivateModel(Model):
    _cache: Any = PrivateAttr(default=1)


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


def find_mapped(_owner_id: str) -> Owner[Mapped] | None: ...
async def afind_mapped(_owner_id: str) -> Owner[Mapped] | None: ...
def find_mapped_dataclass(_owner_id: str) -> Owner[MappedDataclass]: ...
async def afind_mapped_dataclass(_owner_id: str) -> Owner[MappedDataclass]: ...
def find_model(_owner_id: str) -> Owner[ThawedModel] | None: ...
async def afind_model(_owner_id: str) -> Owner[ThawedModel] | None: ...
def find_frozen_model(_owner_id: str) -> Owner[Model] | None: ...
async def afind_frozen_model(_owner_id: str) -> Owner[Model] | None: ...


def start(blocking: Any, awaiting: Any, lease: timedelta | None) -> None:
    Authenticator(MemoryKeyStore(), find_owner=blocking, lease=lease)
    AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=awaiting, lease=lease)


@pytest.mark.parametrize(
    ("find_owner", "afind_owner", "kind"),
    [
        (find_mapped, afind_mapped, "Mapped"),
        (find_mapped_dataclass, afind_mapped_dataclass, "MappedDataclass"),
        (find_model, afind_model, "ThawedModel"),
    ],
)
def test_a_look_up_that_is_typed_to_return_them_is_refused_with_a_lease(
    find_owner: Any, afind_owner: Any, kind: str
) -> None:
    start(find_owner, afind_owner, None)
    message = f"Owner.user can change: it is a {kind}.*load the user per request"
    with pytest.raises(ConfigurationError, match=message):
        Authenticator(MemoryKeyStore(), find_owner=find_owner, lease=LEASE)
    with pytest.raises(ConfigurationError, match=message):
        AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=afind_owner, lease=LEASE)


def test_a_look_up_that_is_typed_to_return_frozen_models_starts_with_a_lease() -> None:
    start(find_frozen_model, afind_frozen_model, LEASE)
