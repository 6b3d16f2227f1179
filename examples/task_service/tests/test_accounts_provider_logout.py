"""Logging out where the identity provider asks for it (OpenID Connect Back-Channel Logout 1.0)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from examples.task_service.tests.accounts_support import KINDS, World, compose, world
from examples.task_service.tests.oidc_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    LOGOUT_EVENT,
    TestProvider,
    come_from,
)
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    problem,
)
from joserfc.jwk import ECKey, OctKey
from sqlalchemy import func, insert, select

from msk_auth import AsyncAuthenticator
from msk_auth.errors import CredentialRefused, StoreUnavailable
from task_service import login_cookie
from task_service.accounts.audit import AuditQuery
from task_service.accounts.changes import Change
from task_service.accounts.login_methods import LoginMethods
from task_service.accounts.sessions import ProviderLogout
from task_service.accounts.users import User
from task_service.db import schema
from task_service.errors import ProviderLoginRefused
from task_service.provider_login import LOGOUT, OidcLogin

pytestmark = pytest.mark.anyio


@pytest.fixture
def service(service_at_provider: Service) -> Service:
    return service_at_provider


async def _log_in(service: Service, provider: TestProvider, **person: Any) -> Caller:
    provider.person = {"sub": "1001", **person}
    answer = await come_from(provider, service)
    (line,) = (
        line
        for line in answer.headers.get_list("set-cookie")
        if line.startswith(f"{login_cookie.NAME}=")
    )
    return service.caller(line.partition("=")[2].partition(";")[0].strip('"'))


async def _is_open(caller: Caller) -> bool:
    answer = await caller.get("/api/auth/me")
    if answer.status_code == 200:
        return True
    assert problem(answer) == (401, "token_revoked")
    return False


async def _send(service: Service, token: str) -> httpx2.Response:
    return await service.caller().http.post(LOGOUT, data={"logout_token": token})


def _is_refused(answer: httpx2.Response) -> bool:
    assert answer.headers["cache-control"] == "no-store"
    if answer.status_code == 200:
        return False
    assert problem(answer) == (400, "logout_refused")
    assert answer.json()["error"] == "invalid_request"
    return True


async def test_the_sessions_that_the_token_names_end(
    service: Service, provider: TestProvider
) -> None:
    for named, still_open in (
        # Also where there is nothing to end (section 2.7).
        ({"sub": "1002", "sid": "b"}, [True, True, True]),
        ({"sid": "a"}, [False, True, True]),
        ({"sub": "1001"}, [False, False, True]),
    ):
        before = len((await service.services.audit.list(AuditQuery(action="session.ended"))).items)
        callers = [
            await _log_in(service, provider, sid="a"),
            await _log_in(service, provider, sid="b"),
            await _log_in(service, provider, sub="1002", sid="c"),
        ]
        answer = await _send(service, provider.logout_token(**named))
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["cache-control"] == "no-store"
        assert [await _is_open(caller) for caller in callers] == still_open, named
        entries = (await service.services.audit.list(AuditQuery(action="session.ended"))).items
        assert all(entry.details == {"issuer": provider.issuer} for entry in entries)
        assert len(entries) - before == still_open.count(False)
        # None of these people is logged in when the next token comes.
        for subject in ("1001", "1002"):
            await _send(service, provider.logout_token(sub=subject))


async def test_a_sid_that_is_no_text_is_none(service: Service, provider: TestProvider) -> None:
    odd = await _log_in(service, provider, sid=7)
    assert (await _send(service, provider.logout_token(sid="7"))).status_code == 200
    assert await _is_open(odd)
    assert (await _send(service, provider.logout_token(sub="1001", sid="7"))).status_code == 200
    assert not await _is_open(odd)


async def test_the_answer_waits_until_no_process_accepts_the_session(
    service: Service, provider: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: the end was committed before the wait, and the answer comes after it."""
    caller = await _log_in(service, provider, sid="a")
    open_while_waiting: list[bool] = []

    async def await_lease_expiry(_: object) -> None:
        open_while_waiting.append(await _is_open(caller))

    monkeypatch.setattr(AsyncAuthenticator, "await_lease_expiry", await_lease_expiry)
    assert (await _send(service, provider.logout_token(sid="a"))).status_code == 200
    assert open_while_waiting == [False]


