"""The public keys of an issuer: pinned with the application, or fetched and refreshed.

A separate thread fetches a remote set, so that after the first successful fetch no request waits for a network,
on any thread or event loop. The rules:

1. The set is fetched again every four minutes. A key that the issuer added is accepted, and a key that it removed is refused,
   within five minutes, as long as the issuer answers.
2. If the issuer does not answer, the last good set is used for an hour. Then, and before the first fetch, requests get 503
   `signing_keys_unavailable`.
3. An unknown key id triggers the next fetch, but no sooner than half a minute after the previous fetch,
   however many such ids are presented.
4. A set without an attempt to refresh it for five minutes is not used: the process was suspended, or forked. A request then
   waits for a fetch, as before the first fetch, for five seconds at most.
5. A document is accepted as a whole or not at all: a failed fetch or a set without a usable key changes nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from msk_auth._fork import after_fork_in_child
from msk_auth.clock import Clock, SystemClock
from msk_auth.core.errors import ConfigurationError, SigningKeysUnavailable

if TYPE_CHECKING:
    import ssl
    from concurrent.futures import Future

    from jwt.algorithms import Algorithm

_log = logging.getLogger("msk_auth")

REFRESH_SECONDS: Final = 240.0
"""The seconds between two fetches of a remote set."""

FRESH_SECONDS: Final = 300.0
"""The seconds within which a change of the issuer's keys takes effect."""

OUTAGE_SECONDS: Final = 3600.0
"""The additional seconds for which the last good set is used while the issuer does not answer."""

PAUSE_SECONDS: Final = 30.0
"""The minimum number of seconds between two fetches."""

_FIRST_RETRY_SECONDS: Final = 5.0
# For each of two documents; a request waits for both at most, and G5 allows it five seconds.
_FETCH_SECONDS: Final = 2.0
_MAX_SAME_KID: Final = 4
MAX_KID: Final = 256
"""The maximum length of a key id, in characters."""

# Verifying with longer keys is slow, and no provider signs with them.
_RSA_BITS: Final = range(2048, 8193)
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")

ED25519: Final = ("EdDSA", "Ed25519")
"""The names of Ed25519: the older one (RFC 8037), which all libraries read, and the newer one (RFC 9864)."""

# By type and curve (RFC 7518, section 6; RFC 8037, section 2).
_ALGORITHMS_OF: Final[Mapping[tuple[object, object], tuple[str, ...]]] = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ED25519,
}

ALGORITHMS: Final = frozenset(name for names in _ALGORITHMS_OF.values() for name in names)
"""The signature algorithms of issuers' tokens: none of them uses a shared secret."""


def scheme_of(algorithm: str) -> Algorithm:
    """The signature scheme of an algorithm. A key's curve tells Ed25519 from Ed448, which has the same older name."""
    # PyJWT loads `cryptography`, which takes longer than the rest of this package. An application without tokens should not
    # wait for it, so these modules import both when the first key is made.
    from jwt import get_algorithm_by_name

    return get_algorithm_by_name("EdDSA" if algorithm == "Ed25519" else algorithm)


class VerificationKey(NamedTuple):
    """A public key of an issuer.

    Attributes:
        kid: The key's id.
        key: The key, as PyJWT reads it.
        schemes: The algorithms by the accepted values of a token's `alg`: one, both names of Ed25519, or, if the issuer names
            none, those of the key's type.
    """

    kid: str
    key: Any
    schemes: Mapping[str, Algorithm]

    def verify(self, algorithm: str, message: bytes, signature: bytes) -> bool:
        """True if `signature` is this key's signature of `message`, by one of its algorithms."""
        scheme = self.schemes.get(algorithm)
        return scheme is not None and scheme.verify(message, self.key, signature)


class KeySet(ABC):
    """The public keys of an issuer."""

    def pending(self) -> Future[None] | None:
        """The fetch for which a request waits before it calls :meth:`find`; None if the keys are available, or will not be."""
        return None

    @abstractmethod
    def find(self, kid: str) -> Sequence[VerificationKey]:
        """The keys with this id: none, or several if an issuer gives them the same id.

        Raises:
            SigningKeysUnavailable: The keys could not be fetched.
        """

    def open(self) -> None:  # noqa: B027 - not every set fetches
        """Begin to fetch in the background, if the keys are fetched."""

    def close(self) -> None:  # noqa: B027 - likewise
        """Stop fetching."""


