"""Pairs of versions: each earlier one that is named with this one, or else this one with a next one."""

import pytest
from wheels import COMMITS, NEW, installed

from nextversion import next_version


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where versions are installed."""
    return tmp_path_factory.mktemp("versions")


# The lakes of this version are the first of their format. Until `before.json` names an earlier version, this
# one is the earlier one, and the later one differs in fields of the state only.
_PAIRS = [pytest.param(one, marks=pytest.mark.soak if n else ()) for n, one in enumerate(COMMITS)] or ["next"]


@pytest.fixture(scope="session", params=_PAIRS)
def pair(request, kept):
    """The folders of the sources of an earlier version and of the version after it."""
    if request.param == "next":
        return NEW, next_version(kept, 2)
    return installed(request.param, kept), NEW
