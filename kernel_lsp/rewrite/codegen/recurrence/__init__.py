"""Loops over time as one kernel that keeps the state in registers."""
