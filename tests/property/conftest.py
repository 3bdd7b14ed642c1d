"""How many examples the property tests draw: HYPOTHESIS_PROFILE=thorough draws many more."""

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

settings.register_profile(
    "quick", max_examples=40, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.register_profile(
    "thorough", max_examples=1000, deadline=None, derandomize=True, suppress_health_check=SLOW
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
