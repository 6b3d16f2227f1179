"""Requests of the service to other machines, with a guard against server-side request forgery (ASVS 5.0, 1.3.6; API7:2023).

The rules, in the order of their checks, for every URL and every target of a redirect:

1. The scheme is http or https, there is no user name or password, and the port is any from 1 to 65535.
2. The host is a name, or an address in its usual notation. Names that a resolver would read as an address in octal,
   hexadecimal, as one number or with missing parts are refused, and so are IPv6 zones.
3. The name is resolved once, and *every* address of it must be public and not this machine's own: a firewall that
   closes a port to others still admits the machine itself. The connection then uses one of exactly these
   addresses, so a name server that changes its answer afterwards (DNS rebinding) has no effect.

An address is public unless an IANA special-purpose registry (RFC 6890) lists it. The list is here because the standard
library's list differs between Python versions. An IPv6 address must be in 2000::/3, which excludes IPv4-mapped, NAT64,
link-local, unique-local and multicast addresses. The machine's own addresses are read from the kernel at each connection,
since they may change. The operator can permit internal networks, and addresses of the machine, by name.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from httpx2 import (
    URL,
    AsyncHTTPTransport,
    ConnectError,
    ConnectTimeout,
    InvalidURL,
    Limits,
    Request,
    Response,
    create_ssl_context,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a name; the second argument is the port. Raises OSError when there is no address."""

_CONNECT_TIMEOUT: Final = 10.0
_ADDRESSES_TRIED: Final = 3

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
# "Ends in a number" in the WHATWG URL standard: a resolver would read such a name as an address.
_LAST_LABEL_IS_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)", re.IGNORECASE)

_INTERNAL: Final = "This address is internal or reserved. Use a public address, or ask the operator to permit its network."
# bind() fails with these if the address is another machine's.
_OF_ANOTHER_MACHINE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class OutboundRefused(ValueError):
    """The URL may not be requested. The message is for the task's owner and names no internal address."""


def is_public(address: Address) -> bool:
    """True if `address` can be a machine on the public Internet."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _REFUSED)


def is_own(address: Address) -> bool:
    """True if `address` is now an address of this machine, on any interface.

    A socket can be bound only to the machine's own addresses, including secondary addresses and prefixes that are
    routed to the machine itself, on every platform. If binding proves nothing (`ip_nonlocal_bind` on Linux, or no
    free file descriptor), every address counts as the machine's own and is refused.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        return error.errno not in _OF_ANOTHER_MACHINE
    return True


def parse_url(text: str) -> URL:
    """Parse a URL, applying rules 1 and 2.

    Raises:
        OutboundRefused: The URL breaks a rule.
    """
    try:
        url = URL(text)
    except InvalidURL:
        raise OutboundRefused(
            "This is not a URL. Write http://host/path or https://host/path."
        ) from None
    if url.scheme not in {"http", "https"}:
        raise OutboundRefused("The URL must begin with http:// or https://.")
    if url.userinfo:
        raise OutboundRefused(
            "The URL must not contain a user name or a password. Send them in a header."
        )
    if not 1 <= port_of(url) <= 65535:
        raise OutboundRefused("The port must be a number from 1 to 65535.")
    host = host_of(url)
    if _literal(host) is None and (
        _HOST_NAME.fullmatch(host) is None or _LAST_LABEL_IS_NUMBER.fullmatch(host) is not None
    ):
        raise OutboundRefused("The host must be a name, or an address in its usual notation.")
    return url


def host_of(url: URL) -> str:
    """The host in ASCII, without the dot that may end a full name."""
    return url.raw_host.decode("ascii").removesuffix(".")


def port_of(url: URL) -> int:
    """The port; by default the scheme's port."""
    return url.port if url.port is not None else {"http": 80, "https": 443}[url.scheme]


def _resolver() -> Resolve:
    # Its own pool: slow name servers must not occupy the threads of the default executor.
    pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="resolver")

    def look_up(host: str, port: int) -> list[str]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]

    async def resolve(host: str, port: int) -> Sequence[str]:
        return await asyncio.get_running_loop().run_in_executor(pool, look_up, host, port)

    return resolve


@dataclass(frozen=True)
class OutboundPolicy:
    """Applies rule 3, and allows the networks that the operator has permitted.

    Args:
        allowed_networks: Permitted networks that are internal or this machine's.
        resolve: Replaces the machine's resolver.
        is_own: Replaces :func:`is_own`.
    """

    allowed_networks: Sequence[Network] = ()
    resolve: Resolve = field(default_factory=_resolver)
    is_own: Callable[[Address], bool] = is_own

    def permits(self, address: Address) -> bool:
        """True if `address` may be reached now."""
        if any(address in network for network in self.allowed_networks):
            return True
        return is_public(address) and not self.is_own(address)

    def check_literal(self, url: URL) -> None:
        """Refuse a URL whose host is a forbidden address. Names are checked when they are resolved.

        Raises:
            OutboundRefused: The address may not be reached.
        """
        address = _literal(host_of(url))
        if address is not None and not self.permits(address):
            raise OutboundRefused(_INTERNAL)

    async def addresses(self, url: URL) -> list[Address]:
        """The addresses to which a connection for `url` may go, in the resolver's order.

        Raises:
            OutboundRefused: The name has no address, or one of its addresses may not be reached.
        """
        host = host_of(url)
        literal = _literal(host)
        if literal is not None:
            found = [literal]
        else:
            try:
                texts = await self.resolve(host, port_of(url))
                found = [ip_address(text) for text in dict.fromkeys(texts)]
            except (OSError, ValueError):  # a name that is not valid, or an address with a zone
                found = []
        if not found:
            raise OutboundRefused("The host name has no address. Check its spelling.")
        if not all(self.permits(address) for address in found):
            raise OutboundRefused(_INTERNAL)
        return found


def _literal(host: str) -> Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    # ip_address() reads zones (fe80::1%eth0), which would choose the network interface.
    return None if "%" in host else address


@cache
def _machines_tls() -> ssl.SSLContext:
    # Reading the machine's certificates takes longer than a request, so the requests of a process share them.
    return create_ssl_context()


@asynccontextmanager
async def send(policy: OutboundPolicy, request: Request, url: URL) -> AsyncGenerator[Response]:
    """Send a request to the first of the checked addresses that accepts a connection.

    There are no cookies, netrc, proxies or redirects, and the connection is closed after the response.

    Args:
        policy: Decides which addresses may be reached.
        request: Its `Host` names the host; this function sets the address.
        url: The URL to request.

    Raises:
        OutboundRefused: The name has no address, or one of its addresses may not be reached.
        HTTPError: There was no answer.
    """
    addresses = (await policy.addresses(url))[:_ADDRESSES_TRIED]
    request.extensions = {
        "sni_hostname": host_of(url),
        "timeout": {"connect": _CONNECT_TIMEOUT, "read": None, "write": None, "pool": None},
    }
    async with AsyncHTTPTransport(
        verify=_machines_tls(), trust_env=False, limits=Limits(max_keepalive_connections=0)
    ) as transport:
        for address in addresses[:-1]:
            request.url = url.copy_with(host=str(address))
            with suppress(ConnectError, ConnectTimeout):
                response = await transport.handle_async_request(request)
                break
        else:
            request.url = url.copy_with(host=str(addresses[-1]))
            response = await transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()
