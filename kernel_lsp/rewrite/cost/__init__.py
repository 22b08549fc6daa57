"""Estimates of time: of one operation, and of a whole call with its launches."""
