"""Which addresses may be reached: every notation, every special network, every answer of a resolver."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_service.handlers.outbound import (
    OutboundPolicy,
    OutboundRefused,
    host_of,
    is_own,
    is_public,
    parse_url,
    port_of,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "1.1.1.1",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2a00:1450:4001::1",
        "2001:200::1",
    ],
)
def test_a_machine_on_the_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:10::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_special_purpose_addresses_are_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@given(st.ip_addresses())
def test_what_the_standard_library_calls_internal_is_never_public(address) -> None:
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        # Its one exception: addresses of anycast services inside 2001::/23, refused here.
        assert not is_public(address)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("http://example.org", "example.org", 80),
        ("HTTPS://EXAMPLE.ORG/", "example.org", 443),
        ("https://example.org.:8443/a?b#c", "example.org", 8443),
        ("http://bücher.example/", "xn--bcher-kva.example", 80),
        ("http://under_score.example/", "under_score.example", 80),
        ("http://8.8.8.8:65535/", "8.8.8.8", 65535),
        ("http://[2606:4700:4700::1111]/", "2606:4700:4700::1111", 80),
        ("http://127.0.0.1/", "127.0.0.1", 80),
    ],
)
def test_urls_are_read(text: str, host: str, port: int) -> None:
    url = parse_url(text)
    assert (host_of(url), port_of(url)) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.org",
        "//example.org/",
        "ftp://example.org/",
        "file:///etc/passwd",
        "gopher://example.org/",
        "ws://example.org/",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http://user@example.org/",
        "http://user:password@example.org/",
        "http://example.org\\@127.0.0.1/",
        "http://127.0.0.1\\@example.org/",
        "http://example.org:0/",
        "http://example.org:65536/",
        "http://example.org:http/",
        "http://exa mple.org/",
        "http://example.org\r\nHost: internal/",
        "http://exam\tple.org/",
        "http://example..org/",
        "http://.example.org/",
        "http://%31%32%37.0.0.1/",
        "http://" + "a" * 64 + ".org/",
        "http://" + "a." * 127 + "org/",
        # What resolvers take for an address, in notations that no person uses.
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0X7F.0.0.1/",
        "http://0x/",
        "http://017700000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://0/",
        "http://127.0.0.01/",
        "http://127.0.0.0x1/",
        "http://1.2.3.4.5/",
        "http://256.256.256.256/",
        "http://１２７.0.0.1/",
        "http://①②⑦.0.0.1/",
        "http://[fe80::1%25eth0]/",
        "http://[::1/",
        "http://[127.0.0.1]/",
    ],
)
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(OutboundRefused):
        parse_url(text)


def answering(*addresses: str):
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return resolve


@pytest.mark.parametrize(
    "answers",
    [
        ("127.0.0.1",),
        ("8.8.8.8", "10.0.0.1"),
        ("10.0.0.1", "8.8.8.8"),
        ("::1",),
        ("::ffff:10.0.0.1",),
        ("fe80::1%eth0",),
    ],
)
async def test_a_name_with_one_internal_address_is_refused(answers: tuple[str, ...]) -> None:
    policy = OutboundPolicy(resolve=answering(*answers))
    with pytest.raises(OutboundRefused) as refusal:
        await policy.addresses(parse_url("http://example.org/"))
    assert not any(answer in str(refusal.value) for answer in answers)


async def test_a_public_name_gives_its_addresses_once_each_in_order() -> None:
    policy = OutboundPolicy(resolve=answering("8.8.8.8", "2606:4700:4700::1111", "8.8.8.8"))
    found = await policy.addresses(parse_url("http://example.org/"))
    assert [str(address) for address in found] == ["8.8.8.8", "2606:4700:4700::1111"]


async def test_a_name_without_an_address_is_refused() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    for policy in (OutboundPolicy(resolve=resolve), OutboundPolicy(resolve=answering())):
        with pytest.raises(OutboundRefused, match="has no address"):
            await policy.addresses(parse_url("http://nowhere.example/"))


async def test_an_address_is_not_resolved() -> None:
    policy = OutboundPolicy(resolve=answering("8.8.8.8"))
    assert await policy.addresses(parse_url("http://1.1.1.1/")) == [ip_address("1.1.1.1")]
    with pytest.raises(OutboundRefused):
        await policy.addresses(parse_url("http://[::1]/"))


async def test_the_machine_resolves_its_own_name() -> None:
    policy = OutboundPolicy([ip_network("127.0.0.0/8"), ip_network("::1/128")])
    assert ip_address("127.0.0.1") in await policy.addresses(parse_url("http://localhost/"))
    with pytest.raises(OutboundRefused, match="internal or reserved"):
        await OutboundPolicy().addresses(parse_url("http://localhost/"))


def test_a_literal_address_is_checked_without_a_resolver() -> None:
    policy = OutboundPolicy([ip_network("10.1.0.0/16")])
    policy.check_literal(parse_url("http://10.1.2.3/"))
    policy.check_literal(parse_url("http://8.8.8.8/"))
    policy.check_literal(parse_url("http://localhost/"))  # a name: judged when it is resolved
    for text in ("http://10.2.0.1/", "http://[::ffff:10.1.2.3]/", "http://169.254.169.254/latest"):
        with pytest.raises(OutboundRefused):
            policy.check_literal(parse_url(text))


# This machine's own addresses


@pytest.mark.parametrize("text", ["203.0.112.7", "2606:4700:4700::64"])
async def test_an_own_public_address_is_refused_until_it_is_opened(text: str) -> None:
    own = {ip_address(text)}
    url = parse_url(f"http://[{text}]/" if ":" in text else f"http://{text}/")
    policy = OutboundPolicy(resolve=answering("8.8.8.8", text), is_own=own.__contains__)
    with pytest.raises(OutboundRefused):
        policy.check_literal(url)
    with pytest.raises(OutboundRefused) as refusal:
        await policy.addresses(parse_url("http://name.example/"))
    assert text not in str(refusal.value)
    opened = OutboundPolicy([ip_network(text)], is_own=own.__contains__)
    assert await opened.addresses(url) == [ip_address(text)]


async def test_own_addresses_are_looked_up_for_each_connection() -> None:
    own: set[object] = set()
    policy = OutboundPolicy(is_own=own.__contains__)
    url = parse_url("http://8.8.8.8/")
    assert await policy.addresses(url) == [ip_address("8.8.8.8")]
    own.add(ip_address("8.8.8.8"))
    with pytest.raises(OutboundRefused):
        await policy.addresses(url)


def test_is_own_recognizes_the_machines_addresses() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("8.8.8.8"))
    assert not is_own(ip_address("2606:4700:4700::64"))


@pytest.mark.parametrize(
    ("number", "own"),
    [(errno.EADDRNOTAVAIL, False), (errno.EAFNOSUPPORT, False), (errno.EMFILE, True)],
)
def test_an_address_that_cannot_be_probed_counts_as_own(
    number: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(socket, "socket", refuse)
    assert is_own(ip_address("8.8.8.8")) is own
