"""Fixtures and settings that the tests of the package share.

`clean_environment` keeps a developer's own keys and settings out of the tests: what a test needs, it sets.
"""

import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.hub import database_url, hub, postgresql, postgresql_hub, sqlite_hub  # noqa: F401 - fixtures
from tests.support.installers import current_pip, installers, publishers  # noqa: F401 - fixtures
from tests.support.object_store import bucket, object_store  # noqa: F401 - fixtures
from tests.support.stored import empty_database  # noqa: F401 - a fixture

# A deadline would be an assertion on time. In CI the examples are the same on every run, so a red run can be
# repeated; on a laptop they differ from run to run, so that new ones are found.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# Read when ray is imported: everything of its clusters listens on the loopback address.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "PRIME_API_KEY")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, endpoint or setting of the person who runs the tests is seen by them, nor what an earlier test's endpoint
    refused: ports are given out again."""
    for name in [*KEYS, *(name for name in os.environ if name.startswith("VF_") and name != "VF_DATA_DIR")]:
        monkeypatch.delenv(name, raising=False)
    if (limiter := sys.modules.get("verifiers.clients.limiter")) is not None:
        monkeypatch.setattr(limiter, "_limiters", {})


@pytest.fixture(autouse=True)
def clean_log() -> Iterator[None]:
    """The package's log goes where it went before: a command that a test ran in this process may have sent it to the
    stderr of that test, which is closed by then."""
    log = logging.getLogger("verifiers")
    kept = (log.handlers[:], log.level, log.propagate)
    yield
    log.handlers[:], level, log.propagate = kept
    log.setLevel(level)


@pytest.fixture(scope="session")
def ray_cluster():
    """A Ray cluster of this machine, one for all tests that need it: starting it takes seconds."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80_000_000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the log files of the client port
        cluster = cluster_utils.Cluster(
            initialize_head=True, head_node_args={**head, "ray_client_server_port": port}
        )
    cluster.client_address = f"ray://127.0.0.1:{port}"
    yield cluster
    cluster.shutdown()
