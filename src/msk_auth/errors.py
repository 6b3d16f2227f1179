"""The exceptions of the library: problems, each with its status and code, and mistakes in a configuration."""

from __future__ import annotations

from msk_auth.core.errors import (
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    Forbidden,
    InputInvalid,
    InteractiveRequired,
    KeyLimitReached,
    KeyNotActive,
    KeyNotFound,
    LoginTooOld,
    MskAuthError,
    NotFound,
    PermissionDenied,
    Problem,
    RequestMalformed,
    StoreUnavailable,
    TooManyAttempts,
)

__all__ = [
    "ConfigurationError",
    "CredentialRefused",
    "CredentialsMissing",
    "Forbidden",
    "InputInvalid",
    "InteractiveRequired",
    "KeyLimitReached",
    "KeyNotActive",
    "KeyNotFound",
    "LoginTooOld",
    "MskAuthError",
    "NotFound",
    "PermissionDenied",
    "Problem",
    "RequestMalformed",
    "StoreUnavailable",
    "TooManyAttempts",
]
