"""Convolutions with what follows them in one kernel."""
