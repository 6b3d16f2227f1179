"""A test environment around an authenticator: a clock, users, sessions, a store that can be made to fail."""

from __future__ import annotations

import asyncio
import base64
import functools
import gc
import inspect
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, Literal

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    Authenticator,
    CredentialKind,
    ExternalIdentity,
    KeyLimits,
    Owner,
    Principal,
    Session,
    SigningKey,
    TokenProfile,
)
from msk_auth.core.tokens import ParsedToken, TokenIssuer, VerifiedToken
from msk_auth.events import Event
from msk_auth.keys import CreatedKey
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.tokens import AlgorithmName

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
ISSUER = "https://tasks.example"
AUDIENCE = "https://tasks.example/api"
PROVIDER = "https://login.example"
ANN = ExternalIdentity(PROVIDER, "00u1", {"email": "ann@example.com"})
SECRET, OTHER_SECRET = secrets.token_bytes(32), secrets.token_bytes(32)

Driver = Literal["sync", "async"]


class FrozenClock:
    """A clock that moves only when a test advances it."""

    def __init__(self) -> None:
        self.moment = NOW
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return (self.moment - NOW).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def async_sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def advance(self, by: timedelta) -> None:
        self.moment += by


REGISTER = frozenset({"recorded_leases", "record_lease", "forget_lease"})


class ScriptedStore:
    """A memory store that records every call but those of the register, and can be made to fail or to return wrong records."""

    METHODS = frozenset(name for name in vars(MemoryKeyStore) if not name.startswith("_"))
    UNRECORDED = REGISTER

    def __init__(self, driver: Driver) -> None:
        self.inner = MemoryKeyStore()
        self.calls: list[str] = []
        self.arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.fails: dict[str, BaseException] = {}
        self.answers: dict[str, object] = {}
        self._driver = driver

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self.METHODS:
            raise AttributeError(name)

        call = functools.partial(self._call, name)
        return _async(call) if self._driver == "async" else call

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        if name not in self.UNRECORDED:
            self.calls.append(name)
            self.arguments.append((args, options))
        if name in self.fails:
            raise self.fails[name]
        if name in self.answers:
            return self.answers[name]
        return getattr(self.inner, name)(*args, **options)

    def fail(self, error: BaseException) -> None:
        """Every method raises this from now on."""
        self.fails = dict.fromkeys(self.METHODS, error)

    def get(self, key_id: str) -> ApiKey:
        record = self.inner.find(key_id)
        assert record is not None
        return record

    def put(self, record: ApiKey) -> None:
        """Write a record as an attacker with access to the database could."""
        self.inner._records[record.id] = record


class LeasingStore(ScriptedStore):
    """One that records those as well."""

    UNRECORDED = frozenset()


def _async(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: object, **options: object) -> Any:
        return function(*args, **options)

    return call


class World:
    """One authenticator of either kind, called in the same way: each method blocks and returns."""

    def __init__(
        self,
        driver: Driver,
        *,
        mixin: type = object,
        store: ScriptedStore | None = None,
        **options: Any,
    ) -> None:
        self.clock = FrozenClock()
        leases = options.get("lease") is not None
        self.store = store or (LeasingStore(driver) if leases else ScriptedStore(driver))
        self.events: list[Event] = []
        self.owners: dict[str, Any] = {
            "ann": Owner("ann", frozenset({"tasks:read", "tasks:run", "admin:config"}), "Ann"),
            "bob": Owner("bob", frozenset({"tasks:read"}), "Bob"),
        }
        self.sessions: dict[str, Any] = {"s1": Session("s1", "ann")}
        self.limits = KeyLimits()
        self.asked_owners: list[str] = []
        self.driver: Driver = driver
        self._runner = asyncio.Runner() if driver == "async" else None
        settings: dict[str, Any] = {
            "find_owner": self._find_owner,
            "find_session": self._find_session,
            "key_limits": lambda: self.limits,
            "tokens": profile(),
        }
        settings.update(options)
        if driver == "async":
            for name in (
                "find_owner",
                "find_session",
                "find_external_owner",
                "key_limits",
                "may_act_for",
            ):
                if callable(settings.get(name)) and not inspect.iscoroutinefunction(settings[name]):
                    settings[name] = _async(settings[name])
        settings.setdefault("on_event", self.events.append)
        base = AsyncAuthenticator if driver == "async" else Authenticator
        kind: Any = base if mixin is object else type("Own", (mixin, base), {})
        self.auth: Any = kind(self.store, clock=self.clock, **settings)

    def _find_owner(self, owner_id: str) -> Any:
        self.asked_owners.append(owner_id)
        return self._answer(self.owners, owner_id)

    def _find_session(self, session_id: str) -> Any:
        return self._answer(self.sessions, session_id)

    @staticmethod
    def _answer(table: dict[str, Any], name: str) -> Any:
        """What the table holds for `name`; an exception that is in it is raised."""
        answer = table.get(name)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def call(self, method: str, *args: object, **options: object) -> Any:
        result = getattr(self.auth, method)(*args, **options)
        return result if self._runner is None else self._runner.run(result)

    def verify_again(self, principal: Principal[Any]) -> Principal[Any]:
        """As an open connection is verified again, now."""
        result = self.auth._ports.verifier.verify_again(principal, self.clock.moment)
        again: Principal[Any] = result if self._runner is None else self._runner.run(result)
        return again

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()

    def login(self, owner_id: str = "ann", *, age: timedelta = timedelta(0)) -> Principal[Any]:
        return Principal(
            self.owners[owner_id],
            CredentialKind.INTERACTIVE,
            self.owners[owner_id].permissions,
            self.clock.moment - age,
        )

    def create(self, owner_id: str = "ann", **options: Any) -> CreatedKey:
        created: CreatedKey = self.call(
            "create_key", self.login(owner_id), **{"name": "ci", **options}
        )
        return created

    def key_principal(self, **options: Any) -> Principal[Any]:
        principal: Principal[Any] = self.enter(self.create(**options).value.reveal())
        return principal

    def enter(self, credential: str) -> Any:
        """Authenticate with a bearer credential."""
        return self.call("authenticate", [f"Bearer {credential}"])

    def forget_calls(self) -> None:
        self.store.calls.clear()
        self.asked_owners.clear()
        self.events.clear()


