"""Networks and addresses: what is accepted, how it is normalised, and which address is in which network."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case
from tests.core.support import World

from msk_auth.errors import Forbidden, InputInvalid


def kept(text: str) -> str:
    """A network of a key, as it is kept."""
    (network,) = World("sync").create(networks=[text]).record.networks or ()
    return network


def wrong(text: str) -> str:
    """Why a network is refused."""
    with pytest.raises(InputInvalid) as refused:
        kept(text)
    (error,) = refused.value.errors
    assert error.field == "networks"
    return error.message


def contain(networks: list[str], address: str | None) -> bool:
    """Whether a key of these networks works from an address."""
    world = World("sync")
    created = world.create()
    world.store.put(replace(created.record, networks=frozenset(networks)))
    header = [f"Bearer {created.value.reveal()}"]
    try:
        world.call("authenticate", header, address=address)
    except Forbidden as refused:
        return refused.code != "address_not_allowed"
    return True


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("203.0.113.0/24", "203.0.113.0/24"),
        ("203.0.113.7", "203.0.113.7/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:DB8:0:0::/32", "2001:db8::/32"),
        ("2001:db8::1", "2001:db8::1/128"),
        ("::/0", "::/0"),
        # IPv4-mapped (RFC 4291, section 2.5.5.2)
        ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
        ("::ffff:cb00:7107", "203.0.113.7/32"),
        ("::FFFF:0:0/96", "0.0.0.0/0"),
        # Not mapped: 6to4, and IPv4-compatible addresses, which are deprecated.
        ("2002:cb00:7100::/40", "2002:cb00:7100::/40"),
        ("::203.0.113.7", "::cb00:7107/128"),
        ("::fffe:0:0/95", "::fffe:0:0/95"),
    ],
)
def test_a_network_has_one_spelling(text: str, canonical: str) -> None:
    assert kept(text) == canonical


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("203.0.113.7/24", "Write 203.0.113.0/24 for the whole network"),
        ("2001:db8::1/32", "Write 2001:db8::/32 "),
        ("::ffff:203.0.113.7/120", "Write 203.0.113.0/24 "),
        ("255.255.255.255/0", "Write 0.0.0.0/0 "),
    ],
)
def test_bits_behind_the_prefix_are_refused_with_what_was_meant(text: str, instead: str) -> None:
    assert instead in wrong(text)


WRONG = [
    "", " ", "/", "/24", "example.com", "localhost", "203.0.113", "203.0.113.0/", "203.0.113.0/33", "203.0.113.256",
    "203.0.113.0/-1", "203.0.113.0/+8", "203.0.113.0/8.0", "203.0.113.0/24/24", "2001:db8::/129", "2001::db8::/32",
    # netmasks in place of the length
    "10.0.0.0/255.0.0.0", "10.0.0.0/0.255.255.255",
    # octal, hexadecimal, one number, leading zeros
    "010.0.0.0/8", "0x0a.0.0.0/8", "10.0.0.01", "167772160", "10.0.0.0/08", "0127.0.0.1",
    # zones
    "fe80::1%eth0", "fe80::%1/64", "fe80::1%25eth0",
    # spaces, ports, brackets, other digits, controls
    " 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0/8\n", "10.0.0.1:80", "[::1]", "٣.٣.٣.٣", "1٣.0.0.0/8", "10.0.0.0/٨", "10.0.0.1\x00",
    ":" * 45, "1" * 1_000_000,
]  # fmt: skip


def test_what_is_no_network_is_refused() -> None:
    for text in WRONG:
        with case(text[:50]):
            assert len(wrong(text)) < 250


def test_what_is_no_address_is_none() -> None:
    for text in (*WRONG, "203.0.113.0/24", "203.0.113.7/32"):
        with case(text[:50]):
            assert not contain(["0.0.0.0/0", "::/0"], text)


@pytest.mark.parametrize("network", ["203.0.113.0/24", "::ffff:203.0.113.0/120"])
@pytest.mark.parametrize("address", ["203.0.113.7", "::ffff:203.0.113.7", "::FFFF:cb00:7107"])
def test_a_client_of_ipv4_is_the_same_however_it_is_connected(network: str, address: str) -> None:
    assert contain([network], address)


@pytest.mark.parametrize(
    ("networks", "address", "inside"),
    [
        (["203.0.113.0/24"], "203.0.112.255", False),
        (["203.0.113.0/24"], "203.0.113.0", True),
        (["203.0.113.0/24"], "203.0.113.255", True),
        (["203.0.113.0/24"], "203.0.114.0", False),
        (["203.0.113.0/24", "2001:db8::/32"], "2001:db8:ffff::1", True),
        (["203.0.113.0/24", "2001:db8::/32"], "2001:db9::1", False),
        (["0.0.0.0/0"], "2001:db8::1", False),
        (["::/0"], "2001:db8::1", True),
        (["::/0"], "203.0.113.7", False),
        (["::/0"], "::ffff:203.0.113.7", False),
        (["0.0.0.0/0", "::/0"], None, False),
        (["0.0.0.0/0", "::/0"], "", False),
        (["0.0.0.0/0", "::/0"], "unix:", False),
        (["0.0.0.0/0", "::/0"], "testclient", False),
        (["fe80::/10"], "fe80::1%eth0", False),
        (["2001:db8::/32"], "2001:db8::1%203.0.113.7", False),
        ([], "203.0.113.7", False),
    ],
)
def test_an_address_is_in_a_network_or_not(
    networks: list[str], address: str | None, inside: bool
) -> None:
    assert contain(networks, address) is inside


@given(st.text(alphabet="0123456789abcdfF:./% x", max_size=50) | st.text())
def test_any_text_is_refused_or_a_network_that_is_read_back(text: str) -> None:
    with suppress(InputInvalid):
        network = kept(text)
        assert kept(network) == network


ANY_ADDRESS = st.ip_addresses(v=4) | st.ip_addresses(v=6)


@given(ANY_ADDRESS, st.integers(0, 128))
def test_every_network_contains_its_own_addresses(
    address: IPv4Address | IPv6Address, length: int
) -> None:
    length %= address.max_prefixlen + 1
    kind = IPv4Network if isinstance(address, IPv4Address) else IPv6Network
    network = kind((address, length), strict=False)
    mapped = isinstance(address, IPv6Address) and address.ipv4_mapped is not None
    # A shorter prefix is of IPv6, and its mapped addresses are read as IPv4.
    expected = not mapped or length >= 96
    assert contain([str(network)], str(address)) is expected


@given(st.ip_addresses(v=4), st.ip_addresses(v=4), st.integers(0, 32))
def test_a_mapped_network_is_the_network_itself(
    address: IPv4Address, client: IPv4Address, length: int
) -> None:
    plain = IPv4Network((address, length), strict=False)
    mapped = f"::ffff:{plain.network_address}/{plain.prefixlen + 96}"
    assert kept(mapped) == str(plain)
    inside = client in plain
    for spelled in (str(client), f"::ffff:{client}"):
        assert contain([mapped], spelled) is contain([str(plain)], spelled) is inside
