# Generated from src/msk_auth/_async/verification.py by tools/generate_sync.py: change that, and run this.
"""From a credential to its principal: the look-ups, and between them the decisions of `core.authentication`, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar

from msk_auth._failures import look_up_failed
from msk_auth.core import tokens
from msk_auth.core.authentication import Authenticated, Presented, Rules, at_address, stands, within
from msk_auth.core.errors import (
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    Forbidden,
    Problem,
)
from msk_auth.core.keys import KeyValue
from msk_auth.core.logins import (
    LoginFailed,
    NotALogin,
    OpaqueToken,
    RequestLogins,
    name_of,
    verified_login,
)
from msk_auth.core.model import (
    ApiKey,
    CredentialKind,
    ExternalIdentity,
    KeyStatus,
    Owner,
    Principal,
    Session,
    UserT,
    is_same_id,
)
from msk_auth.core.store import WrongRecord
from msk_auth.core.tokens import ParsedToken, VerifiedToken
from msk_auth.users import RequestSession, in_session_of

from . import primitives
from .store import KeyStore

T = TypeVar("T")
F = TypeVar("F")


class _Keys(Protocol):
    """Finds a key: a store, or a batching reader of a store."""

    def find(self, key_id: str, /) -> ApiKey | None: ...


class LookUps(Generic[UserT]):
    """Looks up keys, owners and sessions. Each result has the requested id: callers need not check it.

    Args:
        store: Stores the keys.
        find_owner: The application's function, like the others.
        find_external_owner: The function, or None.
        find_session: The function, or None.

    Attributes:
        read_owner: The application's `find_owner`.
        read_external_owner: The application's `find_external_owner`.
    """

    def __init__(
        self,
        store: KeyStore,
        find_owner: Callable[[str], Owner[UserT] | None],
        find_external_owner: Callable[[ExternalIdentity], Owner[UserT] | None] | None,
        find_session: Callable[[str], Session | None] | None,
    ) -> None:
        self._keys: _Keys = store
        self.read_owner = find_owner
        self.read_external_owner = find_external_owner
        self._find_session = find_session

    def in_session(self, request: RequestSession) -> LookUps[UserT]:
        """These look-ups for one request, which read the owner in its session."""
        there = copy(self)
        there.read_owner = in_session_of(request, self.read_owner)
        there.read_external_owner = in_session_of(request, self.read_external_owner)
        return there

    def find_key(self, key_id: str, /) -> ApiKey | None:
        """The record of a key."""
        found = self._keys.find(key_id)
        if found is not None and found.id != key_id:
            raise WrongRecord("a key")
        return found

    def find_owner(self, owner_id: str, /) -> Owner[UserT] | None:
        """The application's user with an id; None also for an id that the application's function cannot read."""
        found = _found_by("find_owner", self.read_owner, owner_id, Owner)
        if found is not None and not is_same_id(found.id, owner_id):
            raise WrongRecord("an owner")
        return found

    def find_external_owner(self, identity: ExternalIdentity, /) -> Owner[UserT] | None:
        """The application's user for the subject of an issuer."""
        return _found_by("find_external_owner", self.read_external_owner, identity, Owner)

    def find_session(self, session_id: str, /) -> Session | None:
        """The login session with an id."""
        found = _found_by("find_session", self._find_session, session_id, Session)
        if found is not None and found.id != session_id:
            raise WrongRecord("a session")
        return found


def _found_by(
    name: str, find: Callable[[T], F | None] | None, sought: T, kind: type[F]
) -> F | None:
    """The result of a look-up function of the application; None also for an id that it cannot read, and without a function.

    Raises:
        TypeError: The function returned another type, such as the application's own user.
        StoreUnavailable: The function failed: see `look_up_failed`.
    """
    if find is None:
        return None
    try:
        found: Any = find(sought)
    except Exception as error:  # noqa: BLE001 - an application's function may raise anything
        look_up_failed(name, error)
        return None
    if found is not None and not isinstance(found, kind):
        raise TypeError(
            f"{name} returned {type(found).__qualname__}. Return {kind.__name__} of msk_auth, or None."
        )
    return found


_REST_OF_SECOND: Final = timedelta(microseconds=999_999)


class Reads(Protocol):
    """The look-ups of a verification. Each result has the requested id."""

    def find_key(self, key_id: str, /) -> ApiKey | None: ...
    def find_session(self, session_id: str, /) -> Session | None: ...
    def find_owner(self, owner_id: str, /) -> Owner[Any] | None: ...
    def find_external_owner(self, identity: ExternalIdentity, /) -> Owner[Any] | None: ...


