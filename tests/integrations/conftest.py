"""Leaves out what is about a framework that is not installed."""

from __future__ import annotations

from importlib.util import find_spec

FRAMEWORKS = {"fastapi", "flask", "litestar", "starlette"}
INSTALLED = {name for name in FRAMEWORKS if find_spec(name) is not None}

collect_ignore_glob = [f"test_{name}*.py" for name in FRAMEWORKS - INSTALLED]
collect_ignore: list[str] = []
if "starlette" not in INSTALLED:
    collect_ignore.append("test_snippets.py")
if not INSTALLED - {"flask"}:
    collect_ignore.append("test_websockets.py")
if not INSTALLED:
    collect_ignore += [
        "test_cases.py",
        "test_failures.py",
        "test_key_lifecycle.py",
        "test_leaks.py",
        "test_others_errors.py",
        "test_streams.py",
    ]
if INSTALLED != FRAMEWORKS:
    collect_ignore.append("test_servers.py")
