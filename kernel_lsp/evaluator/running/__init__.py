"""The processes that run a candidate: worker (values) and timer (speed). They know no expected
output."""
