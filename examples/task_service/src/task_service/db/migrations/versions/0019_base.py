"""The schema of the version before, with which the migrations begin.

An empty database gets the newest schema at once, from `task_service.db.schema`.

Revision ID: 0019
Revises:
"""

revision = "0019"
down_revision = None
works_with = ()


def upgrade() -> None:
    """Nothing is older."""
