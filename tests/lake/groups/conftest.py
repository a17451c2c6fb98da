"""Where the rows of transactions are."""

import pytest
from together import QUIET, STORED, Places

from tiers import some


@pytest.fixture(params=some(["inline", "stored"], 2, full=2))
def places(request):
    """Rows are in the log, or in parts of their own."""
    return Places(config=QUIET if request.param == "inline" else STORED)
