"""Executed in namespaces of its own, after the commands of the pages: whether what they have set up is a service.

Prints one JSON object.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

HOST = "tasks.example.org"
BACKUPS = Path("/var/backups/task-service")


class Proxy:
    """nginx, by the name in its certificate."""

    def __init__(self) -> None:
        self.credential: str | None = None
        self._tls = ssl.create_default_context(cafile="/etc/nginx/tls/tls.crt")

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        if self.credential is not None:
            headers["Authorization"] = f"Bearer {self.credential}"
        # The name leads to this machine: /etc/hosts.
        connection = HTTPSConnection(HOST, timeout=60, context=self._tls)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
            is_json = "json" in response.headers.get("content-type", "")
            return response.status, json.loads(text) if is_json else text
        finally:
            connection.close()

    def until_over(self, run_id: str) -> Any:
        def run_if_over() -> Any:
            run = self.must("GET", f"/api/runs/{run_id}")
            return run if run["finished_at"] else None

        return until(run_if_over, "a worker executes the run")

    def must(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = self.send(method, path, body)
        assert status < 300, (status, answer)
        return answer


def until(happened: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 120
    while not (result := happened()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return result


def upgrade(proxy: Proxy, task_id: str, commands: str) -> tuple[set[int], set[str]]:
    """Type the commands of an upgrade under traffic. The statuses of all answers, and the states of all runs."""
    is_over = threading.Event()
    answers: list[tuple[int, Any]] = []

    def request() -> None:
        # Often enough that each process is asked several times while it does not listen.
        while not is_over.wait(0.05):
            answers.append(proxy.send("GET", "/api/tasks"))
            answers.append(proxy.send("POST", f"/api/tasks/{task_id}/run"))

    with ThreadPoolExecutor() as pool:
        traffic = pool.submit(request)
        try:
            subprocess.run(["bash", commands], check=True, stdout=sys.stderr)
        finally:
            is_over.set()
        # A request without an answer is an error here.
        traffic.result()
    run_ids = [answer["id"] for status, answer in answers if status == 202]
    ended = [proxy.until_over(run_id)["state"] for run_id in run_ids]
    return {status for status, _ in answers}, set(ended)


def main(password: str, commands: str) -> None:
    proxy = Proxy()
    until(lambda: proxy.send("GET", "/readyz")[0] == 200, "nginx reaches the service")
    until(lambda: all(_listens(port) for port in (8000, 8001)), "both processes serve")
    login = {"username": "ada", "password": password}
    proxy.credential = session = proxy.must("POST", "/api/auth/login", login)["access_token"]
    proxy.credential = proxy.must("POST", "/api/keys", {"name": "a program"})["key"]
    task = {"name": "hello", "handler": "command", "params": {"argv": ["echo", "hello"]}}
    task_id = proxy.must("POST", "/api/tasks", task)["id"]
    run_id = proxy.must("POST", f"/api/tasks/{task_id}/run")["id"]
    ended = proxy.until_over(run_id)
    # A dump has its second in its name, and the first one may have been made in this one.
    time.sleep(1)
    statuses, states = upgrade(proxy, task_id, commands)
    proxy.credential = session
    after = proxy.send("GET", "/api/auth/me")[0]
    doctor = subprocess.run(["task-service", "doctor"], check=False, capture_output=True, text=True)
    one = ("task-service@8000.socket", "task-service@8000")
    subprocess.run(["systemctl", "stop", *one], check=True)
    without_one = [proxy.send("GET", "/readyz")[0] for _ in range(5)]
    (url,) = [
        line.partition("=")[2]
        for line in Path("/etc/task-service.env").read_text().splitlines()
        if line.startswith("TASK_SERVICE_DATABASE_URL=")
    ]
    secret = url.split(":")[2].split("@")[0]
    lines = [_read(name / "cmdline") for name in Path("/proc").iterdir() if name.name.isdecimal()]
    dumps = [
        subprocess.run(["pg_restore", "--list", dump], check=True, capture_output=True, text=True)
        for dump in BACKUPS.glob("*.dump")
    ]
    print(
        json.dumps(
            {
                "run": ended["state"],
                "statuses during the upgrade": sorted(statuses),
                "runs after the upgrade": sorted(states),
                "login after the upgrade": after,
                "versions after the upgrade": sorted(_running_versions()),
                "metrics": proxy.send("GET", "/metrics")[0],
                "plain http": _plain(),
                "http version": _http_version(),
                "doctor": [doctor.returncode, doctor.stdout],
                "without one of the two": without_one,
                "secret in command lines": any(secret in line for line in lines),
                "processes seen": len(lines),
                "tables in the dumps": ["TABLE DATA public runs" in each.stdout for each in dumps],
                "secrets.json": oct(Path("/var/lib/task-service/secrets.json").stat().st_mode),
            }
        )
    )


def _listens(port: int) -> bool:
    try:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/readyz", headers={"Host": HOST})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _plain() -> list[Any]:
    connection = HTTPConnection(HOST, timeout=60)
    connection.request("GET", "/tasks")
    response = connection.getresponse()
    connection.close()
    return [response.status, response.headers["location"]]


def _http_version() -> str:
    """Of what the client and nginx agree on."""
    asked = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_version}"]
    tls = ["--cacert", "/etc/nginx/tls/tls.crt", f"https://{HOST}/readyz"]
    done = subprocess.run([*asked, *tls], check=True, capture_output=True, text=True)
    return done.stdout


def _running_versions() -> set[str]:
    """Those whose code the processes of the service have on their path."""
    environments = [_read(name / "environ") for name in Path("/proc").iterdir()]
    return set(
        re.findall(r"PYTHONPATH=/opt/task-service/versions/([\d.]+)/", "\n".join(environments))
    )


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
