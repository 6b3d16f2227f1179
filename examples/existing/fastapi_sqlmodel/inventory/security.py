from datetime import UTC, datetime, timedelta

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

from .models import User
from .settings import settings

hasher = PasswordHasher()


def verify_password(password: str, hashed_password: str) -> bool:
    try:
        return hasher.verify(hashed_password, password)
    except VerificationError:
        return False


def create_access_token(user: User) -> str:
    expires = datetime.now(UTC) + timedelta(minutes=settings.access_token_minutes)
    return jwt.encode({"sub": str(user.id), "exp": expires}, settings.secret_key, "HS256")
