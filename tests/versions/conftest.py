"""Earlier versions, built once."""

import pytest
from wheels import COMMITS, installed


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where versions are installed."""
    return tmp_path_factory.mktemp("versions")


# The full tier tries the version just before this one.
@pytest.fixture(
    params=[pytest.param(one, marks=pytest.mark.soak if n else ()) for n, one in enumerate(COMMITS)]
)
def old(request, kept):
    """The folder of an earlier version."""
    return installed(request.param, kept)
