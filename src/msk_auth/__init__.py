"""API keys and login tokens for Python web applications.

One `Authorization: Bearer …` header carries either the JWT of an interactive login or an API key. Both become one typed
`Principal` that records how it was authenticated. The adapters are in
`msk_auth.integrations`, the stores in `msk_auth.stores`; importing this package loads neither a
framework nor a database library.
"""

from .authenticator import PROBLEM_BASE, AsyncAuthenticator, Authenticator
from .clock import Clock, SystemClock
from .core.credentials import read_bearer
from .core.cursor import PageCursor
from .core.digest import KeyHasher, PepperRing, SlowDigest
from .core.errors import (
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    FieldError,
    InputInvalid,
    InteractiveRequired,
    KeyExpired,
    KeyLimitReached,
    KeyMalformed,
    KeyNotActive,
    KeyNotFound,
    KeyRevoked,
    KeyUnknown,
    LoginTooOld,
    MskAuthError,
    NotFound,
    OwnerDisabled,
    PermissionDenied,
    Problem,
    RequestMalformed,
    SignatureInvalid,
    SigningKeysUnavailable,
    StoreUnavailable,
    TokenExpired,
    TokenInvalid,
    TokenRevoked,
    TooManyAttempts,
)
from .core.events import (
    CredentialUsed,
    Event,
    KeyCreated,
    KeyDeleted,
    KeyEvent,
    KeyExpirySet,
    KeyLeaked,
    KeyRevocation,
    KeyRotated,
    LeakLocation,
    Refusal,
    RevocationCause,
)
from .core.flows import CreatedKey, Lifetime
from .core.immutability import immutable
from .core.keys import KeyFormat, KeyValue
from .core.model import (
    ApiKey,
    CredentialKind,
    ExternalIdentity,
    KeyLimits,
    KeyPage,
    KeyQuery,
    KeyStatus,
    Owner,
    Principal,
    Session,
    local_principal,
)
from .core.policy import Policy, require, require_interactive
from .core.revocation import LeakedKey
from .core.store import (
    AsyncBatchStore,
    AsyncKeyStore,
    AsyncLeaseRegister,
    KeyChange,
    KeyStore,
    LeaseRegister,
    RecordedLease,
)
from .redaction import RedactingFilter, redact
from .tokens.profile import Claims, TokenProfile
from .tokens.signing import AlgorithmName, KeyRing, SigningKey
from .watch import AsyncWatch, Watch

__version__ = "0.1.0"

__all__ = [
    "PROBLEM_BASE",
    "AlgorithmName",
    "ApiKey",
    "AsyncAuthenticator",
    "AsyncBatchStore",
    "AsyncKeyStore",
    "AsyncLeaseRegister",
    "AsyncWatch",
    "Authenticator",
    "Claims",
    "Clock",
    "ConfigurationError",
    "CreatedKey",
    "CredentialKind",
    "CredentialRefused",
    "CredentialUsed",
    "CredentialsMissing",
    "Event",
    "ExternalIdentity",
    "FieldError",
    "InputInvalid",
    "InteractiveRequired",
    "KeyChange",
    "KeyCreated",
    "KeyDeleted",
    "KeyEvent",
    "KeyExpired",
    "KeyExpirySet",
    "KeyFormat",
    "KeyHasher",
    "KeyLeaked",
    "KeyLimitReached",
    "KeyLimits",
    "KeyMalformed",
    "KeyNotActive",
    "KeyNotFound",
    "KeyPage",
    "KeyQuery",
    "KeyRevocation",
    "KeyRevoked",
    "KeyRing",
    "KeyRotated",
    "KeyStatus",
    "KeyStore",
    "KeyUnknown",
    "KeyValue",
    "LeakLocation",
    "LeakedKey",
    "LeaseRegister",
    "Lifetime",
    "LoginTooOld",
    "MskAuthError",
    "NotFound",
    "Owner",
    "OwnerDisabled",
    "PageCursor",
    "PepperRing",
    "PermissionDenied",
    "Policy",
    "Principal",
    "Problem",
    "RecordedLease",
    "RedactingFilter",
    "Refusal",
    "RequestMalformed",
    "RevocationCause",
    "Session",
    "SignatureInvalid",
    "SigningKey",
    "SigningKeysUnavailable",
    "SlowDigest",
    "StoreUnavailable",
    "SystemClock",
    "TokenExpired",
    "TokenInvalid",
    "TokenProfile",
    "TokenRevoked",
    "TooManyAttempts",
    "Watch",
    "immutable",
    "local_principal",
    "read_bearer",
    "redact",
    "require",
    "require_interactive",
]
