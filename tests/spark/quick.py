"""A Spark session for tests and for the drivers that they start: few rows take it little time."""

from typing import Any

# A JVM of a test ends before its second compiler has paid for itself.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
CONF = {
    "spark.driver.extraJavaOptions": JVM,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    # Compiling a plan takes longer than running it over a few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # A micro-batch takes half as long: the usual one starts processes for each file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS,
}


def session(cores: int | str = 2, **conf: str) -> Any:
    """The session of this process."""
    from tidelake.spark.session import local_session

    return local_session("tidelake-tests", cores, **{**CONF, **conf})
