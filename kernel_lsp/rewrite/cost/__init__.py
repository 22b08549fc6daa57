"""Estimates of the time of one operation."""
