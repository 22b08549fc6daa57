"""What alembic runs for each upgrade: the numbered files of versions/, on a connection and in a
transaction that are the caller's (journal/migrations.py)."""

from alembic import context

from kernel_lsp.journal.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