class Verifier:
    """Verifies credentials (steps 3 to 5 of `core.authentication`).

    Exceptions of look-ups propagate: the caller turns them into a refusal.

    Args:
        rules: The application's configuration.
        reads: The look-ups.
    """

    def __init__(self, rules: Rules, reads: Reads) -> None:
        self._rules = rules
        self._reads = reads

    def authenticate(self, presented: Presented | RequestLogins, now: datetime) -> Authenticated:
        """Turn the credential of a request into a principal (steps 3 to 5)."""
        match presented:
            case KeyValue():
                record = self.verify_key(presented)
                # From here on the caller has the right secret and may learn the reason of a refusal.
                principal = self._act_by_key(record, now)
                upgrade: tuple[str, str] | None = None
                if self._rules.hasher.needs_rehash(record.digest):
                    upgrade = (record.digest, self._rules.hasher.digest(presented.reveal()))
                return Authenticated(principal, record.expires_at, upgrade=upgrade)
            case ParsedToken():
                return self._authenticate_token(presented, now)
            case OpaqueToken():
                return self._authenticate_login(presented, now)
            case of_request:
                return self._authenticate_request(of_request, now)

    def _act_by_key(self, record: ApiKey, now: datetime) -> Principal[Any]:
        """The principal of a key whose secret was presented."""
        status = record.status(now)
        if status is KeyStatus.REVOKED:
            raise CredentialRefused("key_revoked", key_id=record.id)
        if status is not KeyStatus.ACTIVE:
            raise CredentialRefused("key_expired", key_id=record.id)
        owner = self._reads.find_owner(record.owner_id)
        if not stands(owner, self._rules, record.created_at):
            raise CredentialRefused("owner_disabled", key_id=record.id)
        return Principal(
            owner,
            CredentialKind.API_KEY,
            within(owner, record.scopes),
            authenticated_at=now,
            key_id=record.id,
            expires_at=record.expires_at,
            scopes=record.scopes,
            networks=record.networks,
            resources=record.resources,
        )

    def verify_key(self, presented: KeyValue) -> ApiKey:
        """The record of a presented key with the right secret, in any state.

        An unknown id and a wrong secret take the same path, which branches only at its end. So neither the answer nor its time
        reveals the difference.

        Raises:
            CredentialRefused: `key_unknown`: the key does not exist, or the secret is wrong.
        """
        credential = presented.reveal()
        record = self._reads.find_key(presented.id)
        hasher = self._rules.hasher
        digest = hasher.decoy if record is None else record.digest
        if hasher.is_slow(digest):
            matches = primitives.run_slowly(hasher.verify, credential, digest)
        else:
            matches = hasher.verify(credential, digest)
        if record is None or matches is not True:
            raise CredentialRefused("key_unknown", key_id=presented.id)
        return record

    def _authenticate_token(self, token: ParsedToken, now: datetime) -> Authenticated:
        refusals: list[CredentialRefused] = []
        for issuer in self._rules.issuers:
            try:
                pending = issuer.pending(token)
                if pending is not None:
                    primitives.wait_for_future(pending, tokens.PENDING_SECONDS)
                verified = issuer.authenticate(token, now)
            except CredentialRefused as refusal:
                if refusal.code not in {"token_invalid", "token_expired"}:
                    raise
                # Another configuration of the same issuer may accept the token, for another kind or audience.
                refusals.append(refusal)
            else:
                if verified is not None:
                    return self._principal_of_login(verified, now)
        if refusals:
            raise min(refusals, key=lambda refusal: refusal.code == "token_invalid")
        return self._authenticate_login(token, now)

    def _authenticate_login(
        self, presented: ParsedToken | OpaqueToken, now: datetime
    ) -> Authenticated:
        verified = self._first_login(self._rules.logins, presented.reveal(), now)
        if verified is None:
            raise CredentialRefused("token_invalid")
        outcome = self._principal_of_login(verified, now)
        return outcome._replace(has_spellings=True)

    def _authenticate_request(self, presented: RequestLogins, now: datetime) -> Authenticated:
        verified = self._first_login(presented.functions, presented.request, now)
        if verified is None:
            raise CredentialsMissing
        if presented.is_foreign:
            raise Forbidden("cross_origin_refused")
        return self._principal_of_login(verified, now)

    def _principal_of_login(self, verified: VerifiedToken, now: datetime) -> Authenticated:
        """The principal of a verified token or a login (steps 3 to 5, from the session on)."""
        valid_until = verified.expires_at
        if self._rules.checks_sessions and verified.has_session:
            # Another issuer's logins have no sessions here, so this subject is the id of an owner.
            if verified.session_id is None or not isinstance(verified.subject, str):
                raise CredentialRefused("token_invalid")
            session = self._find_open_session(verified.session_id, verified.subject, now)
            if valid_until is not None and session.expires_at is not None:
                valid_until = min(valid_until, session.expires_at)
        owner = self._find_owner_of_login(verified.subject, verified.authenticated_at)
        principal = Principal(
            owner,
            CredentialKind.INTERACTIVE if verified.interactive else CredentialKind.TOKEN,
            within(owner, verified.scopes),
            authenticated_at=verified.authenticated_at,
            session_id=verified.session_id,
            expires_at=verified.expires_at,
            identity=None if isinstance(verified.subject, str) else verified.subject,
            scopes=verified.scopes,
        )
        return Authenticated(principal, valid_until, reusable=valid_until is not None)

    def _find_open_session(self, session_id: str, owner_id: str, now: datetime) -> Session:
        session = self._reads.find_session(session_id)
        if session is None or session.ended_at is not None:
            raise CredentialRefused("token_revoked")
        if not is_same_id(session.owner_id, owner_id):
            raise CredentialRefused("token_revoked")
        if session.expires_at is not None and now >= session.expires_at:
            raise CredentialRefused(
                "token_revoked",
                "This login was idle for too long or has reached its maximum age. Log in again.",
            )
        return session

    def verify_again(self, principal: Principal[Any], now: datetime) -> Principal[Any]:
        """The current principal of a credential that was verified before, or of a reference (steps 3 to 5).

        This needs no secret: it was verified before, and the public ids find all later changes.

        Raises:
            CredentialRefused, Forbidden: A request with the same credential would be refused now.
            ConfigurationError: A reference ends with its session, and this authenticator cannot look up sessions.
        """
        owner_id = principal.owner.id
        if principal.key_id is not None:
            record = self._reads.find_key(principal.key_id)
            if record is None or not is_same_id(record.owner_id, owner_id):
                raise CredentialRefused("key_unknown", key_id=principal.key_id)
            again = self._act_by_key(record, now)
            # Work that outlives its request has no address: the request that made the reference had an allowed address.
            return (
                replace(again, resumed=True)
                if principal.resumed
                else at_address(again, principal.address)
            )
        if principal.expires_at is not None and now >= principal.expires_at:
            raise CredentialRefused("token_expired")
        if principal.session_id is not None:
            if self._rules.checks_sessions:
                self._find_open_session(principal.session_id, owner_id, now)
            elif principal.resumed:
                raise ConfigurationError(
                    "The reference ends with a session, and this authenticator cannot look up sessions. Give it the find_session"
                    " of the application that made the reference."
                )
        subject = owner_id if principal.identity is None else principal.identity
        owner = self._find_owner_of_login(subject, principal.authenticated_at)
        # The application may have given an external identity to another owner meanwhile.
        if not is_same_id(owner.id, owner_id):
            raise CredentialRefused("token_revoked")
        return replace(principal, owner=owner, permissions=within(owner, principal.scopes))

    def _find_owner_of_login(
        self, subject: str | ExternalIdentity, authenticated_at: datetime | None
    ) -> Owner[Any]:
        made_at: datetime | None = None
        if isinstance(subject, str):
            owner = self._reads.find_owner(subject)
            if authenticated_at is not None:
                # A token's times are whole seconds: the login was within the following second, and the owner may have been
                # created in it.
                made_at = authenticated_at + _REST_OF_SECOND
        else:
            # No issuer gives a subject to another person later (OpenID Connect Core, section 2), and this look-up may create
            # the owner, after the login.
            owner = self._reads.find_external_owner(subject)
        if not stands(owner, self._rules, made_at):
            raise CredentialRefused("token_revoked")
        return owner

    def _first_login(
        self, functions: Iterable[Callable[[Any], object]], subject: object, now: datetime
    ) -> VerifiedToken | None:
        """The first login that one of the functions returns; None if all return None.

        Args:
            functions: The application's functions.
            subject: Their argument: the credential or the request.
            now: The current time.

        Raises:
            CredentialRefused: The login has ended.
            LoginFailed: A function raised an exception other than a problem.
            NotALogin: The result has the wrong type, or is in the future.
            Problem: A problem that a function raised.
        """
        for function in functions:
            name = name_of(function)
            try:
                answer = primitives.result_of(function(subject))
            except Problem:
                raise
            except ConfigurationError as error:
                # Raised by the library, such as by `Login(7)`: its messages show no values.
                raise NotALogin(f"the login function {name}: {error}") from None
            except Exception as error:  # noqa: BLE001 - an application's function may raise anything
                raise LoginFailed(name, error) from None
            if answer is not None:
                return verified_login(name, answer, now)
        return None
