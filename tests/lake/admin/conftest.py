"""Stores and clocks for tests that damage a lake, or copy it into another one."""

import pytest
from damage import World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def other():
    return World()
