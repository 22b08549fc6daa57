"""A program and a workload in, a graph out, and everything that keeps a program from being one."""
