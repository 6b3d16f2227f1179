"""nginx and HAProxy with the files of `deploy/`, in front of processes of a test."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from examples.task_service.tests.faults.nursery import ROOT, until
from tests.ports import can_listen, free_port

DEPLOY = ROOT / "examples" / "task_service" / "deploy"
HOST = "tasks.example.org"

# As Debian's own file, which includes the site.
_NGINX = """
user root;
worker_processes auto;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 768; }}
http {{
    access_log off;
    include {folder}/site.conf;
    include {folder}/upstream.conf;
}}
"""


def tls(folder: Path) -> ssl.SSLContext:
    """What a client needs to know of the proxies of this folder."""
    return ssl.create_default_context(cafile=folder / "tls" / "tls.crt")


@contextmanager
def proxy(name: str, folder: Path, ports: list[int]) -> Iterator[int]:
    """The port of a proxy with TLS.

    Args:
        name: `nginx` or `haproxy`.
        folder: For its files.
        ports: Of the two processes behind it.
    """
    if shutil.which(name) is None:
        pytest.skip(f"no {name}: apt-get install {name}")
    port = free_port()
    replaced = {
        "127.0.0.1:8000": f"127.0.0.1:{ports[0]}",
        "127.0.0.1:8001": f"127.0.0.1:{ports[1]}",
        "listen 80": f"listen 127.0.0.1:{free_port()}",
        "listen 443": f"listen 127.0.0.1:{port}",
        "bind :80": f"bind 127.0.0.1:{free_port()}",
        "bind :443": f"bind 127.0.0.1:{port}",
        "/etc/nginx/": f"{folder}/",
        "/etc/haproxy/": f"{folder}/",
    }

    def shipped(file: str) -> str:
        text = (DEPLOY / file).read_text()
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    if not (folder / "tls").exists():
        # It writes beside itself.
        shutil.copy(DEPLOY / "make-certificate", folder)
        made = [folder / "make-certificate", HOST]
        subprocess.run(made, check=True, capture_output=True)
        both = (folder / "tls" / "tls.crt", folder / "tls" / "tls.key")
        (folder / "tls.pem").write_text("".join(file.read_text() for file in both))
    if name == "nginx":
        (folder / "site.conf").write_text(shipped("nginx.conf"))
        (folder / "upstream.conf").write_text(shipped("nginx-upstream-host.conf"))
        (folder / "nginx.conf").write_text(_NGINX.format(folder=folder))
        command = ["nginx", "-c", f"{folder}/nginx.conf", "-g", "daemon off;"]
    else:
        (folder / "haproxy.cfg").write_text(shipped("haproxy.cfg"))
        command = ["haproxy", "-db", "-f", f"{folder}/haproxy.cfg"]
    with (folder / f"{name}.output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or not can_listen(port), f"{name} listens")
        assert process.poll() is None, (folder / f"{name}.output").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(60)
