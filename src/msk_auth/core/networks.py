"""A key's networks in CIDR notation (RFC 4632, RFC 4291), and the address of a client.

A host that listens on IPv6 sees an IPv4 client as `::ffff:a.b.c.d`. Networks and addresses of this kind are read as IPv4, so a
client has the same address however it connects. No IPv6 network, not even `::/0`, contains an IPv4 address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_interface,
)
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

# No zone (`%eth0`), which has a meaning only on one machine, and no netmask in place of the length.
_ADDRESS: Final = "[0-9A-Fa-f:.]{2,45}"
NETWORK: Final = rf"{_ADDRESS}(/(0|[1-9][0-9]{{0,2}}))?"
_EXAMPLE: Final = "Write a network such as 203.0.113.0/24 or 2001:db8::/32, or one address."
_MAPPED_LENGTH: Final = 96


@lru_cache(maxsize=4096)
def parse_network(text: str) -> Network:
    """A network, or the network of one address.

    Raises:
        ValueError: The text is not a network. The message names the correct form.
    """
    if re.fullmatch(NETWORK, text) is None:
        raise ValueError(f"This is not a network. {_EXAMPLE}")
    try:
        given = ip_interface(text)
    except ValueError:
        raise ValueError(f"{text} is not a network. {_EXAMPLE}") from None
    network = _as_ipv4(given.network)
    if given.ip != given.network.network_address:
        raise ValueError(
            f"{text} has bits set behind the length of its prefix. Write {network} for the whole network."
        )
    return network


def parse_address(text: str) -> Address | None:
    """The address of a client, as its server states it; None if the text is not an address."""
    if re.fullmatch(_ADDRESS, text) is None:
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def contain(networks: Iterable[str], address: str | None) -> bool:
    """True if a client's address is in one of the networks. An unknown address is in none.

    Raises:
        ValueError: A network is malformed.
    """
    client = None if address is None else parse_address(address)
    return client is not None and any(client in parse_network(network) for network in networks)


def _as_ipv4(network: Network) -> Network:
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_LENGTH:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - _MAPPED_LENGTH))
    return network
