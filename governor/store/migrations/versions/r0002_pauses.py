"""Pauses of an answer"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("pieces", sa.Integer))
    op.add_column("turns", sa.Column("paused_ms", sa.Double))


def downgrade() -> None:
    with op.batch_alter_table("turns") as turns:
        turns.drop_column("paused_ms")
        turns.drop_column("pieces")
