"""How the header may be written, and where else credentials are not looked for."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, bearer, case


def header_cases() -> Iterator[Case]:
    """The header's grammar, byte by byte (RFC 9110, sections 5.5 and 11; RFC 6750, section 2.1)."""
    fine = [
        "Bearer <key>", "bearer <key>", "BEARER <key>", "bEaReR <key>", "Bearer  <key>",
        "Bearer      <key>", "  Bearer <key>", "Bearer <key>  ", "\tBearer <key>\t", "Bearer <jwt>",
    ]  # fmt: skip
    for value in fine:
        name = f"accepted: {value!r}"
        yield case("GET /me", 200, name=name, headers=(("authorization", value),))
    missing = [
        "", " ", "\t \t", "Basic YTpi", "Basic", 'Digest a="<key>", b=c', 'Digest a="b, c", d="e" , f=G', "Digest <key>",
        "<key>", "<jwt>", "Token <key>", "Bearer<key>", "Bearer_ <key>", "X-Bearer <key>",
    ]  # fmt: skip
    for value in missing:
        name = f"no credentials of ours: {value!r}"
        yield case("GET /me", "credentials_missing", name=name, headers=(("authorization", value),))
    broken = [
        "Bearer", "Bearer ", "Bearer\t<key>", "Bearer <key> <key>", "Bearer <key>, Bearer <key>",
        "Bearer <key>,", "Basic <key>, Bearer <key>", "Bearer <key>;", 'Bearer "<key>"', "Bearer: <key>", "Bearer=<key>",
        "Bearer <key>\x00", "Bearer \x00<key>", "Bearer <key>\r\nX: 1", "Bearer <key>\n", "Bearer <key>\x7f",
        "Bearer <key>\xa0", "Bearer\xa0<key>", "B\xe9arer <key>", "Bearer <key>\xff", "Bearer =<key>",
        "Bearer <key>\x0b", "Bearer\x0c<key>", "Bearer <key>?", "Bearer <key>%00", "Bearer msk_%", "Bearer " + "a" * 16_378,
        "Bearer " + " " * 16_378 + "<key>", "a" * 100_000, "\x00", "\x01Bearer <key>", "Basic YTpi\x00", "Bearer\x1f<key>",
        'Digest a="\x02"', "Bearer =", "Bearer ===", "Bearer, <key>", "Bearer \t<key>", "Basic a\tb", '"Bearer" x', "(Bearer) x",
        ", Bearer x", "Basic abc,Basic abc", "Digest a=b,Digest a=b", "Digest a=b,Bearer <key>",
    ]  # fmt: skip
    for value in broken:
        name = f"malformed: {value[:40]!r}" + (f" and {len(value)}" if len(value) > 40 else "")
        yield case("GET /me", "request_malformed", name=name, headers=(("authorization", value),))
    keys = [
        "Bearer a", "\tBearer XxX", "Bearer Bearer", "Bearer azAZ09-_~+/==", "Bearer <key>x", "Bearer x<key>", "Bearer <key>=", "Bearer MSK_<key>", "Bearer msk_",
        "Bearer <key_id>", "Bearer msk_____________________________________________________",
        "Bearer " + "msk_" * 2000, "Bearer <key>~", "Bearer msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9P",
    ]  # fmt: skip
    for value in keys:
        name = f"no key: {value[:60]!r}"
        yield case("GET /me", "key_malformed", name=name, headers=(("authorization", value),))
    tokens = [
        "Bearer .",
        "Bearer ..",
        "Bearer a.b.c",
        "Bearer <jwt>.",
        "Bearer <jwt>.x",
        "Bearer .<jwt>",
        "Bearer <jwt>A",
    ]
    for value in tokens:
        name = f"no token: {value!r}"
        yield case("GET /me", "token_invalid", name=name, headers=(("authorization", value),))
    one = ("authorization", "Bearer <key>")
    several = {
        "twice the same": (one, one),
        "a key and a login": (one, ("authorization", "Bearer <jwt>")),
        "a key and an empty one": (one, ("authorization", "")),
        "another scheme first": (("authorization", "Basic YTpi"), one),
        "in two spellings": (("Authorization", "Bearer <key>"), one),
        "far apart": (one, ("x-other", "1"), one),
        "beyond ASCII, and one": (("authorization", "\xe9"), one),
        "both empty": (("authorization", ""), ("authorization", "")),
        "a login and parameters": (("authorization", "Bearer <jwt>"), ("authorization", "a=b")),
        "parameters of no scheme first": (("authorization", 'a="b"'), one),
        "twice with parameters": (("authorization", "Digest a=b"),) * 2,
    }
    for name, headers in several.items():
        yield case("GET /me", "request_malformed", name=f"several headers: {name}", headers=headers)
    # Joined with a comma, as a server may (RFC 9110, section 5.3), they are one value of another scheme.
    parts = (("authorization", 'Digest a="<key>"'), ("authorization", 'b="<key>"'))
    name = "one value of another scheme in two headers"
    yield case("GET /me", "credentials_missing", name=name, headers=parts)
    capitals = (("AUTHORIZATION", "Bearer <key>"),)
    yield case("GET /me", 200, name="its name in capitals", headers=capitals)
    elsewhere = {
        "a cookie": (("cookie", "authorization=<key>; access_token=<jwt>; session=<jwt>"),),
        "X-API-Key": (("x-api-key", "<key>"),),
        "Proxy-Authorization": (("proxy-authorization", "Bearer <key>"),),
        "a look-alike name": (
            ("authorization_", "Bearer <key>"),
            ("x-authorization", "Bearer <key>"),
        ),
    }
    for place, headers in elsewhere.items():
        yield case(
            "GET /me", "credentials_missing", name=f"credentials in {place}", headers=headers
        )
    for query in (
        "access_token=<jwt>",
        "api_key=<key>",
        "key=<key>",
        "Authorization=Bearer%20<key>",
    ):
        yield case(f"GET /me?{query}", "credentials_missing")
    form = (("content-type", "application/x-www-form-urlencoded"),)
    yield case(
        "POST /tasks/run",
        "credentials_missing",
        name="credentials in a form",
        headers=form,
        body="access_token=<jwt>",
    )
    override = (("x-http-method-override", "GET"), ("x-method-override", "GET"))
    yield case(
        "PATCH /admin/config",
        "interactive_required",
        "key",
        name="a method override",
        headers=override,
    )


