"""Tables for people are set in columns and harmless."""

from tidelake.tabletext import CELL_MAX, as_html, as_text, cell


def test_columns_are_set_by_the_width_of_their_characters() -> None:
    assert as_text(["a", "b"], [["日本", 1], ["x", None]]) == "a     b\n日本  1\nx     –"


def test_long_cells_end_with_dots() -> None:
    assert cell("x" * CELL_MAX) == "x" * CELL_MAX
    assert cell("x" * 1_000_000) == "x" * (CELL_MAX - 1) + "…"
    assert len(cell("\x00" * 1_000_000)) == CELL_MAX


def test_html_has_no_element_of_a_cell_and_no_quote() -> None:
    found = as_html(["<i>"], [["<b>&\"'"]], "<h1>", "<p>\u2066")
    assert "&lt;i&gt;" in found
    assert "&lt;b&gt;&amp;&quot;&#x27;" in found
    assert "&lt;h1&gt;" in found
    assert r"&lt;p&gt;\u2066" in found
