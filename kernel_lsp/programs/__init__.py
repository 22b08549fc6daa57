"""Whole programs: recorded, their targets rewritten where they live, and their own step timed.

recording.py   runs a program once and keeps what it called
"""
