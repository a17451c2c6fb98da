"""Earlier versions, built once."""

import pytest
from wheels import COMMITS, installed


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where versions are installed."""
    return tmp_path_factory.mktemp("versions")


# The lakes of this version are the first of their format, so there is none before it that reads them. The
# next change of a stored format names the commit before it in `before.json`.
_NONE = [pytest.param("none", marks=pytest.mark.skip("before.json names no earlier version of this format"))]


# The full tier tries the version just before this one.
@pytest.fixture(
    params=[pytest.param(one, marks=pytest.mark.soak if n else ()) for n, one in enumerate(COMMITS)] or _NONE
)
def old(request, kept):
    """The folder of an earlier version."""
    return installed(request.param, kept)
