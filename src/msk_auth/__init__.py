"""API keys and login tokens for Python web applications.

One `Authorization: Bearer …` header carries either the JWT of an interactive login or an API key. Both become one typed
`Principal` that records how it was authenticated. The adapters are in
`msk_auth.integrations`, the stores in `msk_auth.stores`; importing this package loads neither a
framework nor a database library.
"""

from ._async.administration import AsyncAdminKeys
from ._async.authenticator import AsyncAuthenticator
from ._async.expiry import AsyncKeyExpiry
from ._async.store import (
    AsyncActivityStore,
    AsyncAdminStore,
    AsyncBatchStore,
    AsyncExpiryStore,
    AsyncKeyStore,
    AsyncLeaseRegister,
)
from ._async.users import AsyncUsers
from ._async.watch import AsyncWatch
from ._route_audit.own_guard import own_guard
from ._sync.administration import AdminKeys
from ._sync.authenticator import Authenticator
from ._sync.expiry import KeyExpiry
from ._sync.store import ActivityStore, AdminStore, ExpiryStore, KeyStore, LeaseRegister
from ._sync.users import Users
from ._sync.watch import Watch
from .authenticator.base import PROBLEM_BASE
from .clock import Clock, SystemClock
from .core.activity import (
    ActivityEntry,
    ActivitySettings,
    DailyRequests,
    KeyActivity,
    LastRequest,
)
from .core.credentials import read_bearer
from .core.cursor import PageCursor
from .core.digest import KeyHasher, PepperRing, SlowDigest
from .core.errors import (
    AddressNotAllowed,
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    CrossOriginRefused,
    FieldError,
    InputInvalid,
    InteractiveRequired,
    KeyExpired,
    KeyLimitReached,
    KeyMalformed,
    KeyNotActive,
    KeyNotFound,
    KeyRequired,
    KeyRevoked,
    KeyUnknown,
    LoginTooOld,
    MskAuthError,
    NotFound,
    OwnerDisabled,
    PermissionDenied,
    Problem,
    ReferenceInvalid,
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
    KeyExpiring,
    KeyExpirySet,
    KeyLeaked,
    KeyRevocation,
    KeyRotated,
    KeyUpdated,
    LeakLocation,
    Refusal,
    RevocationCause,
)
from .core.fields import KeyDetails, KeyEdit, KeyUpdate
from .core.immutability import immutable
from .core.key_management import CreatedKey, Lifetime
from .core.keys import KeyFormat, KeyValue
from .core.model import (
    ApiKey,
    CredentialKind,
    ExpiryQuery,
    ExternalIdentity,
    KeyFilter,
    KeyLimits,
    KeyPage,
    KeyQuery,
    KeyStatus,
    Login,
    Owner,
    Principal,
    Session,
    local_principal,
)
from .core.policy import Policy, any_credential, require, require_interactive, require_key
from .core.revocation import LeakedKey
from .core.store import KeyChange, RecordedLease
from .redaction import RedactingFilter, redact
from .tokens.profile import Claims, TokenProfile
from .tokens.signing import AlgorithmName, KeyRing, SigningKey

__version__ = "0.1.0"

__all__ = [
    "PROBLEM_BASE",
    "ActivityEntry",
    "ActivitySettings",
    "ActivityStore",
    "AddressNotAllowed",
    "AdminKeys",
    "AdminStore",
    "AlgorithmName",
    "ApiKey",
    "AsyncActivityStore",
    "AsyncAdminKeys",
    "AsyncAdminStore",
    "AsyncAuthenticator",
    "AsyncBatchStore",
    "AsyncExpiryStore",
    "AsyncKeyExpiry",
    "AsyncKeyStore",
    "AsyncLeaseRegister",
    "AsyncUsers",
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
    "CrossOriginRefused",
    "DailyRequests",
    "Event",
    "ExpiryQuery",
    "ExpiryStore",
    "ExternalIdentity",
    "FieldError",
    "InputInvalid",
    "InteractiveRequired",
    "KeyActivity",
    "KeyChange",
    "KeyCreated",
    "KeyDeleted",
    "KeyDetails",
    "KeyEdit",
    "KeyEvent",
    "KeyExpired",
    "KeyExpiring",
    "KeyExpiry",
    "KeyExpirySet",
    "KeyFilter",
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
    "KeyRequired",
    "KeyRevocation",
    "KeyRevoked",
    "KeyRing",
    "KeyRotated",
    "KeyStatus",
    "KeyStore",
    "KeyUnknown",
    "KeyUpdate",
    "KeyUpdated",
    "KeyValue",
    "LastRequest",
    "LeakLocation",
    "LeakedKey",
    "LeaseRegister",
    "Lifetime",
    "Login",
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
    "ReferenceInvalid",
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
