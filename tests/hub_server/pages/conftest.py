import pytest

from tests.support.hub import SLOW_ON_POSTGRESQL


@pytest.fixture(params=SLOW_ON_POSTGRESQL)
def hub(request):
    """A running hub: what a page shows is the same on either database, and the services below it run on both."""
    return request.getfixturevalue(f"{request.param}_hub")
