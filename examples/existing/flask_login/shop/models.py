from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flask import current_app
from flask_login import UserMixin
from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column
from werkzeug.security import check_password_hash, generate_password_hash

from .extensions import Base, db

if TYPE_CHECKING:
    Model = Base
else:
    Model = db.Model


def now() -> datetime:
    return datetime.now(UTC)


class User(UserMixin, Model):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(80), unique=True)
    password_hash: Mapped[str] = mapped_column(String(255))
    is_active: Mapped[bool] = mapped_column(default=True)
    is_admin: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=now)

    def set_password(self, password: str) -> None:
        method = current_app.config["PASSWORD_HASH_METHOD"]
        self.password_hash = generate_password_hash(password, method)

    def check_password(self, password: str) -> bool:
        return check_password_hash(self.password_hash, password)


class Product(Model):
    __tablename__ = "products"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(120))
    in_stock: Mapped[int] = mapped_column(default=0)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)

    def to_dict(self) -> dict[str, object]:
        return {"id": self.id, "name": self.name, "in_stock": self.in_stock}
