"""Matrix products with what follows them in one kernel."""
