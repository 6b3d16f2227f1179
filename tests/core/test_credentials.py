"""The reader of the `Authorization` header (RFC 6750, section 2.1; RFC 9110, sections 5.5 and 11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case

from msk_auth import KeyFormat
from msk_auth.core.authentication import MAX_HEADER_LENGTH, bearer_of_key, read_bearer
from msk_auth.errors import CredentialRefused, RequestMalformed

KEY = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"
JWT = "eyJhbGciOiJFUzI1NiJ9.e30.c2ln"

ACCEPTED = [
    (f"Bearer {KEY}", KEY),
    (f"Bearer {JWT}", JWT),
    # The scheme is matched without case, and followed by one or more spaces (RFC 9110, section 11.1).
    (f"bearer {KEY}", KEY),
    (f"BEARER {KEY}", KEY),
    (f"bEaReR {KEY}", KEY),
    (f"Bearer    {KEY}", KEY),
    # Optional white space around a field value is no part of it (RFC 9110, section 5.5).
    (f"  Bearer {KEY}", KEY),
    (f"Bearer {KEY} \t ", KEY),
    (f"\tBearer {KEY}", KEY),
    ("\tBearer XxX", "XxX"),
    # Every token68 (RFC 9110, section 11.2): its meaning is not decided here.
    ("Bearer azAZ09-._~+/==", "azAZ09-._~+/=="),
    ("Bearer x", "x"),
    ("Bearer Bearer", "Bearer"),
]

NOT_OURS = [
    "",
    " ",
    "\t \t",
    "Basic dXNlcjpwYXNz",
    "Basic",
    'Digest username="ann", realm="x"',
    "Negotiate abc",
    "ApiKey abc",
    KEY,  # no scheme: the key itself stands where a scheme would
    JWT,
    f"Bearer{KEY}",
    f"Bearer_ {KEY}",
    f"X-Bearer {KEY}",
    'Digest username="ann, bob", realm="x" , algorithm=MD5',
]

MALFORMED = [
    "Bearer",
    "Bearer ",
    "bearer",
    "Bearer   ",
    "Bearer =",
    "Bearer ===",
    f"Bearer {KEY} {KEY}",
    f"Bearer {KEY}, Bearer {KEY}",
    f"Bearer {KEY},{KEY}",
    f"Bearer, {KEY}",
    f"Bearer: {KEY}",
    f"Bearer:{KEY} x",
    f"Bearer\t{KEY}",
    f"Bearer \t{KEY}",
    f"Bearer {KEY}\n",
    f"Bearer {KEY}\r\nX-Admin: 1",
    f"Bearer {KEY}\x00",
    "Bearer \x00",
    "\x00",
    "Bearer \x7f",
    "Bearer é",
    "Bearer ｋey",
    # What ignoring case in Unicode would take for a k and an s.
    "Bearer \u212aey",
    "Bearer \u017f",
    f"Bearer {KEY}\u00a0",
    f"Bearer\u00a0{KEY}",
    f"Bearer\u3000{KEY}",
    f"\ufeffBearer {KEY}",
    "ＢＥＡＲＥＲ x",
    "Bearer \ud800",
    'Bearer "quoted"',
    "Bearer a=b",
    "Bearer =a",
    "Bearer a b",
    "Bearer token=a",
    "Bearer %6d%73%6b",
    "Bearer <script>",
    "Bearer {}",
    "Bearer a\\b",
    "Bearer a;b",
    "Bearer\u2028x",
    "Basic \u00fc",
    "Basic a\tb",
    '"Bearer" x',
    "(Bearer) x",
    ", Bearer x",
    # Two credentials, as a WSGI server joins two headers (RFC 9110, section 5.3).
    "Basic abc, Bearer def",
    "Basic abc,Bearer def",
    "Basic abc,Basic abc",
    "Basic abc,",
    "Digest a=b,Digest a=b",
    "Digest a=b,Bearer def",
]


@pytest.mark.parametrize("as_bytes", [False, True], ids=["text", "bytes"])
@pytest.mark.parametrize(("header", "token"), ACCEPTED)
def test_a_bearer_token_is_read(header: str, token: str, as_bytes: bool) -> None:
    assert read_bearer([header.encode() if as_bytes else header]) == token


@pytest.mark.parametrize("as_bytes", [False, True], ids=["text", "bytes"])
def test_nothing_and_another_scheme_are_no_credentials(as_bytes: bool) -> None:
    for header in NOT_OURS:
        with case(header):
            assert read_bearer([header.encode() if as_bytes else header]) is None


@pytest.mark.parametrize("as_bytes", [False, True], ids=["text", "bytes"])
def test_what_is_not_of_the_grammar_is_malformed(as_bytes: bool) -> None:
    # RFC 6750, section 3.1: invalid_request, and 400.
    for header in MALFORMED:
        with case(header):
            with pytest.raises(RequestMalformed) as refused:
                read_bearer([header.encode("utf-8", "surrogatepass") if as_bytes else header])
            assert refused.value.status == 400
            assert refused.value.code == "request_malformed"
            assert refused.value.challenge() == {"error": "invalid_request"}


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
        with pytest.raises(CredentialRefused) as refused:
            bearer_of_key([given], [], KeyFormat())
        assert refused.value.code == "key_malformed"