async def test_a_token_without_a_type_is_accepted(service: Service, provider: TestProvider) -> None:
    for typ in (None, "logout+jwt", "Logout+JWT", "application/logout+jwt"):
        caller = await _log_in(service, provider, sid="a")
        assert not _is_refused(await _send(service, provider.logout_token(sid="a", typ=typ)))
        assert not await _is_open(caller)


# When the tests are collected: hours may pass until one runs.
NOW = int(time.time())
ATTACKS: dict[str, dict[str, Any]] = {
    "neither sub nor sid": {"sid": None},
    "a sub that is no text": {"sub": 1001},
    "a sid that is no text": {"sub": "1001", "sid": ["a"]},
    "an empty sid": {"sid": ""},
    "a sid that no database holds": {"sid": "a\x00"},
    "a long sid": {"sid": "a" * 256},
    "a nonce": {"nonce": "a"},
    "no events": {"events": None},
    "another event": {"events": {"http://schemas.openid.net/event/other": {}}},
    "events in a list": {"events": [LOGOUT_EVENT]},
    "an event that is no object": {"events": {LOGOUT_EVENT: True}},
    "events as text": {"events": LOGOUT_EVENT},
    "another issuer": {"iss": "https://another.example.com"},
    "no issuer": {"iss": None},
    "another audience": {"aud": "another"},
    "no audience": {"aud": None},
    "no iat": {"iat": None},
    "from the future": {"iat": NOW + 43_200, "exp": NOW + 43_320},
    "expired": {"iat": NOW - 3600, "exp": NOW - 3480},
    "no end": {"exp": None},
    "for a day": {"exp": NOW + 86_400},
    "no jti": {"jti": None},
    "a jti that is no text": {"jti": 7},
    "an empty jti": {"jti": ""},
    "an ID token's type": {"typ": "JWT"},
    "an access token's type": {"typ": "at+jwt"},
    "another key": {"key": ECKey.generate_key("P-256", {"kid": "1"})},
    "an unknown key": {"kid": "2"},
    "no key": {"kid": None},
    "the client's secret as a key": {"alg": "HS256", "key": OctKey.import_key(CLIENT_SECRET * 2)},
}


async def test_a_token_that_is_wrong_ends_nothing(service: Service, provider: TestProvider) -> None:
    caller = await _log_in(service, provider, sid="a")
    for attack, wrong in ATTACKS.items():
        changes = {"sid": "a", **wrong}
        assert _is_refused(await _send(service, provider.logout_token(**changes))), attack
        assert await _is_open(caller), attack
    # The same token without a fault.
    assert not _is_refused(await _send(service, provider.logout_token(sid="a")))
    assert not await _is_open(caller)


