"""The content of a writer's record, as a value."""

from hypothesis import given
from hypothesis import strategies as st

from tidelake.state.write.heldback import StreamContent


@given(st.text() | st.tuples(st.text(), st.text(), st.text()).map(" transactions ".join))
def test_a_text_is_written_again_as_it_was_read(text: str) -> None:
    found = StreamContent.of(text)
    assert found.text in (text, f"{text} ")
    assert StreamContent.of(found.text) == found


@given(st.text().filter(lambda text: " transactions " not in text), st.binary(max_size=40))
def test_what_is_kept_is_read_back(what: str, rows: bytes) -> None:
    content = StreamContent.keeping(what, {"stored": ["b/1", "b/2"]}, rows)
    again = StreamContent.of(content.text)
    assert (again.what, again.rows, again.stored) == (what, rows, ("b/1", "b/2"))


def test_the_text_of_a_user_keeps_nothing() -> None:
    for text in ("", "a", "many transactions here", 'two transactions "stored": none', "x transactions {} !"):
        found = StreamContent.of(text)
        assert (found.what, found.rows, found.stored) == (text, b"", ())
