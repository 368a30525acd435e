"""The table of turns"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("home_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("agent", sa.Text),
        sa.Column("route", sa.Text),
        sa.Column("opened_at", sa.Double),
        sa.Column("listed_at", sa.Double, nullable=False),
        sa.Column("closed_at", sa.Double),
        sa.Column("session", sa.Text),
        sa.Column("kind", sa.Text),
        sa.Column("shape", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("stream", sa.Boolean),
        sa.Column("http_status", sa.Integer),
        sa.Column("error_code", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("finish_reason", sa.Text),
        sa.Column("prompt_tokens", sa.BigInteger),
        sa.Column("completion_tokens", sa.BigInteger),
        sa.Column("cached_tokens", sa.BigInteger),
        sa.Column("cached_device_tokens", sa.BigInteger),
        sa.Column("cached_host_tokens", sa.BigInteger),
        sa.Column("cached_storage_tokens", sa.BigInteger),
        sa.Column("reasoning_tokens", sa.BigInteger),
        sa.Column("prompt_tokens_counted", sa.BigInteger),
        sa.Column("prompt_tokens_margin", sa.BigInteger),
        sa.Column("count_source", sa.Text),
        sa.Column("completion_tokens_estimated", sa.BigInteger),
        sa.Column("cap_requested", sa.BigInteger),
        sa.Column("cap_applied", sa.BigInteger),
        sa.Column("cap_reason", sa.Text),
        sa.Column("window_tokens", sa.BigInteger),
        sa.Column("message_count", sa.BigInteger),
        sa.Column("shared_messages", sa.BigInteger),
        sa.Column("broke_at", sa.Text),
        sa.Column("edits", sa.JSON),
        sa.Column("flags", sa.JSON),
        sa.Column("queued_ms", sa.Double),
        sa.Column("ttft_ms", sa.Double),
        sa.Column("duration_ms", sa.Double),
        sa.Column("request_bytes", sa.BigInteger),
        sa.Column("response_bytes", sa.BigInteger),
        sa.PrimaryKeyConstraint("turn_id", name="pk_turns"),
    )
    is_open = sa.text("state = 'open'")
    op.create_index("ix_turns_agent_listed_at", "turns", ["agent", "listed_at"])
    op.create_index("ix_turns_listed_at", "turns", ["listed_at"])
    op.create_index("ix_turns_open", "turns", ["home_id"], sqlite_where=is_open, postgresql_where=is_open)


def downgrade() -> None:
    op.drop_table("turns")
