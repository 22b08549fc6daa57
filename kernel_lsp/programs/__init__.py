"""Whole programs: recorded, their targets ranked and rewritten where they live, and the program's own step timed.

recording.py   runs a program once and keeps what it called
"""
