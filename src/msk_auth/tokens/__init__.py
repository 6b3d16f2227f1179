"""JWTs: the profile of our own tokens, the keys that sign them, and the issuers whose tokens are accepted.

One rule: an issuer returns None for another issuer's token, and raises for its own token if it refuses it, as
`core.tokens.TokenIssuer` states. Nothing here reads a clock or decides about owners and permissions: `_async.verification` does.
"""

from __future__ import annotations

from .profile import AlgorithmName

__all__ = ["AlgorithmName"]