class PinnedKeySet(KeySet):
    """A JWK set (RFC 7517) that is deployed with the application.

    Args:
        jwks: The JSON object, `{"keys": [...]}`. Keys for other uses are ignored (RFC 7517, section 5).

    Raises:
        ConfigurationError: The object is malformed, or has no usable key.
    """

    def __init__(self, jwks: Mapping[str, object]) -> None:
        listed = jwks.get("keys")
        by_kid: dict[str, tuple[VerificationKey, ...]] = {}
        # All keys: the size of a fetched document bounds their number, and reading a full document takes 20 ms.
        for jwk in cast("list[object]", listed if isinstance(listed, list) else ()):
            key = _read_key(jwk)
            if key is not None:
                by_kid[key.kid] = (*by_kid.get(key.kid, ()), key)[:_MAX_SAME_KID]
        if not by_kid:
            raise ConfigurationError("This JWK set has no key for verifying tokens.")
        self._by_kid = by_kid

    def find(self, kid: str) -> Sequence[VerificationKey]:
        """See :class:`KeySet`."""
        return self._by_kid.get(kid, ())


class _State(NamedTuple):
    """The state of a set, replaced as a whole.

    Attributes:
        keys: The last good set.
        fetched_at: The time before its fetch, on the monotonic clock.
        tried_at: The time before the last fetch that ended, successful or not.
    """

    keys: PinnedKeySet | None = None
    fetched_at: float = -math.inf
    tried_at: float = -math.inf


