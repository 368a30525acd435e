"""The table of losses"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "losses",
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("tokens", sa.BigInteger),
        sa.Column("seconds", sa.Double),
        sa.Column("margin_s", sa.Double),
        sa.Column("message", sa.BigInteger),
        sa.Column("byte", sa.BigInteger),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("turn_id", "cause", name="pk_losses"),
    )


def downgrade() -> None:
    op.drop_table("losses")
