"""What every test shares: hypothesis looks at behavior, never at how long a busy machine took."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("behavior", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("behavior")
os.environ.pop("CI", None)  # what nobody has signed is refused there; tests that mean it set it
