"""Service accounts, in the table of the users.

The database itself refuses to give one a login: a password, or one at the identity provider.

Older processes work with this schema: a new user is a person. They refuse the keys of service accounts, whose ids have another
prefix than those of users, and the changes that they know of users.

Revision ID: 0018
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Written out: Alembic would add the constraint by a statement of its own, which SQLite does not have.
    no = "false" if op.get_bind().dialect.name == "postgresql" else "0"
    op.execute(
        f"ALTER TABLE users ADD COLUMN service_account BOOLEAN DEFAULT {no} NOT NULL"
        " CONSTRAINT ck_users_service_account_login"
        " CHECK (NOT service_account OR (password_hash IS NULL AND NOT external_login))"
    )
    op.add_column("users", sa.Column("description", sa.Text()))
    op.add_column("users", sa.Column("deleted_at", sa.BigInteger()))
    works_with = sa.table("schema_works_with", sa.column("revision"), sa.column("code"))
    op.bulk_insert(
        works_with,
        [
            {"revision": "0018", "code": f"{number:04}"}
            for number in (*range(1, 11), *range(13, 18))
        ],
    )
