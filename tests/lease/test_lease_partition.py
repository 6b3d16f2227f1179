"""The guarantee on two hosts, one of which loses its path to the database in the middle of revocations (G2, G5).

Each host is a network namespace with a cable to the database's. What is sent over a cable that was pulled gets lost,
without an error, as with a switch that fails or a rule of a firewall.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from tests.lease import hosts
from tests.lease.test_lease_processes import fill

LEASE_MS = 500
LEASE_NS = LEASE_MS * 1_000_000
SECONDS_CUT = 5.0
SECONDS_HEALED = 3.0
KEYS = 300


@dataclass(frozen=True)
class History:
    """What a process wrote down."""

    revoked: list[tuple[str, int, int]]
    verified: list[tuple[str, int, int, str]]
    failed_revocations: int

    @classmethod
    def of(cls, process: subprocess.Popen[str]) -> History:
        printed, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return cls(**json.loads(printed))

    def outcomes(self, *, after: int, before: int) -> set[str]:
        """Of the verifications that began after one moment and ended before the other."""
        return {
            outcome
            for _, began, ended, outcome in self.verified
            if after <= began and ended <= before
        }


def late(histories: list[History]) -> list[Any]:
    """The accepted verifications that began after a revocation of the same key had returned, anywhere."""
    returned = {key_id: at for history in histories for key_id, _, at in history.revoked}
    return [
        (key_id, began)
        for history in histories
        for key_id, began, _, outcome in history.verified
        if outcome == "accepted" and began >= returned.get(key_id, began + 1)
    ]


@dataclass(frozen=True)
class Deployment:
    """A network of two hosts, and the database's URL on this machine."""

    network: hosts.Network
    alpha: hosts.Host
    beta: hosts.Host
    url: str


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with hosts.network() as net:
        alpha, beta = net.add(0, "alpha"), net.add(1, "beta")
        with hosts.postgres(net.database) as url:
            yield Deployment(net, alpha, beta, url.render_as_string(hide_password=False))


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.mark.faults
@pytest.mark.timeout(200)
@pytest.mark.parametrize("cut_off", ["who verifies", "who revokes"])
def test_a_process_that_is_cut_off_accepts_no_revoked_key_and_recovers(
    cut_off: str, deployment: Deployment
) -> None:
    net, alpha, beta = deployment.network, deployment.alpha, deployment.beta
    kept, *keys = fill(deployment.url, KEYS + 1)
    with ExitStack() as stack:

        def start(host: hosts.Host, seed: int, *, revokes: bool) -> subprocess.Popen[str]:
            setup = {
                "url": hosts.seen_from(host).render_as_string(hide_password=False),
                "lease_ms": LEASE_MS,
                "own": keys if revokes else [],
                "all": keys,
                "kept": kept,
                "pause": 0.1,
                "revokers": 8 if revokes else 0,
                "seed": seed,
            }
            module = "tests.lease.partition_process"
            process = stack.enter_context(hosts.process(host, module, json.dumps(setup)))
            assert read_line(process) == "ready"
            return process

        verifying = start(beta, 2, revokes=False)
        revoking = start(alpha, 1, revokes=True)
        victim = beta if cut_off == "who verifies" else alpha
        # One of eight at a time has returned: the others are under way.
        assert read_line(revoking) == "revoked"
        cut = net.cut(victim)
        time.sleep(SECONDS_CUT)
        healed = net.heal(victim)
        time.sleep(SECONDS_HEALED)
        end = hosts.now()
        histories = {"alpha": History.of(revoking), "beta": History.of(verifying)}

    lost, other = (
        (histories["beta"], histories["alpha"])
        if victim is beta
        else (histories["alpha"], histories["beta"])
    )
    assert late([lost, other]) == []

    # What the history shows: revocations were under way at the cut, and keys were still used on their leases.
    revoked = histories["alpha"].revoked
    assert any(began < cut < returned for _, began, returned in revoked)
    assert "accepted" in lost.outcomes(after=cut, before=cut + LEASE_NS)
    # Once no lease is left, who is cut off answers 503 and nothing else: it cannot know.
    assert lost.outcomes(after=cut + LEASE_NS, before=healed) == {"store_unavailable"}
    # The other host goes on as if nothing had happened.
    assert other.outcomes(after=cut, before=healed) >= {"accepted"}
    assert "store_unavailable" not in other.outcomes(after=cut, before=healed)
    if victim is beta:
        # No revocation waited for the host that could not be reached, or for its answer.
        assert any(began > cut and returned < healed for _, began, returned in revoked)
        assert histories["alpha"].failed_revocations == 0
    else:
        # Their outcome is unknown, and no caller got an answer that they succeeded.
        assert histories["alpha"].failed_revocations > 0
    # The path is back: good keys are accepted, revoked ones refused as such, and more can be revoked.
    assert lost.outcomes(after=healed, before=end) >= {"accepted", "key_revoked"}
    last = [outcome for _, began, _, outcome in lost.verified if began > end - LEASE_NS]
    assert "accepted" in last
    assert "store_unavailable" not in last
    assert any(began > healed for _, began, _ in revoked)


def test_the_checker_finds_an_acceptance_that_began_after_a_revocation_returned() -> None:
    revoking = History([("key", 10, 20)], [("key", 5, 6, "accepted")], 0)
    in_time = History([], [("key", 19, 30, "accepted"), ("key", 21, 22, "key_revoked")], 0)
    too_late = History([], [("key", 20, 21, "accepted"), ("other", 40, 41, "accepted")], 0)

    assert late([revoking, in_time]) == []
    assert late([revoking, in_time, too_late]) == [("key", 20)]
