"""Which addresses `http_request` may reach (OWASP ASVS 5.0, 1.3.6; OWASP API7:2023, server-side request forgery).

The rules, in the order in which they are applied to every URL, the targets of redirects included:

1. The scheme is http or https, there is no user name or password, and the port is any from 1 to 65535.
2. The host is a name, or an address in its usual notation. Names that a resolver would read as an address in octal,
   hexadecimal, as one number or with parts left out are refused, and so are IPv6 zones.
3. The name is resolved once, and *every* address it has must be public and none of this machine's own: a firewall that
   closes a port to the outside lets the machine through to itself. The connection then goes to one of exactly these
   addresses: a name server that changes its answer afterwards (DNS rebinding) changes nothing.

Public is what the IANA special-purpose registries (RFC 6890) leave over, written out here because the standard
library's idea of it differs between Python versions. An IPv6 address must lie in 2000::/3, so IPv4-mapped, NAT64,
link-local, unique-local and multicast addresses fall out without being named. The machine's own addresses are asked of
the kernel for each connection, since interfaces and addresses come and go. A deployer opens internal networks, and
addresses of the machine, by naming them.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from httpx2 import URL, InvalidURL

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Asks for the addresses of a name; the second argument is the port. Raises OSError when there are none."""

_REFUSED: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network; 0.0.0.0 reaches the machine itself
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; a cloud's metadata at 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a cloud's metadata behind a public address (Azure)
        "169.254.0.0/16",  # link-local; most clouds' metadata at 169.254.169.254
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; a cloud's metadata at 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "2001::/23",  # protocol assignments, with Teredo: IPv4 addresses in disguise
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: IPv4 addresses in disguise
        "3fff::/20",  # documentation
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")

_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*", re.IGNORECASE)
# What the WHATWG URL standard calls "ends in a number": a resolver would take such a name for an address.
_LAST_LABEL_IS_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)", re.IGNORECASE)

_INTERNAL = (
    "This address is inside the network or reserved, and the administrator has not opened it."
)
# Of other machines these are what it says when an address cannot be bound.
_OF_ANOTHER_MACHINE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class TargetRefused(ValueError):
    """The URL may not be reached. The message is for the task's owner and names no internal address."""


def is_public(address: Address) -> bool:
    """True if `address` can be a machine on the public Internet."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _REFUSED)


def is_own(address: Address) -> bool:
    """True if `address` is one of this machine's at this moment, on whichever interface.

    A socket can be bound to the machine's own addresses only, which holds for secondary addresses, for prefixes that
    are routed to the machine itself, and on every platform. Where the kernel cannot tell (`ip_nonlocal_bind` on Linux,
    or no free file descriptor), every address counts as its own, so that nothing is reached by mistake.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in _OF_ANOTHER_MACHINE
    return True


def parse_url(text: str) -> URL:
    """Read a URL, applying the rules 1 and 2 above.

    Raises:
        TargetRefused: It breaks one of them.
    """
    try:
        url = URL(text)
    except InvalidURL:
        raise TargetRefused("This is not a URL.") from None
    if url.scheme not in {"http", "https"}:
        raise TargetRefused("The URL must begin with http:// or https://.")
    if url.userinfo:
        raise TargetRefused(
            "The URL must not contain a user name or a password. Send them in a header."
        )
    if not 1 <= port_of(url) <= 65535:
        raise TargetRefused("The port must be a number from 1 to 65535.")
    host = host_of(url)
    if _literal(host) is None and (
        _HOST_NAME.fullmatch(host) is None or _LAST_LABEL_IS_NUMBER.fullmatch(host) is not None
    ):
        raise TargetRefused("The host must be a name, or an address in its usual notation.")
    return url


def host_of(url: URL) -> str:
    """The host in ASCII, without the dot that may end a full name."""
    return url.raw_host.decode("ascii").removesuffix(".")


def port_of(url: URL) -> int:
    """The port, also when the URL leaves it out."""
    return url.port if url.port is not None else {"http": 80, "https": 443}[url.scheme]


class TargetGuard:
    """Applies rule 3, and the networks that the deployer has opened.

    Args:
        allowed_networks: Networks that may be reached although they are not public, or are this machine's.
        resolve: Stands in for the machine's resolver.
        is_own: Stands in for :func:`is_own`.
    """

    def __init__(
        self,
        allowed_networks: Sequence[Network] = (),
        resolve: Resolve | None = None,
        *,
        is_own: Callable[[Address], bool] = is_own,
    ) -> None:
        self._allowed_networks = tuple(allowed_networks)
        self._resolve = _resolver() if resolve is None else resolve
        self._is_own = is_own

    def permits(self, address: Address) -> bool:
        """True if `address` may be reached now."""
        if any(address in network for network in self._allowed_networks):
            return True
        return is_public(address) and not self._is_own(address)

    def check_literal(self, url: URL) -> None:
        """Refuse a URL that names a forbidden address outright; names are judged when they are resolved.

        Raises:
            TargetRefused: It does.
        """
        address = _literal(host_of(url))
        if address is not None and not self.permits(address):
            raise TargetRefused(_INTERNAL)

    async def addresses(self, url: URL) -> list[Address]:
        """The addresses to which a connection for `url` may go, in the resolver's order.

        Raises:
            TargetRefused: The name has no address, or one of its addresses may not be reached.
        """
        host = host_of(url)
        literal = _literal(host)
        if literal is not None:
            found = [literal]
        else:
            try:
                texts = await self._resolve(host, port_of(url))
                found = [ip_address(text) for text in dict.fromkeys(texts)]
            except (OSError, ValueError):  # a name that is not valid, or an address with a zone
                found = []
        if not found:
            raise TargetRefused("The host name could not be resolved.")
        if not all(self.permits(address) for address in found):
            raise TargetRefused(_INTERNAL)
        return found


def _literal(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    # ip_address() reads zones (fe80::1%eth0), which would choose the network interface.
    return None if "%" in host else address


def _resolver() -> Resolve:
    # A pool of its own: slow name servers must not occupy the threads that everything else uses.
    pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="resolver")

    def look_up(host: str, port: int) -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return await asyncio.get_running_loop().run_in_executor(pool, look_up, host, port)

    return resolve
