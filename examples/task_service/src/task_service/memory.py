"""Memory settings of this process: its allocation, and its protection from other processes."""

from __future__ import annotations

import ctypes
import gc
import platform
import sys
from typing import Final

# From glibc's malloc.h.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# From linux/prctl.h.
_PR_SET_DUMPABLE: Final = 4


def return_large_blocks() -> None:
    """Make glibc return large blocks to the system immediately when they are freed. Does nothing with other libraries.

    Each password hash briefly needs 19 MiB. After the first hash glibc raises its threshold and would keep such a block for
    every thread; a fixed threshold prevents this. Few arenas are enough, because most of the service's threads (one for
    each connection to SQLite) allocate little.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1024 * 1024)
    libc.mallopt(_M_ARENA_MAX, 2)


def hide_memory() -> None:
    """Keep other processes of the same user from this process's memory, environment and open files. Linux only.

    After the call only root can read `/proc/PID/environ` and `/proc/PID/mem` or attach a debugger, and a crash writes no
    core dump: the environment has the passwords of databases, and memory the secrets of the data folder. Programs
    that this process executes are not protected.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def keep_what_exists() -> None:
    """Exclude all present objects from garbage collection, for a process that has started and will serve until it ends.

    Modules, routes and statements are two hundred thousand objects. Collecting them all would stop requests for a tenth of a
    second.
    """
    gc.collect()
    gc.freeze()
