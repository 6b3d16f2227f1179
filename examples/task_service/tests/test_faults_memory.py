"""The memory of the service stays small under every load."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.faults.clients import NoAnswer
from examples.task_service.tests.service_process import Serving, log_in, serving
from examples.task_service.tests.service_support import ADMIN_PASSWORD

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]

LIMIT_MIB = 128.0
GROWTH_MIB = 12.0
SECONDS = float(os.environ.get("MSK_AUTH_TEST_LOAD_SECONDS", "40"))


def resident_mib(service: Serving) -> float:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_small_after_the_start_and_flat_under_load(
    tmp_path: Path, record_property: Any
) -> None:
    with serving(tmp_path / "data") as service:
        after_start = resident_mib(service)
        body = {"token": service.token, "password": ADMIN_PASSWORD}
        assert service.request("POST", "/api/auth/set-password", body)[0] == 204
        login = log_in(service)
        service.request("PATCH", "/api/admin/config", {"max_keys_per_user": 100_000}, login)
        status, key = service.request("POST", "/api/keys", {"name": "k"}, login)
        assert status == 201
        _, tasks = service.request("GET", "/api/tasks", credential=key["key"])
        task_id = tasks["items"][0]["id"]
        stop = threading.Event()
        requests = [0]

        def load(number: int) -> None:
            while not stop.is_set():
                try:
                    service.request("GET", "/api/tasks", credential=key["key"])
                    service.request("GET", "/api/tasks", credential=f"msk_{number}")
                    service.request("POST", "/api/keys", {"name": "x" * 101}, login)
                    service.request("POST", f"/api/tasks/{task_id}/run", None, key["key"])
                    wrong = {"username": f"u{number}", "password": "not the password"}
                    service.request("POST", "/api/auth/login", wrong)
                except NoAnswer:
                    return
                requests[0] += 5

        threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            # What is made once (pools, threads, caches) is made in the first quarter.
            time.sleep(SECONDS / 4)
            warm = resident_mib(service)
            time.sleep(SECONDS * 3 / 4)
            loaded = resident_mib(service)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        figures = (
            f"{after_start:.0f} MiB, {warm:.0f} warm, {loaded:.0f} after {requests[0]} requests"
        )
        record_property("memory", figures)
        print(figures)
        assert after_start < LIMIT_MIB, figures
        assert loaded < LIMIT_MIB + GROWTH_MIB, figures
        assert loaded - warm < GROWTH_MIB, figures
        assert service.stop() == 0
