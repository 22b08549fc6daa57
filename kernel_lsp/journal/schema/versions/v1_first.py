"""The tables of the first journal."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "1", None


def upgrade() -> None:
    """Make the tables of version 1."""
    op.create_table("schema_version", sa.Column("version", sa.Integer, primary_key=True))
    op.create_table(
        "sessions",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("client", sa.String),
        sa.Column("folder", sa.String, index=True),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("started", sa.Double, nullable=False),
        sa.Column("ended", sa.Double),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("digest", sa.String, nullable=False, unique=True),
        sa.Column(
            "session",
            sa.String,
            sa.ForeignKey("sessions.id", ondelete="CASCADE"),
            nullable=False,
            index=True,
        ),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("proposal", sa.String, nullable=False, index=True),
        sa.Column("time", sa.Double, nullable=False, index=True),
        *(sa.Column(name, sa.String) for name in ("folder", "path", "qualname", "client")),
        sa.Column("data", sa.JSON, nullable=False),
    )
    op.create_index("events_of_folder", "events", ["folder", "kind"])
    op.create_table(
        "proposals",
        *(sa.Column(name, sa.String, primary_key=True) for name in ("id", "folder", "path")),
        sa.Column("session", sa.String, index=True),
        sa.Column("saved", sa.Double, nullable=False, index=True),
        *(
            sa.Column(name, sa.String, nullable=False)
            for name in ("qualname", "verdict", "status", "device")
        ),
        sa.Column("device_name", sa.String),
        *(sa.Column(f"speedup_{name}", sa.Double) for name in ("low", "mid", "high")),
        sa.Column("skills", sa.JSON, nullable=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("keep_source", sa.Boolean, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_table(
        "sources",
        *(
            sa.Column(name, sa.String, primary_key=True)
            for name in ("proposal", "folder", "path", "field")
        ),
        sa.Column("text", sa.String, nullable=False),
    )
    op.create_table(
        "tracker",
        *(
            sa.Column(name, sa.String, primary_key=True)
            for name in ("folder", "proposal", "target")
        ),
        sa.Column("since", sa.Double, nullable=False),
        sa.Column("state", sa.JSON, nullable=False),
    )
