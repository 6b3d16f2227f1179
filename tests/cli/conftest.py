"""What the tests of the command share."""

from __future__ import annotations

from tests.cli.support import run

__all__ = ["run"]
