"""On PostgreSQL everybody writes their own rows alone."""

from alembic import op

from kernel_lsp.journal import row_security

revision, down_revision = "3", "2"


def upgrade() -> None:
    """Let everybody write rows of their own alone, where the database can (PostgreSQL)."""
    row_security.secure(op.get_bind())
