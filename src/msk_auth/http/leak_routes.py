"""The two routes that ask nobody to log in, without a framework: revocation by possession, and reports of leaks.

::

    POST   /api/revoke          whoever shows a key ends it        public
    POST   /api/leaks/github    GitHub's secret scanning reports   public, signed

An adapter asks the application's throttle first and reads the body only then. What a request has in `Authorization`
is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import parse_qsl

from msk_auth.core.errors import ConfigurationError, FieldError, InputInvalid
from msk_auth.leaks import LeakLabel

from .answers import FORM_TYPE, Answer, json_answer
from .key_routes import read_object, unknown_members

REVOKE: Final = "revoke_presented_key"
REPORT: Final = "receive_leak_report"
"""The names of the routes."""

MAX_REVOCATION: Final = 4096
"""How many bytes of a request to revoke are read. A key has 55, in a form at most three times as many."""

IDENTIFIER_HEADER: Final = "github-public-key-identifier"
SIGNATURE_HEADER: Final = "github-public-key-signature"

REVOKED: Final = json_answer(200, {})
"""The one answer, whatever was shown (RFC 7009, section 2.2)."""

_MAX_FIELDS: Final = 20
_KNOWN: Final = frozenset({"token", "token_type_hint"})


def check_path(path: str) -> None:
    """Find out while starting whether a route can be served under this path.

    Raises:
        ConfigurationError: It does not begin with a slash, or ends with one.
    """
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigurationError(
            f"The path {path!r} does not work. Write it with a slash at its beginning and none at its"
            " end, such as '/api/revoke'."
        )


def check_receiver(receiver: object, kind: type[object]) -> None:
    """Find out while starting whether an adapter can use a receiver.

    Raises:
        ConfigurationError: It is of the other kind.
    """
    if not isinstance(receiver, kind):
        raise ConfigurationError(
            f"leak_route needs {kind.__name__}(…) here, not {type(receiver).__name__}: it has to wait"
            " in the way that this framework does."
        )


def parse_revocation(body: bytes, content_type: str | None) -> str:
    """Read `token=…` as a form, which RFC 7009 sends, or `{"token": …}`.

    Returns:
        What is to be revoked, in whatever form it is.

    Raises:
        InputInvalid: There is no token, or several; no message repeats one.
    """
    if _is_form(content_type):
        return _parse_form(body)
    members = read_object(body, content_type)
    wrong = unknown_members(members, _KNOWN)
    token = members.get("token")
    if not isinstance(token, str):
        said = "Send the key as text." if "token" in members else "This member is required."
        wrong.append(FieldError("token", said))
        token = ""
    if wrong:
        raise InputInvalid(wrong)
    return token


def not_a_key() -> InputInvalid:
    """What is said about a token that is no key. Silence would let somebody believe that a cut-off key is dead."""
    return InputInvalid.of(
        "token",
        "This is not a complete API key, so nothing was revoked. Send the whole value, beginning"
        " with its prefix.",
    )


def labels_answer(labels: Sequence[LeakLabel]) -> Answer:
    """The answer to a report."""
    return json_answer(200, [label.document() for label in labels])


def only_value(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """The value of a header that is there exactly once, from the headers of an ASGI scope."""
    wanted = name.encode()
    values = [value for key, value in headers if key.lower() == wanted]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _is_form(content_type: str | None) -> bool:
    return content_type is not None and content_type.partition(";")[0].strip().lower() == FORM_TYPE


def _parse_form(body: bytes) -> str:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InputInvalid.of("", "The form cannot be read.") from None
    # Names that nobody knows are ignored, as OAuth clients expect (RFC 6749, section 3.2).
    tokens = [value for name, value in pairs if name == "token"]
    if len(tokens) != 1:
        said = "Send one token." if tokens else "This member is required."
        raise InputInvalid.of("token", said)
    return tokens[0]
