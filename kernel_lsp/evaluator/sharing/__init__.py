"""A device belongs to everybody on the machine: turns, busy neighbors, minutes per hour,
priority."""
