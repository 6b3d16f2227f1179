"""`task-service serve`, from a clean environment: it starts, prints its link, answers and ends. Needs no test tools."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

COMMAND = Path(sys.executable).with_name("task-service")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("TASK_")
        }
        environment |= {"TASK_SERVICE_DATA_DIR": folder, "TASK_SERVICE_PORT": "0"}
        served = subprocess.Popen(
            [str(COMMAND), "serve"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
        )
        try:
            origin = _origin(served)
            for path, expected in (
                ("/readyz", b"ok"),
                ("/login", b"<html"),
                ("/openapi.json", b"{"),
            ):
                with urllib.request.urlopen(origin + path, timeout=60) as answer:
                    assert expected in answer.read().lower(), path
            _check_form_is_read(origin)
        finally:
            served.send_signal(signal.SIGTERM)
            code = served.wait(60)
        assert code == 0, code
    print("task-service: works")


def _check_form_is_read(origin: str) -> None:
    """A login that is refused shows that the service reads what its page sends."""
    status = 200
    try:
        urllib.request.urlopen(f"{origin}/login", b"username=admin&password=wrong", timeout=60)
    except urllib.error.HTTPError as refused:
        status = refused.code
        refused.close()
    assert status == 401, status


def _origin(served: subprocess.Popen[str]) -> str:
    assert served.stdout is not None
    lines = []
    for line in served.stdout:
        lines.append(line)
        found = re.search(r"http://127\.0\.0\.1:[1-9][0-9]*", line)
        if found is not None:
            return found[0]
    raise AssertionError("".join(lines))


if __name__ == "__main__":
    main()
