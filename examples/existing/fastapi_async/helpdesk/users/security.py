import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

from helpdesk.config import settings
from helpdesk.exceptions import NotAuthenticated
from helpdesk.users.models import User


def hash_password(password: str) -> str:
    salt, rounds = secrets.token_bytes(16), settings.password_hash_rounds
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    return f"{rounds}${salt.hex()}${digest.hex()}"


def verify_password(password: str, password_hash: str) -> bool:
    rounds, salt, expected = password_hash.split("$")
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), bytes.fromhex(salt), int(rounds))
    return hmac.compare_digest(digest.hex(), expected)


def create_access_token(user: User) -> str:
    now = datetime.now(UTC)
    claims = {
        "sub": str(user.id),
        "type": "access",
        "role": user.role,
        "iat": now,
        "exp": now + timedelta(minutes=settings.jwt_minutes),
    }
    return jwt.encode(claims, settings.jwt_secret, "HS256")


def decode_access_token(token: str) -> dict[str, Any]:
    try:
        claims = jwt.decode(
            token, settings.jwt_secret, ["HS256"], options={"require": ["sub", "iat", "exp"]}
        )
    except jwt.InvalidTokenError:
        raise NotAuthenticated from None
    if claims.get("type") != "access" or not claims["sub"].isdecimal():
        raise NotAuthenticated
    return claims
