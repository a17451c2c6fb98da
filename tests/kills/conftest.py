import pytest

# What it asserts is explained like the asserts of the tests.
pytest.register_assert_rewrite("crew")
