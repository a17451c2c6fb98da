import pytest
from lakes import place_of

import tidelake
from tables import SCHEMA


@pytest.fixture(params=["memory", "directory"])
def lake(request, tmp_path):
    opened = tidelake.open(place_of(request.param, tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def collection(lake):
    return lake.create("c", SCHEMA, key=["id"])
