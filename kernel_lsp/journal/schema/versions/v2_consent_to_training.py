"""Who saved a row before this was asked has said neither yes nor no."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "2", "1"


def upgrade() -> None:
    op.add_column("proposals", sa.Column("training", sa.Boolean))
