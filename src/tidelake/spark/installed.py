"""Which PySpark is installed.

Importing it raises `ImportError`, with the remedy, if there is none, or one older than 3.5. It is the first
that the package imports, so that no other module meets a PySpark that it cannot use.
"""

from tidelake.errors import to_install

try:
    import pyspark
except ImportError as error:
    raise ImportError(
        f"tidelake.spark needs PySpark, which cannot be imported ({error}): {to_install('spark')}",
        name="pyspark",
    ) from error

RELEASE: str = pyspark.__version__
VERSION: tuple[int, ...] = tuple(map(int, RELEASE.split(".")[:2]))

if VERSION < (3, 5):  # the version is what is asked about
    raise ImportError(
        f"tidelake.spark needs PySpark 3.5 or newer, and PySpark {RELEASE} is installed: "
        f"{to_install('spark')}",
        name="pyspark",
    )

# The first version with data sources in Python.
SOURCES = (4, 0)
