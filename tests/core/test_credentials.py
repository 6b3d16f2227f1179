"""The reader of the `Authorization` header (RFC 6750, section 2.1; RFC 9110, sections 5.5 and 11)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case, refused_with
from tests.contract.case import Case
from tests.contract.header_cases import header_cases
from tests.contract.world import fill

from msk_auth import KeyFormat
from msk_auth.core.authentication import MAX_HEADER_LENGTH, bearer_of_key, read_bearer
from msk_auth.errors import RequestMalformed

KEY = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"
JWT = "eyJhbGciOiJFUzI1NiJ9.e30.c2ln"

# The grammar is a table of the adapters' contract, put to the reader itself as text and as bytes. Its other cases are about
# what stands elsewhere in a request.
GRAMMAR = [
    each
    for each in header_cases()
    if each.request == "GET /me" and {name.lower() for name, _ in each.headers} == {"authorization"}
]
NAMES = {"key": KEY, "jwt": JWT, "key_id": "AAAAAAAAAAAA"}

# What no server hands over as text, but a caller of `authenticate` may.
OTHER_TEXTS = [
    "Bearer ｋey",
    # What ignoring case in Unicode would take for a k and an s.
    "Bearer \u212aey",
    "Bearer \u017f",
    f"Bearer\u3000{KEY}",
    f"\ufeffBearer {KEY}",
    "ＢＥＡＲＥＲ x",
    "Bearer \ud800",
    "Bearer\u2028x",
]


def test_a_header_is_read_as_the_contract_has_it() -> None:
    for each in GRAMMAR:
        sent = [fill(value, NAMES) for _, value in each.headers]
        for headers in (sent, [value.decode("latin-1") for value in sent]):
            with case(each.name):
                check(each, headers)


def check(each: Case, headers: Sequence[str | bytes]) -> None:
    match each.code:
        case "request_malformed":
            with pytest.raises(RequestMalformed) as refused:
                read_bearer(headers)
            assert (refused.value.status, refused.value.code) == (400, "request_malformed")
            # RFC 6750, section 3.1.
            assert refused.value.challenge() == {"error": "invalid_request"}
        case "credentials_missing":
            assert read_bearer(headers) is None
        case _:
            assert read_bearer(headers) == fill(each.headers[0][1], NAMES).split()[1].decode()


def test_other_characters_are_malformed() -> None:
    for header in OTHER_TEXTS:
        for sent in (header, header.encode("utf-8", "surrogatepass")):
            with case(sent), pytest.raises(RequestMalformed):
                read_bearer([sent])


def test_no_header_is_no_credentials() -> None:
    assert read_bearer([]) is None


@pytest.mark.parametrize(
    "headers",
    [
        [f"Bearer {KEY}", f"Bearer {KEY}"],
        [f"Bearer {KEY}", f"Bearer {JWT}"],
        [f"Bearer {KEY}", "Basic abc"],
        ["Basic abc", f"Bearer {KEY}"],
        ["", f"Bearer {KEY}"],
        ["", ""],
        [b"Basic abc", b"Basic abc"],
        [f"Bearer {KEY}"] * 1000,
        # A line break is no white space around a value.
        [b"Digest a=b\n", b"c=d"],
    ],
    ids=range(9),
)
def test_several_headers_with_credentials_are_malformed(headers: list[str | bytes]) -> None:
    # RFC 9110, section 5.3: the field is no list. RFC 6750, section 2: one method in each request.
    with pytest.raises(RequestMalformed, match="several Authorization headers"):
        read_bearer(headers)


@pytest.mark.parametrize(
    "headers",
    [
        ['Digest a="b"', 'c="d"'],
        ["Digest a=b ", "\tc=d"],
        [b"Digest a=b", b"c=d", b"e=f"],
        ["X a=b", "c=d"],
    ],
    ids=range(4),
)
def test_parameters_of_another_scheme_in_several_headers_are_ignored(
    headers: list[str | bytes],
) -> None:
    assert read_bearer(headers) is None


@given(st.lists(st.one_of(st.binary(), *map(st.just, [b"Bearer a", b'Digest a="b"', b"c=d"]))))
def test_several_headers_are_what_a_server_that_joins_them_makes_of_them(
    headers: list[bytes],
) -> None:
    """No adapter for WSGI sees them apart, so none may answer as if it did (G6)."""

    def outcome(values: list[bytes]) -> object:
        try:
            return read_bearer(values)
        except RequestMalformed as refused:
            return refused.detail

    stripped = [header.strip(b" \t") for header in headers]
    assert outcome(headers) == outcome([b",".join(stripped)] if headers else [])


def test_a_header_is_read_up_to_the_limit_and_not_beyond() -> None:
    longest = "Bearer " + "a" * (MAX_HEADER_LENGTH - len("Bearer "))
    assert read_bearer([longest]) == longest[7:]
    # Others than what nearly all requests send are read up to the same limit.
    assert read_bearer([f" {longest[:-1]}"]) == longest[7:-1]
    assert read_bearer(["Digest a=b,c=".ljust(MAX_HEADER_LENGTH, "d")]) is None
    for header in (longest + "a", (longest + "a").encode(), " " * (MAX_HEADER_LENGTH + 1)):
        with pytest.raises(RequestMalformed, match="longer than 16384"):
            read_bearer([header])


def test_the_length_counts_before_anything_else() -> None:
    with pytest.raises(RequestMalformed, match="longer than 16384"):
        read_bearer([b"\xff" * (MAX_HEADER_LENGTH + 1)])


@given(st.one_of(st.binary(), st.text(), st.binary().map(lambda raw: b"Bearer " + raw)))
def test_no_header_ever_gives_anything_but_a_token_nothing_or_a_refusal(
    header: str | bytes,
) -> None:
    try:
        token = read_bearer([header])
    except RequestMalformed:
        return
    assert token is None or (token.isascii() and token.isprintable() and " " not in token)


@given(st.from_regex(r"[0-9A-Za-z\-._~+/]+=*", fullmatch=True), st.integers(1, 9))
def test_every_token68_is_returned_unchanged(token: str, spaces: int) -> None:
    header = f"Bearer{' ' * spaces}{token}"
    assert read_bearer([header]) == read_bearer([header.encode()]) == token


@given(st.binary(max_size=300))
def test_bytes_and_their_text_are_read_alike(raw: bytes) -> None:
    def outcome(header: str | bytes) -> object:
        try:
            return read_bearer([header])
        except RequestMalformed as refused:
            return refused.detail

    assert outcome(raw) == outcome(raw.decode("latin-1"))


class TestAKeyInAHeaderOfItsOwn:
    @pytest.mark.parametrize("given", [KEY, KEY.encode(), f" {KEY}\t"])
    def test_stands_for_a_bearer_credential(self, given: str | bytes) -> None:
        assert read_bearer(bearer_of_key([given], [], KeyFormat())) == KEY

    def test_without_one_authorization_counts(self) -> None:
        for authorization in ([], ["Basic YTpi"], [f"Bearer {JWT}", b"x"]):
            assert bearer_of_key([], authorization, KeyFormat()) == tuple(authorization)

    @pytest.mark.parametrize(
        ("given", "authorization"),
        [([KEY], [f"Bearer {KEY}"]), ([KEY], [""]), ([KEY, KEY], []), ([f"{KEY},{KEY}"], [])],
    )
    def test_is_refused_beside_another_credential(
        self, given: list[str], authorization: list[str]
    ) -> None:
        with pytest.raises(RequestMalformed):
            bearer_of_key(given, authorization, KeyFormat())

    @pytest.mark.parametrize("given", ["", JWT, f"Bearer {KEY}", KEY.replace("msk", "acme")])
    def test_is_no_place_for_anything_else(self, given: str) -> None:
        with refused_with("key_malformed"):
            bearer_of_key([given], [], KeyFormat())
