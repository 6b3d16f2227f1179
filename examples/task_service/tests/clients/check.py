"""The OpenAPI document of a running service, in third-party tools.

A fuzzer holds each answer against the document and follows it from operation to operation; clients in Python and TypeScript
are generated from it, type-checked, and each runs a task. Started by `make test-clients`, in an environment that has the tools.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PASSWORD = "a quiet river bends"

# What would end the fuzzer's own login, and what needs a person or a stream.
NOT_FUZZED = "/api/auth/(log|sess|change|reauth|set-)|/api/admin/users/.+/(sessions|invitation)|/log$|/github$"


def main(task_service: Path, node: Path, folder: Path) -> None:
    """Serve, and hand the document to each of the tools.

    Args:
        task_service: The command of the service.
        node: The interpreter of JavaScript.
        folder: Has `node_modules`, and takes what is generated.
    """
    with served(task_service) as (origin, link):
        login = {"username": "admin", "password": PASSWORD}
        ask(origin, "/api/auth/set-password", {"token": link, "password": PASSWORD})
        token = ask(origin, "/api/auth/login", login)["access_token"]
        key = ask(origin, "/api/keys", {"name": "clients"}, token)["key"]
        document = ask(origin, "/openapi.json")
        (folder / "openapi.json").write_text(json.dumps(document))
        environment = os.environ | {"URL": origin, "KEY": key}
        typescript(node, folder, environment)
        python(folder, environment)
        fuzz(origin, token, folder)


@contextmanager
def served(task_service: Path) -> Iterator[tuple[str, str]]:
    """A fresh service on a free port of this machine: its origin, and its link for a first password."""
    with tempfile.TemporaryDirectory() as data:
        settings = {"TASK_SERVICE_DATA_DIR": data, "TASK_SERVICE_PORT": "0"}
        service = subprocess.Popen(
            [task_service, "serve"],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert service.stdout is not None
        try:
            for line in service.stdout:
                found = re.search(r"(http://127\.0\.0\.1:\d+)/set-password#(\S+)", line)
                if found is not None:
                    break
            else:
                raise AssertionError("the service did not start")
            # Read on, so that it never waits for a full pipe.
            subprocess.Popen(["cat"], stdin=service.stdout, stdout=subprocess.DEVNULL)
            yield found[1], found[2]
        finally:
            service.send_signal(signal.SIGTERM)
            assert service.wait(60) == 0


def ask(origin: str, path: str, body: Any = None, token: str | None = None) -> Any:
    """The answer of the service as JSON; None if it has no content."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(origin + path, content, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def typescript(node: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Generate types, compile a program with them, and let it run a task."""
    modules = folder / "node_modules"
    run(
        node,
        modules / "openapi-typescript/bin/cli.js",
        "openapi.json",
        "-o",
        "schema.d.ts",
        at=folder,
    )
    run(node, modules / "typescript/bin/tsc", "--project", ".", at=folder)
    run(node, "smoke.js", at=folder, environment=environment)


def python(folder: Path, environment: Mapping[str, str]) -> None:
    """Generate a package, without a warning, and let a program run a task with it."""
    command = Path(sys.executable).with_name("openapi-python-client")
    generated = ("--path", "openapi.json", "--output-path", "client", "--meta", "none")
    run(command, "generate", *generated, "--fail-on-warning", at=folder, environment=environment)
    run(sys.executable, "smoke.py", at=folder, environment=environment)


def fuzz(origin: str, token: str, folder: Path) -> None:
    """Send what the document allows and what it forbids, alone and in sequences."""
    run(
        Path(sys.executable).with_name("schemathesis"),
        *("run", f"{origin}/openapi.json", "--header", f"Authorization: Bearer {token}"),
        *("--exclude-path-regex", NOT_FUZZED, "--phases", "examples,coverage,fuzzing,stateful"),
        *("--max-examples", "15", "--seed", "1", "--suppress-health-check", "all"),
        *("--request-timeout", "60"),
        # Whether a cursor or a link is one, no schema can say.
        *("--exclude-checks", "positive_data_acceptance"),
        at=folder,
    )


def run(*command: str | Path, at: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a command, which has to succeed."""
    print("---", *(Path(command[0]).name, *command[1:3]), flush=True)
    subprocess.run(command, cwd=at, env=environment, check=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