def key_header_cases() -> Iterator[Case]:
    """An adapter that was made with `header="X-API-Key"`: a key stands in that header in place of `Authorization`."""
    for request in ("GET /me", "GET /tasks", "GET /key", "GET /api/keys"):
        yield case(request, 200, name=f"a key in its header: {request}", headers=(own("<key>"),))
    capitals = (("X-API-KEY", "<key>"),)
    yield case("GET /me", 200, name="its name in capitals", headers=capitals)
    yield case("GET /me", 200, name="white space around it", headers=(own(" <key>\t"),))
    for credential in ("key", "jwt"):
        name = f"Authorization as ever: {credential}"
        yield case("GET /me", 200, credential, name=name)
    both = {
        "a key in each": (*bearer("key"), own("<key>")),
        "a login, and a key": (*bearer("jwt"), own("<key>")),
        "a key, and what is none": (*bearer("key"), own("x")),
        "another scheme, and a key": (("authorization", "Basic YTpi"), own("<key>")),
        "an empty one, and a key": (("authorization", ""), own("<key>")),
        "two keys": (own("<key>"), own("<key>")),
        "two keys in one header": (own("<key>,<key>"),),
        "no key, and a key": (own("x"), own("<key>")),
        "two keys with a space": (own("<key> <key>"),),
        "a control character": (own("<key>\x00"),),
        "beyond ASCII": (own("<key>\xff"),),
        "too long": (own("msk_" * 5000),),
    }
    for name, headers in both.items():
        yield case("GET /me", "request_malformed", name=f"malformed: {name}", headers=headers)
    for value in ("", "x", "<jwt>", "Bearer <key>", "<key>x", "msk_", "<key_id>"):
        name = f"no key: {value!r}"
        yield case("GET /me", "key_malformed", name=name, headers=(own(value),))
    for name in ("key_revoked", "key_expired"):
        yield case("GET /me", name, name=f"refused: {name}", headers=(own(f"<{name}>"),))
    yield case(
        "PATCH /admin/config",
        "interactive_required",
        name="no login",
        headers=(own("<key_admin>"),),
    )


def own(value: str) -> tuple[str, str]:
    return ("x-api-key", value)
