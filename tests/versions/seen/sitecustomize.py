"""In a worker's Python: notes in a file where it would import Tidelake from."""

import importlib.util
import os
from pathlib import Path

_found = importlib.util.find_spec("tidelake")
if "TIDELAKE_TEST_SEEN" in os.environ and _found is not None and _found.origin is not None:
    Path(os.environ["TIDELAKE_TEST_SEEN"], f"seen-{os.getpid()}").write_text(
        f"{Path(_found.origin).parent.parent}\n"
    )
