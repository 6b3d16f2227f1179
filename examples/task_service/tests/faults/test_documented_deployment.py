"""The commands of the pages about deployment, as they are typed, with PostgreSQL and nginx of Debian.

They run as root in namespaces of their own: the folders that they write to are copies, the ports are those of the pages, and
when the script ends so do all its processes. Not executed are pip, in whose place a script copies the code of the tree, and
systemd, in whose place :mod:`.systemctl` starts what the units name, as the users that they name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from examples.task_service.tests.faults.nursery import ROOT
from examples.task_service.tests.service_support import ADMIN_PASSWORD
from tests.own_postgres import postgres_binaries

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
ONE_MACHINE = ROOT / "docs" / "service" / "deploy.md"
SEVERAL = ROOT / "docs" / "service" / "several-machines.md"
UPGRADE = ROOT / "docs" / "service" / "upgrade.md"

_SET_UP = """
set -euo pipefail
ip link set lo up
# What is written to on a real machine is a copy here. The rest is seen as it is.
for folder in /etc /usr/local/sbin; do
    mkdir -p "$WORK$folder" && cp -a "$folder/." "$WORK$folder" && mount --bind "$WORK$folder" "$folder"
done
mkdir -p "$WORK/python" && mount --bind "$PYTHON" "$WORK/python"
mkdir -p "$WORK/packages" && mount --bind "$PACKAGES" "$WORK/packages"
mkdir -p "$WORK/dpkg" && mount --bind /var/lib/dpkg "$WORK/dpkg"
for folder in /opt /run /var/lib /var/log /var/backups; do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
mkdir -p /opt/python /opt/packages /run/postgresql /var/lib/nginx /var/lib/dpkg /var/log/nginx
mount --move "$WORK/dpkg" /var/lib/dpkg
mount --move "$WORK/python" /opt/python
mount --move "$WORK/packages" /opt/packages
mount -o remount,bind,ro /opt/python
mount -o remount,bind,ro /opt/packages
# The repository, in two versions: copies, since the pages delete one.
for version in 0.1.0 0.2.0; do
    mkdir -p /opt/task-service/versions/$version/examples
    cp -r "$TREE/src" /opt/task-service/versions/$version
    cp -r "$TREE/examples/task_service" /opt/task-service/versions/$version/examples
done
# Stand-ins for `python3 -m venv` and pip: an environment has what was installed into it, and as pip does, an installation
# deletes what was there before it copies.
cat > /usr/local/sbin/python3 <<'END'
#!/bin/sh
test "$1 $2" = '-m venv' || exit 1
mkdir -p "$3/bin"
cp /usr/local/sbin/pip "$3/bin/pip"
END
cat > /usr/local/sbin/pip <<'END'
#!/bin/sh
case "$*" in *--no-deps*.whl) ;; *) exit ;; esac
environment=$(cd "$(dirname "$0")/.." && pwd -P)
rm -rf "$environment/site"
sleep 2
mkdir "$environment/site"
cp -r src/msk_auth examples/task_service/src/task_service "$environment/site"
cat > "$environment/bin/task-service" <<SCRIPT
#!/bin/sh
PYTHONPATH=$environment/site:/opt/packages
# Where Python's own library is shared, it names a folder that the service's users may not enter.
LD_LIBRARY_PATH=/opt/python/lib
export PYTHONPATH LD_LIBRARY_PATH
exec /opt/python/bin/python3 -m task_service "\\$@"
SCRIPT
chmod 755 "$environment/bin/task-service"
END
chmod 755 /usr/local/sbin/python3 /usr/local/sbin/pip
echo '127.0.0.1 tasks.example.org' >> /etc/hosts
mkdir -p /etc/systemd/system
# Stand-ins: sudo for root, and the packages that Debian's apt-get would install.
cat > /usr/local/sbin/sudo <<'END'
#!/bin/sh
if [ "$1" = -u ]; then user=$2; shift 2; exec runuser -u "$user" -- "$@"; fi
exec "$@"
END
cat > /usr/local/sbin/apt-get <<'END'
#!/bin/sh
test "$1" = install || exit 1
shift
for package; do
    # The package, or the one with the version that it stands for.
    dpkg-query --show "$package" || dpkg-query --show "$package-[0-9]*" || exit 1
