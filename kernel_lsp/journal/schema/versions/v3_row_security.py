"""On PostgreSQL everybody writes their own rows alone."""

from alembic import op

from kernel_lsp.journal import row_security

revision, down_revision = "3", "2"


def upgrade() -> None:
    row_security.secure(op.get_bind())
