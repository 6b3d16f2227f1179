"""The service behind proxies: which pages are its own behind TLS, and a proxy that was not listed as trusted."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import httpx2
import pytest
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    expect,
    problem,
    running_service,
)

from task_service.trusted_proxies import TrustedProxies

pytestmark = pytest.mark.anyio

PROXY, OTHER_PROXY = ip_address("10.0.0.7"), ip_address("fd00::7")
STRANGER, OTHER_STRANGER = ip_address("8.8.8.8"), ip_address("2606:4700::1")
LOGGER = "task_service.trusted_proxies"


# Behind a proxy that ends TLS the service is spoken to over http.


async def test_a_browser_without_fetch_metadata_can_log_in_behind_a_tls_proxy(
    template: Path, tmp_path: Path
) -> None:
    async with running_service(
        template, tmp_path / "data", shared_routes=True, base_url="https://tasks.example"
    ) as service:
        for origin, status in (
            ("https://tasks.example", 303),
            ("http://tasks.example", 403),
            ("https://evil.example", 403),
            ("null", 403),
            (None, 303),  # a program
        ):
            headers = {} if origin is None else {"Origin": origin}
            caller = service.caller(Host="tasks.example", **headers)
            response = await caller.http.post(
                "/login", data={"username": "ada", "password": ADMIN_PASSWORD}
            )
            assert response.status_code == status, origin


# Keys that work from some networks only.


@pytest.mark.parametrize(
    ("proxies", "answers"),
    [
        (
            "127.0.0.1",
            {
                "203.0.113.7": 200,
                "::ffff:203.0.113.7": 200,
                "198.51.100.1": 403,
                # The client's own entry is on the left.
                "203.0.113.7, 198.51.100.1": 403,
                "unknown": 403,
            },
        ),
        # A proxy that is not trusted is the client.
        ("", {"203.0.113.7": 403}),
    ],
)
async def test_a_key_is_limited_to_the_addresses_that_trusted_proxies_state(
    template: Path, tmp_path: Path, proxies: str, answers: dict[str, int]
) -> None:
    async with running_service(
        template, tmp_path / "data", shared_routes=True, trusted_proxies=proxies
    ) as service:
        admin = await service.person("ada", ADMIN_PASSWORD)
        made = await admin.new_key(networks=["203.0.113.0/24"])
        assert made["networks"] == ["203.0.113.0/24"]
        program = service.caller(made["key"])
        for forwarded, status in answers.items():
            answer = await program.get("/api/auth/me", headers={"X-Forwarded-For": forwarded})
            assert answer.status_code == status, forwarded
            if status == 403:
                assert problem(answer) == (403, "address_not_allowed")
        path = f"/api/keys/{made['id']}"
        assert expect(await admin.patch(path, {"networks": None}), 200)["networks"] is None
        for forwarded in answers:
            expect(await program.get("/api/auth/me", headers={"X-Forwarded-For": forwarded}), 200)


# Proxies that are not trusted.


async def test_what_forwards_without_being_trusted_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(*_: object) -> None:
        """Answers nothing."""

    proxies = TrustedProxies(app, networks=[])
    for address in (STRANGER, PROXY, OTHER_PROXY, OTHER_STRANGER) * 3:
        headers = [(b"x-forwarded-for", b"192.0.2.1")]
        scope = {"type": "http", "client": (str(address), 0), "headers": headers}
        await proxies(scope, None, None)
    # One of each kind: a client with many addresses does not fill the log.
    assert [record.args for record in caplog.records] == [(STRANGER,), (PROXY,)]
    assert "add it to TASK_SERVICE_TRUSTED_PROXIES" in caplog.messages[0]


async def test_a_proxy_that_is_not_listed_is_logged_once(
    template: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_service(template, tmp_path / "data", shared_routes=True) as service:
        proxied = httpx2.ASGITransport(service.app, client=(str(PROXY), 4711))
        async with httpx2.AsyncClient(
            transport=proxied, base_url="http://127.0.0.1:8000"
        ) as through_the_proxy:
            for client in range(3):
                header = {"X-Forwarded-For": f"198.51.100.{client}"}
                expect(await through_the_proxy.get("/healthz", headers=header), 200)
        assert [r.args for r in caplog.records if r.name == LOGGER] == [(PROXY,)]
