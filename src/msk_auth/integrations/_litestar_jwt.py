"""Logins with Litestar's own JWT authentication."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.security.jwt import BaseJWTAuth, Token

from msk_auth.core.compact import check_opaque
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import Login


class JWTLogin:
    """Accepts the tokens of Litestar's own JWT authentication as logins, as they are.

    It belongs into both lists of `logins`: an authenticator asks it about bearer credentials, and the adapter about requests
    without one, whose token is in the cookie of `JWTCookieAuth` or `OAuth2PasswordBearerAuth`::

        login = JWTLogin(jwt_auth)
        authenticator = AsyncAuthenticator(store, find_owner=users, logins=[login])
        auth = LitestarAuth(authenticator, logins=[login], own_auth=jwt_auth)

    A token is verified as `jwt_auth` verifies it, with its audiences, its issuers and its required claims, and is read by
    :meth:`~msk_auth.Login.from_claims`. `retrieve_user_handler` is not called: what it refuses, `find_owner`
    has to refuse. A token with an `aud` is no login unless `jwt_auth` names accepted audiences (RFC 7519, section 4.1.3): it may
    have been issued for something else, such as the second step of a login.

    Args:
        jwt_auth: The application's own authentication.
        subject: The claim that has the owner's id, where `sub` has something else, such as an email address.

    Raises:
        ConfigurationError: It is of another kind, or has a `revoked_token_handler`: that takes the connection of one request,
            and a verified login serves others as well.
    """

    def __init__(self, jwt_auth: BaseJWTAuth[Any, Any], *, subject: str = "sub") -> None:
        given = cast("object", jwt_auth)
        if not isinstance(given, BaseJWTAuth):
            raise ConfigurationError(
                f"JWTLogin takes a JWTAuth, JWTCookieAuth or OAuth2PasswordBearerAuth, not {type(given).__name__}. Write a"
                " function for other logins."
            )
        # The types of its members are not complete.
        self._jwt_auth: Any = jwt_auth
        if self._jwt_auth.revoked_token_handler is not None:
            raise ConfigurationError(
                "JWTLogin cannot call a revoked_token_handler, which takes a connection. Write a function that verifies the"
                " token and looks it up, and put it into `logins`."
            )
        self._subject = subject

    def __call__(self, source: str | ASGIConnection[Any, Any, Any, Any]) -> Login | None:
        """The login that a bearer credential is, or that a request has in its cookie; None if there is none."""
        jwt_auth = self._jwt_auth
        encoded = source if isinstance(source, str) else self._find(source)
        try:
            token: Token = jwt_auth.token_cls.decode(
                encoded_token=encoded,
                secret=jwt_auth.token_secret,
                algorithm=jwt_auth.algorithm,
                audience=jwt_auth.accepted_audiences,
                issuer=jwt_auth.accepted_issuers,
                require_claims=jwt_auth.require_claims,
                verify_exp=jwt_auth.verify_expiry,
                verify_nbf=jwt_auth.verify_not_before,
                strict_audience=jwt_auth.strict_audience,
            )
        except NotAuthorizedException:
            return None
        if token.aud is not None and not jwt_auth.accepted_audiences:
            return None
        # A token class of the application may have fields of its own for claims.
        claims = token.extras | {each.name: getattr(token, each.name) for each in fields(token)}
        claims["exp"] = token.exp.timestamp()
        return Login.from_claims(claims, subject=self._subject)

    def _find(self, connection: ASGIConnection[Any, Any, Any, Any]) -> str:
        cookie = connection.cookies.get(getattr(self._jwt_auth, "key", ""), "")
        # Litestar writes the scheme into the cookie.
        encoded = cookie.rpartition(" ")[-1]
        # An authenticator has refused such a bearer credential already.
        check_opaque(encoded)
        return encoded
