"""The segments of a JWT, as they are written and kept. What is refused is in `tests/security/test_jwt_attacks.py`."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode

import pytest
from tests.cases import refused_with
from tests.core.support import b64 as encoded
from tests.core.support import token

from msk_auth.core.tokens import MAX_TOKEN_LENGTH, ParsedToken, encode_segment


def with_header_of(length: int) -> str:
    """A token whose first segment has this length."""
    filler = "x" * (length * 3 // 4 - len(json.dumps({"x": ""})))
    header = encoded(json.dumps({"x": filler}).encode())
    assert len(header) == length
    return f"{header}.{encoded(b'{}')}."


def test_a_parsed_token_reveals_the_token() -> None:
    presented = token()
    assert ParsedToken(presented).reveal() == presented


def test_a_token_may_be_as_long_as_the_limit() -> None:
    longest = "e30.e30.".ljust(MAX_TOKEN_LENGTH, "A")
    assert ParsedToken(longest).reveal() == longest
    with refused_with("token_invalid"):
        ParsedToken(longest + "AA")


def test_a_segment_is_json_without_spaces() -> None:
    segment = encode_segment({"alg": "HS256", "crit": ["a", "b"]})
    assert urlsafe_b64decode(segment + "==") == b'{"alg":"HS256","crit":["a","b"]}'


@pytest.mark.parametrize(("length", "is_kept"), [(256, True), (258, False)])
def test_a_short_header_is_decoded_once_and_a_long_one_is_not_kept(
    length: int, *, is_kept: bool
) -> None:
    presented = with_header_of(length)
    assert (ParsedToken(presented).header is ParsedToken(presented).header) is is_kept
