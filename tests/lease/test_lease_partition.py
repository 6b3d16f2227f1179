"""The guarantee on two hosts, one of which loses its path to the database in the middle of revocations (G2, G5).

Each host is a network namespace with a cable to the database's. What is sent over a cable that was pulled gets lost,
without an error, as with a switch that fails or a rule of a firewall.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.lease import hosts
from tests.lease.test_lease_processes import fill
from tests.own_postgres import OwnPostgres, own_postgres

# Longer than a busy machine takes to cut a path and to verify one key.
LEASE_MS = 5000
LEASE_NS = LEASE_MS * 1_000_000
KEYS = 400


@dataclass
class History:
    """What a process has reported so far."""

    revoked: list[tuple[str, int, int]] = field(default_factory=list)
    verified: list[tuple[str, int, int, str]] = field(default_factory=list)
    failed_revocations: int = 0

    def add(self, kind: str, *result: Any) -> None:
        match kind:
            case "revoked":
                self.revoked.append(result)
            case "verified":
                self.verified.append(result)
            case "failed":
                self.failed_revocations += 1

    def outcomes(self, *, after: int, before: int | None = None) -> set[str]:
        """Of the verifications that began after one moment and ended before the other."""
        return {
            outcome
            for _, began, ended, outcome in self.verified
            if after <= began and (before is None or ended <= before)
        }


class Reporter:
    """A process that reports, and its history."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.history = History()
        self._process = process
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.history.add(*json.loads(line))

    def use_the_kept_key(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("use it\n")
        self._process.stdin.flush()

    def until(self, happened: Callable[[History], bool]) -> None:
        """Wait for it as long as the process lives, for a minute at most."""
        deadline = time.monotonic() + 60
        while not happened(self.history):
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self) -> History:
        """Let it end; all that it reported."""
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        errors = self._process.stderr.read()
        self._reading.join()
        assert self._process.wait() == 0, errors
        return self.history


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
    """A network of two hosts, and the database."""

    network: hosts.Network
    alpha: hosts.Host
    beta: hosts.Host
    database: OwnPostgres


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    with hosts.network() as net:
        alpha, beta = net.add(0, "alpha"), net.add(1, "beta")
        with own_postgres(net.database, fsync="off") as database:
            yield Deployment(net, alpha, beta, database)


@pytest.mark.faults
@pytest.mark.parametrize("cut_off", ["verifying", "revoking"])
def test_a_process_that_is_cut_off_accepts_no_revoked_key_and_recovers(
    cut_off: str, deployment: Deployment
) -> None:
    net, alpha, beta = deployment.network, deployment.alpha, deployment.beta
    database = deployment.database
    kept, *keys = fill(database.url.render_as_string(hide_password=False), KEYS + 1)
    with ExitStack() as stack:

        def start(host: hosts.Host, seed: int, *, revokes: bool) -> Reporter:
            setup = {
                "url": hosts.seen_from(host, database.port).render_as_string(hide_password=False),
                "lease_ms": LEASE_MS,
                "own": keys if revokes else [],
                "all": keys,
                "kept": kept,
                "pause": 0.1,
                "revokers": 20 if revokes else 0,
                "seed": seed,
            }
            module = "tests.lease.partition_process"
            process = stack.enter_context(hosts.process(host, module, json.dumps(setup)))
            reporter = Reporter(process)
            stack.callback(reporter._reading.join)
            # Before the reader is waited for, a process that still runs is ended.
            stack.callback(process.kill)
            reporter.until(lambda history: bool(history.verified))
            return reporter

        verifying = start(beta, 2, revokes=False)
        revoking = start(alpha, 1, revokes=True)
        lost, other, victim = (
            (verifying, revoking, beta) if cut_off == "verifying" else (revoking, verifying, alpha)
        )
        # One of twenty at a time has returned: the others are under way.
        revoking.until(lambda history: bool(history.revoked))
        # Its lease begins now.
        lost.use_the_kept_key()
        lost.until(lambda history: any(key_id == kept[4:16] for key_id, *_ in history.verified))
        cut = net.cut(victim)
        lost.until(lambda history: bool(history.outcomes(after=cut + LEASE_NS)))
        other.until(lambda history: "accepted" in history.outcomes(after=cut + LEASE_NS))
        if victim is beta:
            # No revocation waits for the host that cannot be reached, or for its answer.
            revoking.until(lambda history: any(began > cut for _, began, _ in history.revoked))
        else:
            # Their outcome is unknown, and no caller gets an answer that they succeeded.
            revoking.until(lambda history: history.failed_revocations > 0)
        healed = net.heal(victim)
        # The path is back: good keys are accepted, revoked ones refused as such, and more can be revoked.
        revoking.until(lambda history: any(began > healed for _, began, _ in history.revoked))
        revoking.until(lambda history: any(began < cut < at for _, began, at in history.revoked))
        lost.until(
            lambda history: (
                history.outcomes(after=healed) >= {"accepted", "key_revoked"}
                and {outcome for *_, outcome in history.verified[-100:]}
                <= {"accepted", "key_revoked"}
            )
        )
        history, others = lost.end(), other.end()

    assert late([history, others]) == []
    # Once no lease is left, the process that is cut off answers 503 and nothing else: it cannot know.
    assert history.outcomes(after=cut + LEASE_NS, before=healed) == {"store_unavailable"}
    # The other host goes on as if nothing had happened.
    assert "store_unavailable" not in others.outcomes(after=cut, before=healed)
    if victim is beta:
        # Keys were still used on their leases. A process that revokes clears its own cache with each commit, so the key
        # that it verified just before the cut may need another read.
        assert "accepted" in history.outcomes(after=cut, before=cut + LEASE_NS)
        assert others.failed_revocations == 0
