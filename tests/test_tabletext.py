"""Tables for people are set in columns and harmless."""

from itertools import product

import pytest

from tidelake.tabletext import CELL_MAX, as_html, as_text, cell, harmless, printable


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


def test_words_and_emoji_of_every_script_are_shown_as_they_are() -> None:
    woman, flag = "\U0001f469\u200d\U0001f4bb", "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e007f"
    persian, chinese = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u6771\u3000\u4eac"
    for text in (woman, flag, persian, chinese, "\u2764\ufe0f"):
        assert printable(text) == text
    # Letters of flags behind anything else hide text, and turned text hides what it says.
    for text in ("a\U000e0061\U000e007f", "a\u202eb", "a\u200bb", "a\x9bb", "\ufeff"):
        assert printable(text) != text and printable(text).isascii()


@pytest.mark.promise(
    "Cells of different texts that are not cut look different, and give no orders to a terminal",
    rule="`tabletext.py`",
)
def test_texts_that_differ_look_different() -> None:
    assert (printable("a\nb"), printable("a\\nb"), printable("a\\\\nb")) == (r"a\nb", r"a\\nb", r"a\\\\nb")
    assert printable(r"C:\Program") == r"C:\Program"
    alphabet = ["\\", "\n", "n", "x", "0", "a", "\x1b"]
    texts = ["".join(one) for n in range(5) for one in product(alphabet, repeat=n)]
    assert len({printable(text) for text in texts}) == len(texts)
    assert harmless("column 'a\\\\b' is\x1b[31m") == r"column 'a\\b' is\x1b[31m"
