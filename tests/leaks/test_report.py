"""What is read out of a report: any bytes are read or refused, and no place shows a secret."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import case
from tests.leaks.support import match, report

from msk_auth import KeyFormat
from msk_auth._leak_reports import MAX_MATCHES, MAX_REPORT, labels, read_report, trimmed_url
from msk_auth.errors import InputInvalid
from msk_auth.events import LeakLocation

KEY = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MEMBERS = {"token": JSON, "type": JSON, "url": JSON, "source": JSON, "more": JSON}
ENTRIES = JSON | st.fixed_dictionaries({}, optional=MEMBERS)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with suppress(InputInvalid):
        assert isinstance(read_report(body), tuple)


@given(st.lists(ENTRIES, max_size=6))
@example([{"token": "\ud800", "type": "\ud800", "url": "https://\ud800/", "source": "\ud800"}])
@example([{"token": "x", "url": "https://[::1"}])
@example([{"token": "x", "url": "https://a:99999999/"}])
def test_every_text_that_was_found_is_looked_at(entries: list[Any]) -> None:
    found = read_report(json.dumps(entries).encode())
    sent = [entry for entry in entries if isinstance(entry, dict)]
    assert [each.found.key for each in found] == [
        entry["token"] for entry in sent if isinstance(entry.get("token"), str) and entry["token"]
    ]
    for each in found:
        (document,) = labels([each], [None])
        assert len(document["token_hash"]) == 64
        assert document["label"] == "false_positive"
        assert len(document["token_type"]) <= 200
        location = each.found.location
        assert location.reporter == "github"
        assert len(location.source) <= 40
        assert location.url is None or len(location.url) <= 500
        if len(each.found.key) > 5:
            assert each.found.key not in repr(each)


def test_what_is_no_list_is_refused() -> None:
    for body in (
        b"", b"{}", b"null", b'"x"', b"[", b"\xff", b"[" * 100_000, b"[" + b"9" * 10_000 + b"]",
    ):  # fmt: skip
        with case(body[:10]), pytest.raises(InputInvalid):
            read_report(body)


def test_a_report_has_bounds() -> None:
    assert len(read_report(report(*[match("x")] * MAX_MATCHES))) == MAX_MATCHES
    with pytest.raises(InputInvalid):
        read_report(report(*[match("x")] * (MAX_MATCHES + 1)))
    full = report(match("x"))
    assert len(read_report(full + b" " * (MAX_REPORT - len(full)))) == 1
    with pytest.raises(InputInvalid):
        read_report(full + b" " * (MAX_REPORT - len(full) + 1))


def test_the_source_is_a_word() -> None:
    sources = {"Commit": "commit", "Pull_request_comment": "pull_request_comment"}
    others: list[object] = ["", "<b>", "x" * 41, 7, None]
    for source in [*sources, *others]:
        (found,) = read_report(report({"token": "x", "source": source}))
        expected = sources.get(str(source), "unknown")
        assert found.found.location == LeakLocation("github", expected, None)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://github.com/o/r/blob/1/a.txt", "https://github.com/o/r/blob/1/a.txt"),
        ("https://github.com/o/r#L1", "https://github.com/o/r"),
        ("https://github.com/o/r?token=secret", "https://github.com/o/r"),
        ("https://user:secret@github.com/o/r", "https://github.com/o/r"),
        ("https://example.com:8443/o", "https://example.com:8443/o"),
        ("https://example.com/a%20b/%C3%A9", "https://example.com/a%20b/%C3%A9"),
        (f"https://example.com/{KEY}/x", "https://example.com/***/x"),
        (f"https://example.com/%6D{KEY[1:]}", "https://example.com/***"),
        # Another key than the one that is reported.
        (
            "https://example.com/msk_000000000000_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz3ZQm9b",
            "https://example.com/msk_000000000000_***",
        ),
        ("https://example.com/" + "x" * 1000, "https://example.com/" + "x" * 480),
        ("", None),
        ("ftp://example.com/x", None),
        ("javascript:alert(1)", None),
        ("https:///x", None),
        ("https://example.com/\r\nx", None),
        ("https://example.com/é", None),
        ("https://[::1", None),
        ("https://example.com:port/", None),
    ],
)
def test_a_location_shows_no_secret(url: str, expected: str | None) -> None:
    assert trimmed_url(url, KEY) == expected


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["/", "?", "#", "@", "%"]))
def test_no_place_holds_what_was_found_there(before: str, after: str, between: str) -> None:
    key = KeyFormat().generate().reveal()
    url = f"https://example.com/{before}{between}{key}{between}{after}"
    expected = trimmed_url(url, key)
    assert expected is None or key not in expected
