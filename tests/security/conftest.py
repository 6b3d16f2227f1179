"""Leaves out what is about a library that is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("sqlalchemy") else ["test_outages.py"]
