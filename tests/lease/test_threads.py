"""The lease cache under eight threads, with the GIL and, on a free-threaded build, without it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from msk_auth import Authenticator, Owner, local_principal
from msk_auth.errors import CredentialRefused
from msk_auth.stores.memory import MemoryKeyStore

THREADS = 8
REVOCATIONS = 5
LEASE = timedelta(milliseconds=20)
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def find_owner(owner_id: str) -> Owner[str]:
    return Owner(owner_id, frozenset({"tasks:read"}), owner_id)


def test_eight_threads_get_their_own_principals_and_no_revoked_key_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Fewer entries than keys, so that entries are evicted while other threads read them.
    monkeypatch.setattr("msk_auth.leases.MAX_ENTRIES", 8)
    authenticator = Authenticator(MemoryKeyStore(), find_owner=find_owner, lease=LEASE)
    now = datetime.now(UTC)
    owners = [
        local_principal(find_owner(f"owner{number}"), at=now, interactive=True)
        for number in range(16)
    ]
    keys = [authenticator.create_key(owner, name="k", lifetime="unlimited") for owner in owners]
    victims = keys[:REVOCATIONS]
    all_running = threading.Barrier(THREADS)
    is_over = threading.Event()
    revoked: set[str] = set()

    def verify_until_the_end(thread: int) -> int:
        all_running.wait()
        turn = accepted = 0
        while not is_over.is_set():
            turn += 1
            # Every second request presents the key that is revoked next, or was just now.
            among = victims[len(revoked) - 1 :][:2] if turn % 2 else keys
            key = among[(thread + turn) % len(among)] if among else keys[-1]
            was_revoked = key.record.id in revoked
            try:
                principal = authenticator.authenticate([f"Bearer {key.value.reveal()}"])
            except CredentialRefused:
                assert key in victims
                continue
            assert (principal.owner.id, principal.key_id) == (key.record.owner_id, key.record.id)
            assert not was_revoked, "a verification that began after revoke_key returned succeeded"
            accepted += 1
        return accepted

    def revoke() -> int:
        all_running.wait()
        try:
            for owner, victim in zip(owners, victims, strict=False):
                authenticator.revoke_key(owner, victim.record.id)
                revoked.add(victim.record.id)
                # A lease that outlived the revocation would be seen within its own length.
                is_over.wait(LEASE.total_seconds())
        finally:
            is_over.set()
        return 0

    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(verify_until_the_end, thread) for thread in range(THREADS - 1)]
        running.append(pool.submit(revoke))
        accepted = sum(each.result() for each in running)
    assert len(revoked) == REVOCATIONS
    assert accepted > 0


if IS_FREE_THREADED:

    def test_importing_the_library_leaves_the_gil_off() -> None:
        # An extension module that does not declare its support switches the GIL on, with a RuntimeWarning.
        code = "import sys, msk_auth; raise SystemExit(sys._is_gil_enabled())"
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
