"""What a process does with its memory."""

from __future__ import annotations

import subprocess
import sys

_KEEP = """
import gc
from task_service.memory import keep_what_exists
keep_what_exists()
print(gc.get_freeze_count() > 1_000, len(gc.get_objects()) < 1_000)
"""


def test_the_garbage_collector_leaves_what_existed_at_the_start() -> None:
    # A process of its own: the tests' own objects stay where they are.
    kept = subprocess.run([sys.executable, "-c", _KEEP], capture_output=True, text=True, check=True)
    assert kept.stdout.split() == ["True", "True"]
