"""JSON objects that every parser reads alike."""

from __future__ import annotations

import pytest

from msk_auth.core.strict_json import read_object

REFUSED = [
    b"", b"[]", b"null", b'"a"', b"{", b"{}}", b'{"a": 1, "a": 1}', b'{"a": [{"b": 1, "b": 2}]}', b'{"a": NaN}', b'{"a": -Infinity}',
    b'{"a": "\xff"}', b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b'{"a":' * 100_000, b'{"a": ' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("raw", REFUSED, ids=[repr(each[:24]) for each in REFUSED])
def test_what_parsers_may_read_differently_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_object(raw)


def test_an_object_is_read_as_it_is() -> None:
    assert read_object('{"ä": [1, 2.5, null, {"a": true}], "a": ""}'.encode()) == {
        "ä": [1, 2.5, None, {"a": True}],
        "a": "",
    }
