"""Two hosts and a database host between them, as network namespaces of this machine, whose cables can be pulled.

::

    alpha ── 198.18.x.0/30 ── database ── 198.18.x.4/30 ── beta

Nothing of it is reachable from the machine itself. It needs root and Debian's iproute2.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import URL

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace with a cable to the database's.

    Attributes:
        namespace: Its name.
        cable: The database's end of the cable.
        database: The database's address, as seen from here.
    """

    namespace: str
    cable: str
    database: str


class Network:
    """The three namespaces."""

    def __init__(self, name: str) -> None:
        self._name = name
        # A range for tests of networks (RFC 2544), and in it a part by chance.
        self._net = f"198.18.{secrets.randbelow(256)}"
        self.database = f"{name}-database"

    def add(self, number: int, name: str) -> Host:
        """Another host, connected to the database's."""
        host = Host(f"{self._name}-{name}", f"{name}0", f"{self._net}.{number * 4 + 1}")
        own = f"{self._net}.{number * 4 + 2}"
        _ip("netns", "add", host.namespace)
        end = ["type", "veth", "peer", "name", "eth0", "netns", host.namespace]
        _ip("-n", self.database, "link", "add", host.cable, *end)
        for namespace, device, address in (
            (self.database, host.cable, host.database),
            (host.namespace, "eth0", own),
        ):
            _ip("-n", namespace, "address", "add", f"{address}/30", "dev", device)
            _ip("-n", namespace, "link", "set", device, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        return host

    def cut(self, host: Host) -> int:
        """Pull its cable: whatever is sent gets lost, without an error. The boot clock afterwards."""
        _ip("-n", self.database, "link", "set", host.cable, "down")
        return now()

    def heal(self, host: Host) -> int:
        """Plug it in again. The boot clock before."""
        healed = now()
        _ip("-n", self.database, "link", "set", host.cable, "up")
        return healed


@contextmanager
def network() -> Iterator[Network]:
    """The database's namespace; hosts that are added to it go with it.

    A test in a place without root or `ip netns` is visibly skipped.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2 (apt-get install iproute2)")
    made = Network(f"msk-{secrets.token_hex(4)}")
    try:
        try:
            _ip("netns", "add", made.database)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"ip netns does not work here: {error.stderr.strip()}")
        yield made
    finally:
        # With a namespace go its devices, and the other ends of their cables.
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            name = line.split()[0]
            if name.startswith(f"{made.database.rpartition('-')[0]}-"):
                _ip("netns", "delete", name)


def seen_from(host: Host, port: int) -> URL:
    """The database with this port as a process on this host reaches it.

    A lost packet is no error for TCP: without these limits the answer to a lost packet is waited for a quarter of an hour.
    """
    return URL.create(
        "postgresql+psycopg",
        username="postgres",
        host=host.database,
        port=port,
        database="postgres",
        query={"connect_timeout": "2", "tcp_user_timeout": "1000"},
    )


@contextmanager
def process(host: Host, module: str, setup: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process on a host, with this line on its standard input."""
    started = subprocess.Popen(
        ["ip", "netns", "exec", host.namespace, sys.executable, "-m", module],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ExitStack() as stack:
        stack.callback(started.wait, 60)
        stack.callback(started.kill)
        for pipe in (started.stdin, started.stdout, started.stderr):
            assert pipe is not None
            stack.callback(pipe.close)
        _pipe(started.stdin).write(setup + "\n")
        _pipe(started.stdin).flush()
        yield started


def now() -> int:
    """The boot clock in nanoseconds: all namespaces share it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _ip(*words: str) -> None:
    command: Sequence[str] = ("ip", *words)
    subprocess.run(command, check=True, capture_output=True, text=True)
