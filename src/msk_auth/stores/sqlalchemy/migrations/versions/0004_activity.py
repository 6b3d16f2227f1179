"""Make nothing: this version made tables of what keys did, which 0006 drops."""

from __future__ import annotations

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    pass