done
END
cat > /usr/local/sbin/systemctl <<END
#!/bin/sh
exec /opt/python/bin/python3 "$WORK/systemctl.py" "\\$@"
END
chmod 755 /usr/local/sbin/sudo /usr/local/sbin/apt-get /usr/local/sbin/systemctl
cp "$TREE/examples/task_service/tests/faults/systemctl.py" "$TREE/examples/task_service/tests/faults/documented_deployment.py" "$WORK"
export PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
# As Debian's packages leave the two: they run.
nginx
chown postgres /run/postgresql /var/lib
cd /
runuser -u postgres -- "$POSTGRES/initdb" --no-sync --auth-local=peer --auth-host=scram-sha-256 /var/lib/cluster > /dev/null
runuser -u postgres -- "$POSTGRES/pg_ctl" --wait --silent -D /var/lib/cluster -l /var/lib/cluster/log -o '-k /run/postgresql' start
chown root /var/lib
"""


def blocks(page: Path, section: str, language: str = "bash") -> list[str]:
    """The blocks of a section, as a reader copies them."""
    (found,) = re.findall(
        rf"^## {section}\n(.*?)(?=^## |\Z)", page.read_text(), re.MULTILINE | re.DOTALL
    )
    return re.findall(rf"^```{language}\n(.*?)^```$", found, re.MULTILINE | re.DOTALL)


def test_the_pages_commands_set_up_a_service(tmp_path: Path) -> None:
    missing = [name for name in ("unshare", "nginx", "curl", "runuser") if not shutil.which(name)]
    binaries = postgres_binaries()
    if missing or binaries is None or os.geteuid() != 0:
        pytest.skip(f"needs root, PostgreSQL and nginx; missing: {missing}")
    (settings,) = blocks(ONE_MACHINE, "Write the settings", "ini")
    in_order = [
        *blocks(ONE_MACHINE, "Install the service"),
        *blocks(ONE_MACHINE, "Add a user and a folder"),
        f"cat > /etc/task-service.env <<'END'\n{settings}END\nchmod 600 /etc/task-service.env\n",
        *blocks(ONE_MACHINE, "Write the settings"),
        *blocks(SEVERAL, "PostgreSQL"),
        *blocks(SEVERAL, "With systemd"),
    ]
    assert len(in_order) == 8
    typed = "\n".join(in_order).replace(
        "--password-stdin\n", f"--password-stdin <<< {ADMIN_PASSWORD!r}\n"
    )
    upgrade = tmp_path / "upgrade"
    upgrade.write_text("set -eux\n" + "\n".join(blocks(UPGRADE, "Upgrade")))
    script = tmp_path / "commands"
    script.write_text(
        f"{_SET_UP}{{\nset -x\n{typed}\n}} >&2\n"
        f"/opt/python/bin/python3 $WORK/documented_deployment.py {ADMIN_PASSWORD!r} {upgrade}\n"
        "nginx -s quit\n"
    )
    packages = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    done = subprocess.run(
        [
            *[
                "unshare",
                "--mount",
                "--net",
                "--pid",
                "--fork",
                "--mount-proc",
                "--kill-child",
                "bash",
            ],
            script,
        ],
        check=False,
        capture_output=True,
        text=True,
        env={
            "PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
            "WORK": str(tmp_path / "machine"),
            "PYTHON": sys.base_prefix,
            "PACKAGES": str(packages),
            "POSTGRES": str(binaries),
            "TREE": str(ROOT),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    code, doctor = seen.pop("doctor")
    assert code == 0, doctor
    assert "connections:" in doctor
    assert seen.pop("processes seen") > 5
    assert seen == {
        "run": "succeeded",
        "statuses during the upgrade": [200, 202],
        "runs after the upgrade": ["succeeded"],
        "login after the upgrade": 200,
        "versions after the upgrade": ["0.2.0"],
        "metrics": 404,
        "plain http": [308, "https://tasks.example.org/tasks"],
        "http version": "2",
        "without one of the two": [200] * 5,
        "secret in command lines": False,
        # Of the night, and before the upgrade.
        "tables in the dumps": [True, True],
        "secrets.json": "0o100600",
    }


def test_a_backup_of_sqlite_is_whole_and_old_ones_are_deleted(tmp_path: Path) -> None:
    database, copies = tmp_path / "task-service.sqlite3", tmp_path / "copies"
    copies.mkdir()
    old = copies / "task-service-20200101T030000Z.sqlite3"
    old.touch()
    os.utime(old, (0, 0))
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t AS SELECT 7 AS n")
        connection.commit()
        # In use, with what it has committed in the WAL.
        script = ROOT / "examples" / "task_service" / "deploy" / "backup-sqlite"
        subprocess.run([script, database, copies], check=True)
    (copy,) = copies.iterdir()
    assert re.fullmatch(r"task-service-\d{8}T\d{6}Z\.sqlite3", copy.name)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT n FROM t").fetchall() == [(7,)]
