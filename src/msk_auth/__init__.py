"""API keys and login tokens for Python web applications.

One `Authorization: Bearer …` header carries either the JWT of an interactive login or an API key. Both become one typed
`Principal` that records how it was authenticated. The adapters are in
`msk_auth.integrations`, the stores in `msk_auth.stores`; importing this package loads neither a
framework nor a database library.
"""

from ._async.administration import AsyncAdminKeys
from ._async.authenticator import AsyncAuthenticator
from ._async.expiry import AsyncKeyExpiry
from ._async.users import AsyncUsers
from ._async.watch import AsyncWatch
from ._route_audit.own_guard import own_guard
from ._sync.administration import AdminKeys
from ._sync.authenticator import Authenticator
from ._sync.expiry import KeyExpiry
from ._sync.users import Users
from ._sync.watch import Watch
from .authenticator.base import PROBLEM_BASE
from .clock import Clock, SystemClock
from .core.activity import (
    ActivitySettings,
    DailyRequests,
    KeyActivity,
    LastRequest,
)
from .core.credentials import read_bearer
from .core.cursor import PageCursor
from .core.digest import KeyHasher, PepperRing, SlowDigest
from .core.fields import KeyDetails, KeyEdit
from .core.immutability import immutable
from .core.key_management import CreatedKey, Lifetime
from .core.keys import KeyFormat, KeyValue
from .core.model import (
    ApiKey,
    CredentialKind,
    ExternalIdentity,
    KeyFilter,
    KeyLimits,
    KeyPage,
    KeyStatus,
    Login,
    Owner,
    Principal,
    Session,
    local_principal,
)
from .core.policy import Policy, any_credential, require, require_interactive, require_key
from .redaction import RedactingFilter, redact
from .tokens.profile import Claims, TokenProfile
from .tokens.signing import AlgorithmName, KeyRing, SigningKey

__version__ = "0.1.0"

__all__ = [
    "PROBLEM_BASE",
    "ActivitySettings",
    "AdminKeys",
    "AlgorithmName",
    "ApiKey",
    "AsyncAdminKeys",
    "AsyncAuthenticator",
    "AsyncKeyExpiry",
    "AsyncUsers",
    "AsyncWatch",
    "Authenticator",
    "Claims",
    "Clock",
    "CreatedKey",
    "CredentialKind",
    "DailyRequests",
    "ExternalIdentity",
    "KeyActivity",
    "KeyDetails",
    "KeyEdit",
    "KeyExpiry",
    "KeyFilter",
    "KeyFormat",
    "KeyHasher",
    "KeyLimits",
    "KeyPage",
    "KeyRing",
    "KeyStatus",
    "KeyValue",
    "LastRequest",
    "Lifetime",
    "Login",
    "Owner",
    "PageCursor",
    "PepperRing",
    "Policy",
    "Principal",
    "RedactingFilter",
    "Session",
    "SigningKey",
    "SlowDigest",
    "SystemClock",
    "TokenProfile",
    "Users",
    "Watch",
    "any_credential",
    "immutable",
    "local_principal",
    "own_guard",
    "read_bearer",
    "redact",
    "require",
    "require_interactive",
    "require_key",
]
