"""What a process does with its memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

_KEEP = """
import gc
from task_service.memory import keep_what_exists
keep_what_exists()
print(gc.get_freeze_count() > 1_000, len(gc.get_objects()) < 1_000)
"""
_HIDE = """
import sys
from task_service.memory import hide_memory
hide_memory()
print("hidden", flush=True)
sys.stdin.read()
"""


def test_the_garbage_collector_leaves_what_existed_at_the_start() -> None:
    # A process of its own: the tests' own objects stay where they are.
    kept = subprocess.run([sys.executable, "-c", _KEEP], capture_output=True, text=True, check=True)
    assert kept.stdout.split() == ["True", "True"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_no_other_process_of_the_same_user_reads_the_environment() -> None:
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None
        unprivileged = [setpriv, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    else:
        unprivileged = []
    with subprocess.Popen(
        [sys.executable, "-c", _HIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"hidden\n"
        for name in ("environ", "maps"):
            read = [*unprivileged, "cat", f"/proc/{service.pid}/{name}"]
            done = subprocess.run(read, check=False, capture_output=True)
            assert (done.stdout, done.returncode) == (b"", 1)
