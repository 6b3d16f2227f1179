"""JWTs: the profile of our own tokens, the keys that sign them, and the issuers whose tokens are accepted.

One rule: a token is accepted or refused by its issuer alone. An issuer implements `core.issuer.TokenIssuer`: it returns None for a token of another issuer and raises for one of its own that
it refuses. Nothing here reads a clock or decides about owners and permissions: the flows of the core do.
"""