class RemoteKeySet(KeySet):
    """An issuer's keys, fetched and refreshed by a thread of this object.

    The thread starts when the authenticator is opened, or with the first token, and ends with :meth:`close`, which closing
    the authenticator calls. It is a daemon thread. A forked child starts its own thread. Several threads, event loops
    and authenticators can share a set.

    Args:
        issuer: The `iss`. The discovery document (OpenID Connect Discovery 1.0, section 4) must name this issuer and a `jwks_uri`.
        jwks_uri: The address of the keys, for issuers without discovery.
        ssl_context: The trusted certificates; None for those of this machine.
        headers: Called before each fetch for headers to send, such as a pod's token for its cluster.
        clock: The source of time.

    Raises:
        ConfigurationError: A URL is not https (or http to this machine).
    """

    def __init__(
        self,
        issuer: str,
        *,
        jwks_uri: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        headers: Callable[[], Mapping[str, str]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        from ._fetch import check_url

        try:
            check_url(issuer if jwks_uri is None else jwks_uri)
        except ValueError as error:
            raise ConfigurationError(f"Keys cannot be fetched: {error}.") from error
        self.issuer = issuer
        self._configured_uri = jwks_uri
        self._context = ssl_context
        self._headers = headers
        self._clock: Clock = SystemClock() if clock is None else clock
        self._state = _State()
        self._renew()
        after_fork_in_child(self._renew)

    def __repr__(self) -> str:
        return f"<RemoteKeySet {self.issuer!r}>"

    def _renew(self) -> None:
        # Also in a forked child, which has only the forking thread. Fetched keys stay valid there.
        from concurrent.futures import Future

        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = self._wake = threading.Event()
        self._wanted = False
        self._landed: Future[None] = Future()

    def pending(self) -> Future[None] | None:
        """See :class:`KeySet`."""
        landed = self._landed
        is_usable = self._usable() is not None
        if is_usable or self._clock.monotonic() - self._state.tried_at < _FIRST_RETRY_SECONDS:
            return None
        self._wanted = True
        self._wake.set()
        return landed

    def find(self, kid: str) -> Sequence[VerificationKey]:
        """See :class:`KeySet`."""
        keys = self._usable()
        if keys is None:
            since = self._clock.monotonic() - self._state.tried_at
            wait = max(1, math.ceil(_FIRST_RETRY_SECONDS - min(since, _FIRST_RETRY_SECONDS)))
            raise SigningKeysUnavailable(wait)
        found = keys.find(kid)
        if not found:
            self._wanted = True
            self._wake.set()
        return found

    def open(self) -> None:
        """Begin to fetch in the background."""
        with self._lock:
            if self._thread is not None and not self._stop.is_set():
                return
            self._stop, self._wake = threading.Event(), threading.Event()
            thread = threading.Thread(
                target=self._keep_fresh,
                args=(self._stop, self._wake),
                name="msk_auth keys",
                daemon=True,
            )
            thread.start()
            # Only now: a process that is out of threads tries again with the next token.
            self._thread = thread

    def close(self) -> None:
        """End the thread. The next token starts another thread."""
        with self._lock:
            self._stop.set()
            self._wake.set()
            self._thread = None

    def _usable(self) -> PinnedKeySet | None:
        """The keys, if they may be used now (rules 2 and 4)."""
        if self._thread is None:
            self.open()
        keys, fetched_at, tried_at = self._state
        now = self._clock.monotonic()
        if now - fetched_at <= FRESH_SECONDS:
            return keys
        was_tried = now - tried_at <= FRESH_SECONDS
        return keys if was_tried and now - fetched_at <= FRESH_SECONDS + OUTAGE_SECONDS else None

    def _keep_fresh(self, stop: threading.Event, wake: threading.Event) -> None:
        while not stop.is_set():
            began = self._clock.monotonic()
            self._refresh(began, stop)
            self._wait(began, stop, wake)

    def _wait(self, began: float, stop: threading.Event, wake: threading.Event) -> None:
        """Return when the next fetch is due (rules 1 and 3)."""
        state = self._state
        if state.keys is None:
            pause = due = _FIRST_RETRY_SECONDS
        else:
            pause = PAUSE_SECONDS
            due = REFRESH_SECONDS if state.fetched_at == began else PAUSE_SECONDS
        while not stop.is_set():
            # Including suspension: the clock continues while the machine sleeps.
            elapsed = self._clock.monotonic() - began
            remaining = (pause if self._wanted else due) - elapsed
            if remaining <= 0:
                break
            wake.wait(remaining)
            wake.clear()
        self._wanted = False

    def _refresh(self, began: float, stop: threading.Event) -> None:
        from concurrent.futures import Future

        try:
            keys = self._fetch()
        except Exception as error:  # noqa: BLE001 - whatever it is, the last good set stays
            self._state = self._state._replace(tried_at=began)
            # After close() the authenticator is closed too, and needs no keys.
            if not stop.is_set():
                _log.warning(
                    "the keys of the issuer %r could not be fetched: %s", self.issuer, error
                )
        else:
            self._state = _State(keys, began, began)
        with self._lock:
            landed, self._landed = self._landed, Future()
        landed.set_result(None)

    def _fetch(self) -> PinnedKeySet:
        from ._fetch import fetch_json

        headers = None if self._headers is None else self._headers()

        def fetch(url: str) -> dict[str, object]:
            return fetch_json(url, seconds=_FETCH_SECONDS, context=self._context, headers=headers)

        uri: object = self._configured_uri
        if uri is None:
            document = fetch(self.issuer.rstrip("/") + "/.well-known/openid-configuration")
            # OpenID Connect Discovery 1.0, section 4.3.
            if document.get("issuer") != self.issuer:
                raise ValueError(f"the discovery document is of {document.get('issuer')!r}")
            uri = document.get("jwks_uri")
        if not isinstance(uri, str):
            raise ValueError("the discovery document has no jwks_uri")  # noqa: TRY004 - what was read
        return PinnedKeySet(fetch(uri))


def _read_key(jwk: object) -> VerificationKey | None:
    """A key of a set; None if it cannot verify tokens."""
    if not isinstance(jwk, dict):
        return None
    members = cast("dict[str, Any]", jwk)
    kid, operations = members.get("kid"), members.get("key_ops", ["verify"])
    if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID:
        return None
    if members.get("use", "sig") != "sig" or "d" in members:
        # A key for another use, or a private key, which is compromised.
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    kind, alg = members.get("kty"), members.get("alg")
    curve = None if kind == "RSA" else members.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return None
    names = _ALGORITHMS_OF.get((kind, curve), ())
    # The two names of Ed25519 mean the same on this curve (RFC 9864, section 2.2).
    if alg is not None and not (names is ED25519 and alg in ED25519):
        names = tuple(name for name in names if name == alg)
    return _load(kid, members, names) if names else None


def _load(kid: str, members: dict[str, Any], names: tuple[str, ...]) -> VerificationKey | None:
    schemes = {name: scheme_of(name) for name in names}
    try:
        key: Any = next(iter(schemes.values())).from_jwk(members)
        if members["kty"] == "RSA" and key.key_size not in _RSA_BITS:
            return None
    except Exception:  # noqa: BLE001 - one broken key must not break the set, whatever is wrong with it
        return None
    return VerificationKey(kid, key, schemes)
