"""Authentication, from the credential to the principal, written once for both authenticators.

Authentication takes these steps in this order. A failed check ends the request:

1. Read the header (`credentials.read_bearer`). A bearer credential decides alone: only without one the application's
   functions look for a login elsewhere in the request.
2. Distinguish a key from a token, and check its form: no I/O for a malformed one.
3. A key: find the record, compare the digest, and only then look at revoked and expired.
   A token: its issuer checks signature and claims. One of no issuer, and any other text that does not begin as a key
   does: the application's functions, in their order, say whose login it is. Then that its session is open.
4. Find the owner, read anew. Refuse a disabled owner, and a credential that is older than its owner: it belongs to a
   predecessor with the same id. Under a lease refuse an owner that a request could change.
5. The effective permissions are the owner's permissions now, cut down to the key's scopes, or to what the token was granted.
6. A key that has networks is refused from an address outside of them, also where a lease covers steps 3 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeGuard

from . import issuer as issuing
from . import steps
from .compact import ParsedToken, check_opaque
from .credentials import read_bearer
from .digest import KeyHasher
from .errors import (
    AddressNotAllowed,
    ConfigurationError,
    CredentialsMissing,
    CrossOriginRefused,
    KeyExpired,
    KeyMalformed,
    KeyRevoked,
    KeyUnknown,
    OwnerDisabled,
    TokenExpired,
    TokenInvalid,
    TokenRevoked,
)
from .immutability import check_shareable
from .issuer import TokenIssuer, VerifiedToken
from .keys import KeyFormat, KeyValue
from .logins import OpaqueToken, RequestLogins, first_login, questions_about
from .model import (
    ApiKey,
    CredentialKind,
    ExternalIdentity,
    KeyStatus,
    Owner,
    Principal,
    Session,
)
from .networks import contain
from .references import Reference
from .steps import Flow

_REST_OF_SECOND: Final = timedelta(microseconds=999_999)


class Rules(NamedTuple):
    """What an application configured, as far as decisions depend on it.

    Attributes:
        key_format: The prefixes of the keys.
        hasher: How keys are digested.
        issuers: Those whose JWTs are accepted.
        logins: The application's functions that return a `Login` for a credential of their own.
        checks_sessions: Whether the application has a `find_session`.
        shares_principals: Whether several requests may get the same principal, as they do under a lease.
        delegates: Whether the application has a `may_act_for`.
    """

    key_format: KeyFormat
    hasher: KeyHasher
    issuers: Sequence[TokenIssuer]
    logins: Sequence[Callable[[str], object]]
    checks_sessions: bool
    shares_principals: bool
    delegates: bool = False

    def check(self) -> Rules:
        """These rules.

        Raises:
            ConfigurationError: They contradict each other.
        """
        chosen: dict[str, list[object]] = {}
        for issuer in self.issuers:
            for name in issuer.names:
                others = chosen.setdefault(name, [])
                if issuer.selects in others or (others and None in (issuer.selects, *others)):
                    raise ConfigurationError(
                        f"Two token profiles have the same issuer, {name!r}, and accept the same tokens. Configure one"
                        " issuer several times only for different audiences, kinds or tenants."
                    )
                others.append(issuer.selects)
        return self


class Authenticated(NamedTuple):
    """The outcome of `authenticate`.

    Attributes:
        principal: Who the request acts as.
        valid_until: When the credential itself ends, however it is cached; None means it does not.
        reusable: Whether a lease may cover it. It may not if only the application knows when the credential ends.
        upgrade: The stored digest and the one that should take its place, if the scheme or the
            pepper changed.
        has_spellings: Whether other texts may be the same credential. What decodes it is the application's, and decoders
            such as that of base64 may ignore characters.
    """

    principal: Principal[Any]
    valid_until: datetime | None
    reusable: bool = True
    upgrade: tuple[str, str] | None = None
    has_spellings: bool = False


Presented: TypeAlias = KeyValue | ParsedToken | OpaqueToken
"""A bearer credential, of which nothing is believed but its form."""


def read_credential(
    rules: Rules,
    authorization: Sequence[str | bytes],
    elsewhere: RequestLogins | None = None,
) -> Presented | RequestLogins:
    """What a request presents, by its form alone (steps 1 and 2): garbage costs no look-up and no cryptography.

    Args:
        rules: What the application configured.
        authorization: The values of every `Authorization` header.
        elsewhere: What may find a login in the rest of the request. Asked only if the header has no bearer credential:
            what it has is accepted or refused, and never combined with anything.

    Raises:
        CredentialsMissing: Nothing of our kind.
        RequestMalformed: The header cannot be read.
        KeyMalformed, TokenInvalid: It cannot be a credential.
    """
    credential = read_bearer(authorization)
    if credential is None:
        if elsewhere is None:
            raise CredentialsMissing
        return elsewhere
    if rules.key_format.claims(credential):
        return rules.key_format.parse(credential)
    if rules.logins and not rules.issuers:
        check_opaque(credential)
        return OpaqueToken(credential)
    try:
        # A JWT has dots and a key never has. What is neither was most likely meant as a key.
        if "." in credential:
            return ParsedToken(credential)
        return rules.key_format.parse(credential)
    except (KeyMalformed, TokenInvalid):
        if not rules.logins:
            raise
        check_opaque(credential, [name for issuer in rules.issuers for name in issuer.names])
        return OpaqueToken(credential)


def authenticate(
    rules: Rules, presented: Presented | RequestLogins, now: datetime
) -> Flow[Authenticated]:
    """Turn what a request presents into a principal (steps 3 to 5)."""
    match presented:
        case ParsedToken():
            return (yield from _authenticate_token(rules, presented, now))
        case OpaqueToken():
            return (yield from _authenticate_login(rules, presented, now))
        case RequestLogins():
            return (yield from _authenticate_request(rules, presented, now))
        case key:
            record = yield from verify_key(rules, key)
    # From here on the caller holds the right secret and may learn why it does not work.
    principal = yield from _act_by_key(rules, record, now)
    upgrade: tuple[str, str] | None = None
    if rules.hasher.needs_rehash(record.digest):
        upgrade = (record.digest, rules.hasher.digest(key.reveal()))
    return Authenticated(principal, record.expires_at, upgrade=upgrade)


def _act_by_key(rules: Rules, record: ApiKey, now: datetime) -> Flow[Principal[Any]]:
    """The principal of a key whose secret was presented."""
    status = record.status(now)
    if status is KeyStatus.REVOKED:
        raise KeyRevoked(key_id=record.id)
    if status is not KeyStatus.ACTIVE:
        raise KeyExpired(key_id=record.id)
    owner = yield from steps.find_owner(record.owner_id)
    if not _stands(owner, rules, record.created_at):
        raise OwnerDisabled(key_id=record.id)
    return Principal(
        owner,
        CredentialKind.API_KEY,
        _within(owner, record.scopes),
        authenticated_at=now,
        key_id=record.id,
        expires_at=record.expires_at,
        scopes=record.scopes,
        networks=record.networks,
    )


def at_address(principal: Principal[Any], address: str | None) -> Principal[Any]:
    """The principal of a request that comes from an address (step 6).

    Args:
        principal: As its credential was verified, perhaps for another request.
        address: Of the client, as the server knows it; None if it does not.

    Raises:
        AddressNotAllowed: The key does not work from there. Only the holder of the right secret learns it.
    """
    if principal.networks is None:
        return principal
    if not contain(principal.networks, address):
        raise AddressNotAllowed(key_id=principal.key_id)
    return replace(principal, address=address)


def find_presented(rules: Rules, credential: str) -> Flow[ApiKey]:
    """The record of a presented key with the right secret, in any state.

    Raises:
        KeyMalformed: The form or the checksum is wrong; the store was not read.
        KeyUnknown: There is no such key, or the secret is wrong.
    """
    return (yield from verify_key(rules, rules.key_format.parse(credential)))


def verify_key(rules: Rules, presented: KeyValue) -> Flow[ApiKey]:
    """As :func:`find_presented`, for a key that was parsed already.

    An unknown id and a wrong secret take the same path, which branches only at its end. So neither the answer nor its time
    reveals which of the two it was.
    """
    credential = presented.reveal()
    record = yield from steps.find_key(presented.id)
    digest = rules.hasher.decoy if record is None else record.digest
    if rules.hasher.is_slow(digest):
        matches = yield from steps.verify_off_loop(credential, digest)
    else:
        matches = rules.hasher.verify(credential, digest)
    if record is None or matches is not True:
        raise KeyUnknown(key_id=presented.id)
    return record


def _authenticate_token(rules: Rules, token: ParsedToken, now: datetime) -> Flow[Authenticated]:
    refusals: list[TokenExpired | TokenInvalid] = []
    for issuer in rules.issuers:
        try:
            pending = issuer.pending(token)
            if pending is not None:
                yield from steps.wait_for_future(pending, issuing.PENDING_SECONDS)
            verified = issuer.authenticate(token, now)
        except (TokenExpired, TokenInvalid) as refusal:
            # It may be of another kind, or for another audience, that the application configured for the same issuer.
            refusals.append(refusal)
        else:
            if verified is not None:
                return (yield from _principal_of_login(rules, verified, now))
    if refusals:
        raise min(refusals, key=lambda refusal: isinstance(refusal, TokenInvalid))
    return (yield from _authenticate_login(rules, token, now))


def _authenticate_login(
    rules: Rules, presented: ParsedToken | OpaqueToken, now: datetime
) -> Flow[Authenticated]:
    verified = yield from first_login(questions_about(presented.reveal(), rules.logins), now)
    if verified is None:
        raise TokenInvalid
    outcome = yield from _principal_of_login(rules, verified, now)
    return outcome._replace(has_spellings=True)


def _authenticate_request(
    rules: Rules, presented: RequestLogins, now: datetime
) -> Flow[Authenticated]:
    verified = yield from first_login(presented.questions, now)
    if verified is None:
        raise CredentialsMissing
    if presented.is_foreign:
        raise CrossOriginRefused
    return (yield from _principal_of_login(rules, verified, now))


def _principal_of_login(
    rules: Rules, verified: VerifiedToken, now: datetime
) -> Flow[Authenticated]:
    """The principal of a verified token or a login (steps 3 to 5, from the session on)."""
    valid_until = verified.expires_at
    if rules.checks_sessions and verified.has_session:
        # Another issuer has no sessions here, so this subject is the id of an owner.
        if verified.session_id is None or not isinstance(verified.subject, str):
            raise TokenInvalid
        session = yield from _find_open_session(verified.session_id, verified.subject, now)
        if valid_until is not None and session.expires_at is not None:
            valid_until = min(valid_until, session.expires_at)
    owner = yield from _find_owner_of_login(rules, verified.subject, verified.authenticated_at)
    principal = Principal(
        owner,
        CredentialKind.INTERACTIVE if verified.interactive else CredentialKind.TOKEN,
        _within(owner, verified.scopes),
        authenticated_at=verified.authenticated_at,
        session_id=verified.session_id,
        expires_at=verified.expires_at,
        identity=None if isinstance(verified.subject, str) else verified.subject,
        scopes=verified.scopes,
    )
    return Authenticated(principal, valid_until, reusable=valid_until is not None)


def _find_open_session(session_id: str, owner_id: str, now: datetime) -> Flow[Session]:
    session = yield from steps.find_session(session_id)
    if session is None or session.owner_id != owner_id or session.ended_at is not None:
        raise TokenRevoked
    if session.expires_at is not None and now >= session.expires_at:
        raise TokenRevoked(
            "This login was idle for too long or has reached its longest time. Log in again."
        )
    return session


def verify_again(rules: Rules, principal: Principal[Any], now: datetime) -> Flow[Principal[Any]]:
    """The principal, now, of a credential that was verified before (steps 3 to 5).

    This needs no secret: it was right, and the public ids find all that has changed since.

    Raises:
        CredentialRefused, AddressNotAllowed: A request with the same credential would be refused now.
    """
    if principal.key_id is not None:
        again = yield from _act_by_key_again(rules, principal.key_id, principal.owner.id, now)
        # Work that outlives its request has no address: the key was presented at one when the reference was made.
        return (
            replace(again, resumed=True)
            if principal.resumed
            else at_address(again, principal.address)
        )
    subject = principal.owner.id if principal.identity is None else principal.identity
    owner = yield from _find_owner_of_login_again(
        rules,
        subject,
        owner_id=principal.owner.id,
        session_id=principal.session_id,
        authenticated_at=principal.authenticated_at,
        expires_at=principal.expires_at,
        now=now,
    )
    return replace(principal, owner=owner, permissions=_within(owner, principal.scopes))


def resume(rules: Rules, reference: Reference, now: datetime) -> Flow[Principal[Any]]:
    """The principal, now, of a reference with the right signature (steps 3 to 5). It is never interactive.

    Raises:
        CredentialRefused: The key or the login has ended, or the owner is gone.
        ConfigurationError: The login ends with its session, and sessions cannot be looked up here.
    """
    if reference.session_id is not None and not rules.checks_sessions:
        raise ConfigurationError(
            "The reference ends with a session, and this authenticator looks none up. Give it the find_session of the"
            " application that made the reference."
        )
    if reference.key_id is not None:
        principal = yield from _act_by_key_again(rules, reference.key_id, reference.owner_id, now)
        return replace(principal, resumed=True)
    owner = yield from _find_owner_of_login_again(
        rules,
        reference.owner_id,
        owner_id=reference.owner_id,
        session_id=reference.session_id,
        authenticated_at=reference.made_at,
        expires_at=reference.ends_at,
        now=now,
    )
    return Principal(
        owner,
        CredentialKind.TOKEN,
        _within(owner, reference.scopes),
        authenticated_at=reference.made_at,
        session_id=reference.session_id,
        expires_at=reference.ends_at,
        scopes=reference.scopes,
        resumed=True,
    )


def _act_by_key_again(
    rules: Rules, key_id: str, owner_id: str, now: datetime
) -> Flow[Principal[Any]]:
    """The principal of a key whose secret was presented before."""
    record = yield from steps.find_key(key_id)
    if record is None or record.owner_id != owner_id:
        raise KeyUnknown(key_id=key_id)
    return (yield from _act_by_key(rules, record, now))


def _find_owner_of_login_again(
    rules: Rules,
    subject: str | ExternalIdentity,
    *,
    owner_id: str,
    session_id: str | None,
    authenticated_at: datetime | None,
    expires_at: datetime | None,
    now: datetime,
) -> Flow[Owner[Any]]:
    """The owner of a login that was verified before, if it has not ended."""
    if expires_at is not None and now >= expires_at:
        raise TokenExpired
    if rules.checks_sessions and session_id is not None:
        yield from _find_open_session(session_id, owner_id, now)
    owner = yield from _find_owner_of_login(rules, subject, authenticated_at)
    # The application may have given an external identity to another owner since.
    if owner.id != owner_id:
        raise TokenRevoked
    return owner


def _find_owner_of_login(
    rules: Rules, subject: str | ExternalIdentity, authenticated_at: datetime | None
) -> Flow[Owner[Any]]:
    made_at: datetime | None = None
    if isinstance(subject, str):
        owner = yield from steps.find_owner(subject)
        if authenticated_at is not None:
            # A token's times are whole seconds: the login was within the one that follows, and the owner may have begun
            # in it.
            made_at = authenticated_at + _REST_OF_SECOND
    else:
        # No issuer gives a subject to another person later (OpenID Connect Core, section 2), and the owner may have been
        # made by this very look-up, after the login.
        owner = yield from steps.find_external_owner(subject)
    if not _stands(owner, rules, made_at):
        raise TokenRevoked
    return owner


def _stands(
    owner: Owner[Any] | None, rules: Rules, made_at: datetime | None
) -> TypeGuard[Owner[Any]]:
    """Whether there is an owner, who is not disabled and was there when the credential was made.

    Args:
        owner: What was found.
        rules: What the application configured.
        made_at: When the credential was made; None if that is no question.

    Raises:
        NotShareable: Several requests would share the owner, and one of them could change it.
    """
    if owner is None or owner.disabled:
        return False
    if made_at is not None and not owner.existed_at(made_at):
        return False
    if rules.shares_principals:
        check_shareable(owner, "owner")
    return True


def _within(owner: Owner[Any], scopes: frozenset[str] | None) -> frozenset[str]:
    """The owner's permissions now, cut down to scopes (step 5)."""
    return owner.permissions if scopes is None else owner.permissions & scopes


def no_user(principal: Principal[Any]) -> NoReturn:
    """Refuse a principal for which the application has no user, as one whose owner is gone.

    Raises:
        OwnerDisabled: It presented a key.
        TokenRevoked: It presented a login, or another token.
    """
    if principal.kind is CredentialKind.API_KEY:
        raise OwnerDisabled("There is no user for the owner of this key.", key_id=principal.key_id)
    raise TokenRevoked("There is no user for this login.")
