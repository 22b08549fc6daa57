"""What benchmarks/gate.py is made of: tasks, candidates, faults, the measuring parts, their
statistics."""