def _unsigned(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none", "typ": "logout+jwt"}, claims)
    texts = (urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
    return f"{'.'.join(texts)}."


async def test_a_token_that_is_nested_deep_is_refused_and_nothing_is_logged(
    service: Service, provider: TestProvider, caplog: pytest.LogCaptureFixture
) -> None:
    nested: Any = {}
    for _ in range(500):
        nested = {"a": nested}
    for claims in ({"nested": nested}, {"events": {LOGOUT_EVENT: nested}}):
        assert _is_refused(await _send(service, provider.logout_token(sub="1001", **claims)))
    assert [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING
        and record.name.startswith(("msk_auth", "task_service"))
    ] == []


async def test_what_is_no_logout_token_ends_nothing(
    service: Service, provider: TestProvider
) -> None:
    caller = await _log_in(service, provider, sid="a")
    async with service.services.db.read() as connection:
        id_token = await connection.scalar(select(schema.sessions.c.id_token))
    claims = {
        "iss": provider.issuer,
        "aud": CLIENT_ID,
        "iat": NOW,
        "exp": NOW + 120,
        "jti": "1",
        "sid": "a",
        "events": {LOGOUT_EVENT: {}},
    }
    right = provider.logout_token(sid="a")
    key = (await caller.new_key())["key"]
    login = caller.token
    unsigned = _unsigned(claims)
    for token in (
        id_token,
        login,
        key,
        unsigned,
        f"{unsigned}AA",
        f"{right}, {right}",
        f"{right}x",
    ):
        assert _is_refused(await _send(service, token)), token[:40]
    for token in ("", "é", "\x00", "a" * 20_000, "a.b.c"):
        assert _is_refused(await _send(service, token)), token[:40]
    assert await _is_open(caller)
    # The other way round it opens nothing.
    assert (await service.caller(right).get("/api/auth/me")).status_code == 401
    assert not _is_refused(await _send(service, right))


async def test_a_token_works_once(service: Service, provider: TestProvider) -> None:
    token = provider.logout_token(sub="1001")
    assert not _is_refused(await _send(service, token))
    caller = await _log_in(service, provider)
    assert _is_refused(await _send(service, token))
    # Its id is forgotten when it has expired for every process, and not before.
    service.clock.advance(seconds=140)
    await service.services.sessions.purge()
    assert _is_refused(await _send(service, token))
    service.clock.advance(seconds=60)
    await service.services.sessions.purge()
    async with service.services.db.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(schema.logout_tokens)) == 0
    assert _is_refused(await _send(service, token))
    assert await _is_open(caller)


async def test_a_logout_that_fails_can_be_sent_again(
    service: Service, provider: TestProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = await _log_in(service, provider, sid="a")
    token = provider.logout_token(sid="a")

    async def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(Change, "record", fail)
        answer = await _send(service, token)
        assert _is_refused(answer)
        assert "Send it again" in answer.json()["detail"]
    assert await _is_open(caller)
    assert not _is_refused(await _send(service, token))
    assert not await _is_open(caller)


async def test_it_is_one_form_with_one_token(service: Service, provider: TestProvider) -> None:
    caller = await _log_in(service, provider, sid="a")
    token = provider.logout_token(sid="a")
    http = service.caller().http
    answers = [
        await http.post(LOGOUT),
        await http.post(LOGOUT, data={"token": token}),
        await http.post(LOGOUT, data={"logout_token": [token, token]}),
        await http.post(LOGOUT, json={"logout_token": token}),
        await http.post(LOGOUT, params={"logout_token": token}),
    ]
    assert [_is_refused(answer) for answer in answers] == [True] * 5
    upload = await http.post(LOGOUT, files={"logout_token": token.encode()})
    assert upload.status_code == 400
    assert (await http.get(LOGOUT)).status_code == 405
    assert await _is_open(caller)


@pytest.mark.parametrize(
    ("named", "admitted"),
    [
        ({"sid": "a"}, False),
        ({"sub": "1001"}, False),
        ({"sub": "1001", "sid": "a"}, False),
        ({"sub": "1001", "sid": "b"}, True),
        ({"sub": "1002"}, True),
        ({"sid": "b"}, True),
    ],
    ids=str,
)
async def test_a_logout_while_the_person_logs_in_ends_the_login(
    service: Service,
    provider: TestProvider,
    monkeypatch: pytest.MonkeyPatch,
    named: dict[str, str],
    admitted: bool,
) -> None:
    """Between the exchange of the code and the beginning of the session, also at the person's first login."""
    find_or_add = OidcLogin._find_or_add

    async def find_or_add_after_logout(self: OidcLogin, claims: Any) -> User:
        assert not _is_refused(await _send(service, provider.logout_token(**named)))
        return await find_or_add(self, claims)

    monkeypatch.setattr(OidcLogin, "_find_or_add", find_or_add_after_logout)
    provider.person = {"sub": "1001", "sid": "a"}
    answer = await come_from(provider, service)
    assert answer.status_code == (200 if admitted else 403)
    assert ("You were logged out" in answer.text) is not admitted
    query = AuditQuery(action="login.failed")
    assert len((await service.services.audit.list(query)).items) == (0 if admitted else 1)
    async with service.services.db.read() as connection:
        found = await connection.scalars(select(schema.sessions.c.ended_at))
        assert list(found) == ([None] if admitted else [])


# On every database.

ISSUER = "https://login.example.com"


@pytest.fixture(params=KINDS)
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world(request.param, tmp_path, LoginMethods(issuer=ISSUER)) as it:
        yield it


def _logout(it: World, token_id: str, subject: str | None, sid: str | None) -> ProviderLogout:
    return ProviderLogout(ISSUER, token_id, it.clock.now() + timedelta(minutes=2), subject, sid)


async def _start(it: World, user: User, sid: str | None) -> Callable[[], Any]:
    config = await it.config.current()
    async with it.accounts.change() as change:
        known = await change.connection.scalar(
            select(schema.identities.c.subject).where(schema.identities.c.user_id == user.id)
        )
        if known is None:
            await change.connection.execute(
                insert(schema.identities).values(
                    issuer=ISSUER, subject=user.username, user_id=user.id, created_at=it.clock.now()
                )
            )
        begun = await it.sessions.start(
            change,
            user,
            config,
            id_token="an ID token",
            provider_sid=sid,
        )

    async def is_open() -> bool:
        found = await it.sessions.find_session(begun.session_id)
        return found is not None and found.ended_at is None

    return is_open


async def test_sessions_end_by_person_and_by_session(it: World) -> None:
    ann, bob = await it.user("ann"), await it.user("bob")
    first, second = await _start(it, ann, "a"), await _start(it, ann, "b")
    other, unknown = await _start(it, bob, "a"), await _start(it, ann, None)
    assert await it.sessions.end_at_provider(_logout(it, "0", None, "c")) == 0
    assert await it.sessions.end_at_provider(_logout(it, "1", "ann", "a")) == 2
    assert [await each() for each in (first, second, other, unknown)] == [False, True, True, False]
    # A provider that gives one id to sessions of two people means both.
    again = await _start(it, ann, "a")
    assert await it.sessions.end_at_provider(_logout(it, "2", None, "a")) == 2
    assert [await each() for each in (again, second, other)] == [False, True, False]
    assert await it.sessions.end_at_provider(_logout(it, "3", "ann", None)) == 1
    assert not await second()
    async with it.db.read() as connection:
        assert set(await connection.scalars(select(schema.sessions.c.id_token))) == {None}


async def test_a_session_of_another_issuer_stays(it: World) -> None:
    is_open = await _start(it, await it.user("ann"), "a")
    elsewhere = ProviderLogout("https://old.example.com", "1", it.clock.now(), None, "a")
    assert await it.sessions.end_at_provider(elsewhere) == 0
    assert await is_open()


async def test_of_the_same_token_at_once_one_counts(it: World) -> None:
    await _start(it, await it.user("ann"), "a")
    logout = _logout(it, "1", "ann", "a")
    results = await asyncio.gather(
        *(it.sessions.end_at_provider(logout) for _ in range(5)), return_exceptions=True
    )
    assert sorted(map(repr, results)) == ["1", *[repr(CredentialRefused("token_invalid"))] * 4]


@pytest.mark.parametrize("sid", ["a", None])
@pytest.mark.parametrize("named", [(None, "a"), ("ann", None), ("ann", "a")], ids=str)
async def test_of_a_login_and_a_logout_at_once_the_logout_counts(
    it: World, named: tuple[str | None, str | None], sid: str | None
) -> None:
    ann = await it.user("ann")
    await _start(it, ann, "of another login")
    means_it = sid is not None or named[0] is not None
    config = await it.config.current()
    # A logout of before the login, at a process whose clock is ahead.
    ahead = compose(it.db, it.passwords, LoginMethods(issuer=ISSUER))
    ahead.clock.advance(timedelta(hours=1))
    await ahead.sessions.end_at_provider(_logout(it, "1", *named))

    async def log_in(since: datetime | None) -> str:
        async with it.accounts.change() as change:
            await it.sessions.refuse_ended_at_provider(
                change.connection, issuer=ISSUER, subject="ann", provider_sid=sid, since=since
            )
            logout = asyncio.create_task(it.sessions.end_at_provider(_logout(it, "2", *named)))
            await asyncio.sleep(0.1)
            begun = await it.sessions.start(
                change,
                ann,
                config,
                id_token="an ID token",
                provider_sid=sid,
            )
        await logout
        return begun.session_id

    since = await it.sessions.last_provider_logout()
    found = await it.sessions.find_session(await log_in(since))
    assert found is not None
    assert (found.ended_at is not None) is means_it
    if means_it:
        with pytest.raises(ProviderLoginRefused):
            await log_in(since)
    # It is a logout of another provider that came last.
    elsewhere = ProviderLogout("https://old.example.com", "3", it.clock.now(), "ann", "a")
    since = await it.sessions.last_provider_logout()
    await it.sessions.end_at_provider(elsewhere)
    async with it.db.write() as connection:
        await it.sessions.refuse_ended_at_provider(
            connection, issuer=ISSUER, subject="ann", provider_sid=sid, since=since
        )
