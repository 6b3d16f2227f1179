"""What the pages about deployment need of systemctl, on a machine without systemd: it starts what units name.

Of a unit it honours what decides about settings, users, folders and signals. It confines nothing.
"""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

UNITS = Path("/etc/systemd/system")
STATE = Path("/run/units")
# Where systemd takes them from as well.
DYNAMIC_USER = 61_184


class Unit:
    """A unit of :data:`UNITS`, or an instance of a template."""

    def __init__(self, name: str) -> None:
        self.name = name if "." in name else f"{name}.service"
        stem, _, kind = self.name.rpartition(".")
        template, at, self.instance = stem.partition("@")
        self.settings: dict[str, list[str]] = defaultdict(list)
        for line in (UNITS / f"{template}{at}.{kind}").read_text().splitlines():
            key, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                self.settings[key].append(value.replace("%i", self.instance))

    def one(self, key: str, default: str = "") -> str:
        return self.settings[key][-1] if self.settings[key] else default

    @property
    def pid_file(self) -> Path:
        return STATE / f"{self.name}.pid"

    def environment(self) -> dict[str, str]:
        """Files go before what the unit says itself."""
        lines = [*self.settings["Environment"]]
        for file in map(
            Path, (each.removeprefix("-") for each in self.settings["EnvironmentFile"])
        ):
            lines += [line for line in file.read_text().splitlines() if line and line[0] != "#"]
        given = dict(shlex.split(line)[0].split("=", 1) for line in lines)
        return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **given}

    def start(self) -> None:
        if self.name.endswith(".timer"):
            return
        if self.name.endswith(".socket"):
            self._keep_socket()
            return
        listener = None
        for required in self.settings["Requires"]:
            unit = Unit(required)
            if not unit.pid_file.exists():
                unit.start()
            listener = unit.kept_socket()
        is_dynamic = self.one("DynamicUser") == "yes"
        owner = DYNAMIC_USER if is_dynamic else pwd.getpwnam(self.one("User")).pw_uid
        group = DYNAMIC_USER if is_dynamic else pwd.getpwnam(self.one("User")).pw_gid
        for folder in self.settings["StateDirectory"]:
            path = Path("/var/lib", folder)
            path.mkdir(exist_ok=True)
            path.chmod(int(self.one("StateDirectoryMode", "0755"), 8))
            os.chown(path, owner, group)
        notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notifications.bind(f"\0{self.name}{time.monotonic_ns()}")
        notifications.settimeout(0.1)
        named = {"NOTIFY_SOCKET": "@" + notifications.getsockname()[1:].decode()}
        command = shlex.split(self.one("ExecStart"))
        if listener is not None:
            passing = f'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&{listener.fileno()}'
            command = ["sh", "-c", passing, "sh", *command]
        with (STATE / f"{self.name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                pass_fds=() if listener is None else (listener.fileno(),),
                cwd="/",
                env=self.environment() | (named if self.one("Type") == "notify" else {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=owner,
                group=group,
                extra_groups=[],
                umask=int(self.one("UMask", "0022"), 8),
            )
        if self.one("Type") == "oneshot":
            code = process.wait()
            if code:
                sys.exit(f"{self.name} failed: {(STATE / f'{self.name}.log').read_text()}")
            return
        self.pid_file.write_text(str(process.pid))
        while self.one("Type") == "notify":
            with suppress(TimeoutError):
                assert notifications.recv(100) == b"READY=1"
                return
            if process.poll() is not None:
                sys.exit(f"{self.name} failed: {(STATE / f'{self.name}.log').read_text()}")

    @property
    def _hand_over(self) -> str:
        return f"\0{self.name}"

    def _keep_socket(self) -> None:
        """In a process of its own, which hands it over to others."""
        host, _, port = self.one("ListenStream").rpartition(":")
        kept = socket.create_server((host, int(port)), backlog=int(self.one("Backlog")))
        others = socket.socket(socket.AF_UNIX)
        others.bind(self._hand_over)
        others.listen()
        if pid := os.fork():
            self.pid_file.write_text(str(pid))
            return
        os.setsid()
        # A process that reads the output of this program must not wait for the started unit.
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        while True:
            with others.accept()[0] as other:
                socket.send_fds(other, [b"."], [kept.fileno()])

    def kept_socket(self) -> socket.socket:
        with socket.socket(socket.AF_UNIX) as keeper:
            keeper.connect(self._hand_over)
            (number,) = socket.recv_fds(keeper, 1, 1)[1]
        return socket.socket(fileno=number)

    def stop(self) -> None:
        pid = int(self.pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 120
        while _is_alive(pid):
            if time.monotonic() > deadline:
                sys.exit(f"{self.name} does not stop")
            time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main(command: str, *words: str) -> None:
    STATE.mkdir(exist_ok=True)
    names = [word for word in words if not word.startswith("-")]
    if command == "daemon-reload":
        return
    if (command, names) == ("reload", ["nginx"]):
        subprocess.run(["nginx", "-s", "reload"], check=True)
        return
    for unit in map(Unit, names):
        match command:
            case "stop":
                unit.stop()
            case "restart":
                unit.stop()
                unit.start()
            case "start":
                unit.start()
            case "enable" if "--now" in words:
                unit.start()
            case _:
                sys.exit(f"unknown command: {command}")


if __name__ == "__main__":
    main(*sys.argv[1:])
