"""`http_request` on a machine with public addresses, which a firewall closes to the outside only (OWASP API7:2023)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from examples.task_service.tests.faults.nursery import ROOT

pytestmark = pytest.mark.faults

MODULE = "examples.task_service.tests.faults.own_addresses"


def test_the_machines_own_public_addresses_are_not_reached() -> None:
    unshare = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]
    if subprocess.run([*unshare, "ip", "link"], check=False, capture_output=True).returncode:
        pytest.skip(
            "network namespaces need iproute2 (apt-get install iproute2), and a kernel that grants them"
        )
    done = subprocess.run(
        [*unshare, sys.executable, "-m", MODULE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {
        "loopback, opened": True,
        "address": False,
        "secondary address": False,
        "IPv6": False,
        "name": False,
        "redirect": False,
        "opened": True,
    }
