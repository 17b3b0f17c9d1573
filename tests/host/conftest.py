"""One local Ray for all tests of this room that need one in their own process."""

# Ray's own annotations are incomplete.
# pyright: reportUnknownMemberType=false

import os
import tempfile
from collections.abc import Iterator

import pytest
import ray


@pytest.fixture(scope="session")
def local_ray() -> Iterator[str]:
    """A Ray of our own on this machine; yields its namespace.

    Run it by `make test`, where only the loopback interface exists: Ray listens on all.
    """
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's sockets lie below it, and their paths must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            namespace="eplb-test",
            log_to_driver=False,
            _temp_dir=folder,
        )
        yield "eplb-test"
        ray.shutdown()
