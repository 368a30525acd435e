"""The tables of the archive"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "archive_texts",
        sa.Column("home_id", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("packed", sa.Boolean, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("home_id", "digest", name="pk_archive_texts"),
    )
    op.create_index("ix_archive_texts_home_id_stored_bytes", "archive_texts", ["home_id", "stored_bytes"])
    op.create_table(
        "archive_entries",
        sa.Column("home_id", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("handle", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("what", sa.Text, nullable=False),
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("left_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("home_id", "agent", "handle", "digest", name="pk_archive_entries"),
    )
    op.create_index("ix_archive_entries_handle", "archive_entries", ["handle", "home_id", "agent"])
    op.create_index("ix_archive_entries_home_id_digest", "archive_entries", ["home_id", "digest"])
    op.create_index("ix_archive_entries_home_id_agent_left_at", "archive_entries", ["home_id", "agent", "left_at"])
    op.create_index("ix_archive_entries_home_id_left_at", "archive_entries", ["home_id", "left_at"])
    op.create_table(
        "archive_heads",
        sa.Column("home_id", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("covered", sa.BigInteger, nullable=False),
        sa.Column("chain", sa.LargeBinary, nullable=False),
        sa.Column("loose_chain", sa.LargeBinary, nullable=False),
        sa.Column("made_at", sa.Double, nullable=False),
        sa.Column("before_tokens", sa.BigInteger, nullable=False),
        sa.Column("after_tokens", sa.BigInteger, nullable=False),
        sa.Column("stored_bytes", sa.BigInteger, nullable=False),
        sa.Column("packed", sa.Boolean, nullable=False),
        sa.Column("messages", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("home_id", "agent", "session", "digest", name="pk_archive_heads"),
    )
    op.create_index("ix_archive_heads_of_session", "archive_heads", ["home_id", "agent", "session", "made_at"])
    op.create_index("ix_archive_heads_home_id_made_at", "archive_heads", ["home_id", "made_at", "stored_bytes"])
    op.create_table(
        "compactions",
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("home_id", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("before_tokens", sa.BigInteger),
        sa.Column("after_tokens", sa.BigInteger),
        sa.Column("stages", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("took_ms", sa.Double),
        sa.Column("summary_turn", sa.Text),
        sa.PrimaryKeyConstraint("turn_id", "number", name="pk_compactions"),
    )
    op.create_index("ix_compactions_at", "compactions", ["at"])
    op.create_index("ix_compactions_agent_home_id_at", "compactions", ["agent", "home_id", "at"])


def downgrade() -> None:
    for table in ("compactions", "archive_heads", "archive_entries", "archive_texts"):
        op.drop_table(table)
