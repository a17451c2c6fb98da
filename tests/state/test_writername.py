"""Tests for `tidelake.state.core.writername`."""

import pytest

from tidelake.state.core.writername import WriterName
from tidelake.state.write.idempotency import IdempotencyKey


@pytest.mark.parametrize(
    ("writer", "text", "is_token"),
    [
        (WriterName("w", "m"), "m:w", False),
        (WriterName("a:b", "m"), "m:a:b", False),
        (WriterName("token:a:b", "m"), "m:token:a:b", True),
        (WriterName.of_token("a:b"), "token:a:b", True),
        (WriterName("w:token:a", "m"), "m:w:token:a", False),
    ],
)
def test_the_text_of_a_writer_in_a_group_says_who_it_is(
    writer: WriterName, text: str, is_token: bool
) -> None:
    assert (writer.text, writer.is_token, WriterName.of(text)) == (text, is_token, writer)


def test_a_key_says_under_which_name_its_record_is_kept() -> None:
    key = IdempotencyKey("w", 0, 1)
    assert key.kept_as == "w"
    assert IdempotencyKey("w", 0, 1, member="m").kept_as == "m:w"
