"""The table of decisions"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("position", sa.Integer),
        sa.Column("waiting", sa.Integer, nullable=False),
        sa.Column("running", sa.Integer, nullable=False),
        sa.Column("needs_tokens", sa.BigInteger),
        sa.Column("booked_tokens", sa.BigInteger, nullable=False),
        sa.Column("free_tokens", sa.BigInteger),
        sa.PrimaryKeyConstraint("turn_id", "number", name="pk_decisions"),
    )


def downgrade() -> None:
    op.drop_table("decisions")
