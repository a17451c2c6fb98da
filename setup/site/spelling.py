"""One name for an idea in Python, as an option of Spark's format and as a flag: the tables of the site.

An option and a flag follow from the argument. `tests/test_spelling.py` compares all of them with the code.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Idea:
    """What a name means, its argument in Python, and whether Spark's format and the command line have it."""

    meaning: str
    argument: str
    has_option: bool
    has_flag: bool

    @property
    def option(self) -> str:
        """The option of Spark's format; empty: there is none."""
        first, *rest = self.argument.removesuffix("_s").split("_")
        name = first + "".join(map(str.capitalize, rest))
        return {"checkpoint": "checkpointLocation"}.get(name, name) if self.has_option else ""

    @property
    def flag(self) -> str:
        """The flag of the command line; empty: there is none."""
        return "--" + self.argument.removesuffix("_s").replace("_", "-") if self.has_flag else ""


IDEAS = {
    "Reads": [
        Idea("contents as of a time", "as_of", True, True),
        Idea("netted changes after a time", "after", True, False),
        Idea("... up to and including a time", "through", True, False),
        Idea("every update at or after a time", "lower", True, True),
        Idea("... and before a time", "upper", True, True),
        Idea("follow until all times before this one are printed", "until", False, True),
        Idea("write changes instead of contents", "changes", False, True),
        Idea("which columns", "columns", True, True),
        Idea("which rows", "where", True, True),
        Idea("with times and multiplicities", "with_diff", True, True),
        Idea("with updates that are staged at open times", "staged", True, True),
        Idea("the type of times in what is read", "times", True, True),
        Idea("how long to wait for a time to be closed", "timeout_s", True, True),
        Idea("how long what is read is held", "hold_for", True, False),
        Idea("the most tasks", "parallelism", True, False),
        Idea("write nothing to the lake", "read_only", False, True),
        Idea("the function that gives options of an object store", "store_options", True, False),
    ],
    "Writes": [
        Idea("what rows mean", "envelope", True, True),
        Idea("the time of the rows, or the column with it", "time", True, True),
        Idea("close all times before this one", "upper", False, True),
        Idea("what to do with rows whose time is closed", "late", True, True),
        Idea("the last row of a key and time", "order_by", True, True),
        Idea("the column that is true where a key is removed", "delete_column", True, True),
        Idea("whether change events have complete old rows", "old_rows", True, True),
        Idea("the table whose messages are read", "table", True, True),
        Idea("change events go to a collection for each table", "tables", False, True),
        Idea("what a column is that a message leaves out", "missing", True, True),
        Idea("how change events encode columns", "encodings", True, True),
        Idea("how long messages of Kafka may become visible after later ones", "idle", False, False),
        Idea("a folder for lines that cannot be read", "rejects", True, True),
        Idea("who makes a commit", "author", True, True),
        Idea("what a commit is for", "message", True, True),
        Idea("a write that is done once, however often it is tried", "token", True, True),
        Idea("the name under which a stream is recorded", "writer", True, True),
        Idea("take the name of another stream over", "take_over", True, True),
        Idea("where a stream records its progress", "checkpoint", True, True),
        Idea("the most files of a micro-batch", "max_files_per_trigger", False, True),
        Idea("go on with new files", "follow", False, True),
        Idea("what times of new collections count", "time_unit", True, True),
        Idea("format of files", "format", False, True),
        Idea("what to do if the target exists", "mode", False, True),
    ],
    "Collections and upkeep": [
        Idea("the key columns", "key", True, True),
        Idea("the columns by which an index finds rows", "by", False, True),
        Idea("a name that was dropped or renamed may be used again", "allow_recreate", False, True),
        Idea("drop it although something still uses it", "force", False, True),
        Idea("fork at a version", "to_seqno", False, True),
        Idea("another name for a copy", "as_name", False, True),
        Idea("drop copies of what was dropped at the source", "delete", False, True),
        Idea("keys whose rows are erased", "keys", False, True),
        Idea("why rows are erased", "reason", False, True),
        Idea("at most so many commits or rows", "limit", False, True),
        Idea("let history before this time go", "since", False, True),
        Idea("pause between two rounds of upkeep", "interval_s", False, True),
        Idea("repair what is damaged", "repair", False, True),
        Idea("check names and sizes only", "quick", False, True),
        Idea("take the place of a view of another query", "replace", False, True),
        Idea("the most history of inputs that a view holds", "max_lag", False, True),
        Idea("the times at which a view is exact", "every", False, True),
        Idea("views that change by one commit", "together", False, True),
    ],
}
# Those of one place only.
OPTIONS = (
    *(
        "path",
        "collection",
        "changeFeed",
        "startingAt",
        "maxRowsPerTrigger",
        "maxTimesPerTrigger",
        "queryName",
        "versionAsOf",
        "timestampAsOf",
        "readChangeFeed",
        "startingVersion",
        "startingTimestamp",
        "endingVersion",
        "endingTimestamp",
    ),
)
FLAGS = (
    *(
        "--json",
        "--out",
        "--once",
        "--no-snapshot",
        "--all",
        "--spark",
        "--swap",
        "--yes",
        "--arrangement",
        "--column",
        "--like",
        "--afresh",
        "--as",
        "--keep",
        "--end",
        "--first",
        "--option",
        "--metrics",
        "--host",
        "--port",
        "--token-file",
        "--allow-write",
    ),
)


def tables() -> str:
    """The names, a table for each kind of call."""
    lines = []
    for title, ideas in IDEAS.items():
        lines += [f"## {title}", "", "| idea | Python | Spark option | flag |", "|---|---|---|---|"]
        for one in ideas:
            cells = [f"`{name}`" if name else "–" for name in (one.argument, one.option, one.flag)]
            lines.append(f"| {one.meaning} | {' | '.join(cells)} |")
        lines.append("")
    only = [("Spark options", OPTIONS), ("flags", FLAGS)]
    lines += ["## In one place only", "", "| where | names |", "|---|---|"]
    lines += [f"| {where} | {', '.join(f'`{name}`' for name in names)} |" for where, names in only]
    return "\n".join([*lines, ""])
