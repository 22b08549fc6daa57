"""The log of what was offered and what became of it. Import its modules: this file stays empty so that
`journal.tracker` (standard library, used by the server) never pulls in SQLAlchemy."""
