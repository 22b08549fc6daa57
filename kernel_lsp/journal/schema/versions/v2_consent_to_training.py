"""Who saved a row before this was asked has said neither yes nor no."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "2", "1"


def upgrade() -> None:
    """Add whether a proposal may be trained on: NULL where nobody was asked."""
    op.add_column("proposals", sa.Column("training", sa.Boolean))
