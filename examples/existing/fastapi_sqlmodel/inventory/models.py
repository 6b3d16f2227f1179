from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlmodel import Field, SQLModel


def now() -> datetime:
    return datetime.now(UTC)


class UserPublic(SQLModel):
    id: UUID = Field(default_factory=uuid4, primary_key=True)
    email: str = Field(unique=True, index=True, max_length=255)
    is_active: bool = True
    is_superuser: bool = False


class User(UserPublic, table=True):
    hashed_password: str
    created_at: datetime = Field(default_factory=now)


class NewPassword(SQLModel):
    current_password: str
    new_password: str = Field(min_length=8, max_length=128)


class ItemCreate(SQLModel):
    title: str = Field(min_length=1, max_length=255)


class Item(ItemCreate, table=True):
    id: UUID = Field(default_factory=uuid4, primary_key=True)
    owner_id: UUID = Field(foreign_key="user.id", index=True)


class Token(SQLModel):
    access_token: str
    token_type: str = "bearer"
