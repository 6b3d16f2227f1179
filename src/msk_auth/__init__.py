"""API keys and login tokens for Python web applications.

One `Authorization: Bearer …` header carries either the JWT of an interactive login or an API key. Both become one typed
`Principal` that records how it was authenticated. The adapters are in
`msk_auth.integrations`, the stores in `msk_auth.stores`; importing this package loads neither a
framework nor a database library.
"""

from ._async.authenticator import AsyncAuthenticator
from ._async.users import AsyncUsers
from ._route_audit import own_guard
from ._sync.authenticator import Authenticator
from ._sync.users import Users
from .clock import Clock, SystemClock
from .core.immutability import immutable
from .core.keys import KeyFormat, KeyHasher, PepperRing
from .core.model import (
    ApiKey,
    CredentialKind,
    ExternalIdentity,
    KeyLimits,
    KeyStatus,
    Login,
    Owner,
    Principal,
    Session,
    local_principal,
)
from .core.policy import (
    Policy,
    any_credential,
    require,
    require_interactive,
    require_key,
    require_login,
)
from .tokens.profile import SigningKey, TokenProfile

__version__ = "0.1.0"

__all__ = [
    "ApiKey",
    "AsyncAuthenticator",
    "AsyncUsers",
    "Authenticator",
    "Clock",
    "CredentialKind",
    "ExternalIdentity",
    "KeyFormat",
    "KeyHasher",
    "KeyLimits",
    "KeyStatus",
    "Login",
    "Owner",
    "PepperRing",
    "Policy",
    "Principal",
    "Session",
    "SigningKey",
    "SystemClock",
    "TokenProfile",
    "Users",
    "any_credential",
    "immutable",
    "local_principal",
    "own_guard",
    "require",
    "require_interactive",
    "require_key",
    "require_login",
]
