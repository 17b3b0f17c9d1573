"""How hypothesis runs in every test: a slow machine is not a failure, since no test is timed.

vLLM's environment, in which no test draws anything, has no hypothesis.
"""

from importlib.util import find_spec

if find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("untimed")
