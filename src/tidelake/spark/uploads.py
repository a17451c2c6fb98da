"""The answers of workers as rows of Spark."""

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tidelake.feeds.answers import ANSWER, Answer, total
from tidelake.spark.versions import spark_schema, to_arrow


def answer_schema() -> StructType:
    """The schema of a DataFrame of answers."""
    return spark_schema(ANSWER)


def collect(answers: DataFrame) -> Answer:
    """In the driver: run the job and add up the answers of its tasks. Errors as `total`."""
    return total(to_arrow(answers))
