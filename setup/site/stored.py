"""What is stored, or travels between processes: the docstrings of its classes, as tables for the site.

python3 setup/site/stored.py hold    # the classes with this word
"""

import ast
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "tidelake"
# Each class whose values are JSON by the names of its fields, by its module.
STORED = {
    "model/time.py": ["TimeDomain"],
    "model/bounds.py": ["Bounds"],
    "model/schema.py": ["Schema", "SchemaVersion", "Column", "DataType"],
    "model/batch.py": ["Part", "ColumnStats", "Run", "HollowBatch"],
    "state/core/state.py": [
        *(
            "StateFields",
            "ShardState",
            "Hold",
            "CriticalHold",
            "Retention",
            "MergeClaim",
            "Written",
            "Rollup",
        ),
        "WriterRecord",
    ],
    "state/core/codec.py": ["_SpineImage"],
    "state/spine/spine.py": ["Member", "SpineBatch", "FuelingMerge", "SpineEdit"],
    "state/spine/bases.py": ["Base", "Unpaid"],
    "state/core/garbage.py": ["Garbage", "Sweep"],
    "state/core/edits.py": ["Delta", "Edits"],
    "state/core/fields.py": ["Move"],
    "shard/writing/batch.py": ["SentBatch"],
    "shard/runs/plan.py": ["Task"],
    "shard/engine/spec.py": ["ShardSpec"],
    "shard/writing/builder.py": ["Uploader"],
    "shard/writing/upserter.py": ["Upserter"],
    "data/ingest/events.py": ["EventColumns"],
    "shard/writing/replacement.py": ["Replacement"],
    "arrangement/checkpoint/saved.py": ["Checkpoint", "Followed", "SavedBatch"],
}
_FIELD = re.compile(r"^    (\w+): ((?:.*)(?:\n {8,}.*)*)", re.MULTILINE)


def told(file: str, name: str) -> tuple[str, dict[str, str]]:
    """What the docstring of a class says of it, and of each of its fields."""
    for node in ast.parse((SOURCE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            text, _, attributes = (ast.get_docstring(node) or "").partition("Attributes:\n")
            fields = {field: " ".join(meaning.split()) for field, meaning in _FIELD.findall(attributes)}
            return " ".join(text.split()), fields
    raise LookupError(f"{file} has no class {name}")


def tables(word: str = "") -> str:
    """A section for each class that has the word."""
    lines = []
    for file, names in STORED.items():
        for name in names:
            text, fields = told(file, name)
            rows = [f"| `{x}` | {meaning.replace('|', chr(92) + '|')} |" for x, meaning in fields.items()]
            shown = [f"### {name.strip('_')}", "", text, ""]
            shown += ["| field | meaning |", "|---|---|", *rows, ""] if rows else []
            if word in "\n".join(shown).lower():
                lines += shown
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables(" ".join(sys.argv[1:]).lower()))