MakeWorld = Callable[..., World]
BLOCKING: MakeWorld = functools.partial(World, "sync")


@functools.cache
def signing_key(algorithm: AlgorithmName = "HS256", kid: str = "k1") -> SigningKey:
    """A key that is made once for all tests."""
    return SigningKey.generate(kid, algorithm)


def profile(*keys: SigningKey, **options: Any) -> TokenProfile:
    settings: dict[str, Any] = {"issuer": ISSUER, "audience": AUDIENCE, **options}
    return TokenProfile(keys=keys or [signing_key()], **settings)


def valid_claims(**changes: object) -> dict[str, object]:
    """The claims of an acceptable token; a change to None leaves a claim out."""
    now = int(NOW.timestamp())
    claims: dict[str, object] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ann",
        "iat": now,
        "exp": now + 3600,
        "auth_time": now,
        "jti": "t1",
        "sid": "s1",
    }
    claims.update(changes)
    return {name: value for name, value in claims.items() if value is not None}


def valid_header(key: SigningKey | None = None, **changes: object) -> dict[str, object]:
    key = signing_key() if key is None else key
    header = {"alg": key.algorithm, "kid": key.kid, "typ": "at+jwt", **changes}
    return {name: value for name, value in header.items() if value is not None}


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def message_of(header: Mapping[str, object] | str, claims: Mapping[str, object] | str) -> str:
    """What is signed of any header and claims, given as objects or as raw JSON text."""
    segments = [part if isinstance(part, str) else json.dumps(part) for part in (header, claims)]
    return ".".join(b64(text.encode("utf-8", "surrogatepass")) for text in segments)


def sign(
    header: Mapping[str, object] | str,
    claims: Mapping[str, object] | str,
    key: SigningKey | None = None,
) -> str:
    """A token with a right signature."""
    message = message_of(header, claims)
    return f"{message}.{b64((key or signing_key()).sign(message.encode()))}"


def parsed(text: str) -> ParsedToken:
    """A token as issuers get it."""
    return ParsedToken(text)


def token(**changes: object) -> str:
    """An acceptable token of the default profile, but for some claims."""
    return sign(valid_header(), valid_claims(**changes))


def functions_called(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Every function of the library that a piece of work enters, and every one of C that is called from there."""
    called: list[tuple[str, str]] = []

    def note(frame: FrameType, what: str, argument: Any) -> None:
        if what in {"call", "c_call"} and "/msk_auth/" in frame.f_code.co_filename:
            name = argument.__name__ if what == "c_call" else frame.f_code.co_name
            called.append((what, name))

    # What earlier tests left behind is not collected while this is noted.
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return called


class StubIssuer(TokenIssuer):
    """Accepts every token that names the provider as its issuer."""

    names = (PROVIDER,)
    shares_keys = False

    def __init__(
        self,
        authenticated_at: datetime | None = NOW,
        *,
        interactive: bool = True,
        subject: str | ExternalIdentity = ANN,
        scopes: frozenset[str] | None = None,
    ) -> None:
        self.scopes = scopes
        self.authenticated_at = authenticated_at
        self.interactive = interactive
        self.subject = subject

    def open(self) -> None: ...

    def close(self) -> None: ...

    def authenticate(self, token: ParsedToken, now: datetime) -> VerifiedToken | None:
        if token.claims["iss"] != PROVIDER:
            return None
        expires_at = now + timedelta(hours=1)
        return VerifiedToken(
            self.subject,
            expires_at,
            self.authenticated_at,
            None,
            False,
            self.interactive,
            self.scopes,
        )


def external_token() -> str:
    return token(iss=PROVIDER, sub="00u1")
