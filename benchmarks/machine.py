"""When and on what something was measured."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def describe(*packages: str) -> dict[str, str]:
    """Date, machine and versions, for people to read.

    Args:
        packages: Whose versions matter here.
    """
    load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory()}",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
        "load before": f"{load} (processes that wanted a core, over 1, 5 and 15 minutes)",
    }


def cpu_seconds(pid: int) -> float:
    """The processor time of a process so far, of all its threads."""
    text = Path(f"/proc/{pid}/stat").read_text("ascii")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    text = _read("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def _memory() -> str:
    found = re.search(r"^MemTotal:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    return f"{int(found[1]) / 2**20:.0f} GiB of memory" if found else "unknown memory"


def _read(path: str) -> str:
    place = Path(path)
    return place.read_text("utf-8") if place.exists() else ""
