"""Names of the tables that a stage reads in a refresh, beside `d`, `a` and `b` of `tidelake.views.rules`."""


def taken(reader: int) -> str:
    """The table of what a redo has read of its input just before the span."""
    return f"t{reader}"


def moved(reader: int) -> str:
    """What stands for `d` in the name of the changes of the groups that a redo computes."""
    return f"m{reader}_"


def before(reader: int, first: int, place: int) -> str:
    """The table of what a stage reads of an input just before the span; `first` is the place that changes."""
    return f"a{reader}_{first}_{place}"


def whole(reader: int, first: int, place: int) -> str:
    """The same, with the updates of the span."""
    return f"f{reader}_{first}_{place}"
