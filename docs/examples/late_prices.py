# %% [markdown]
# # A price list that is corrected afterwards
#
# Prices arrive day by day. On the fifth day we find that a price of the third was wrong. This notebook
# follows the list with a stream, corrects it, and asks what was charged too much, without reading the list
# twice. Run it cell by cell, or as a script, in a directory of its own: it makes `shop` and some files there.

# %%
from pathlib import Path

import pyarrow as pa

import tidelake
from tidelake import spark as ts

spark = ts.local_session("late prices", cores=2, **{"spark.sql.shuffle.partitions": "2"})
ts.register(spark)
lake = tidelake.open("shop")
schema = pa.schema([pa.field("sku", pa.string(), nullable=False), ("cents", pa.int64())])
prices = lake.create("prices", schema, key=["sku"])
sales = lake.create(
    "sales", pa.schema([pa.field("id", pa.int64(), nullable=False), ("sku", pa.string())]), key=["id"]
)

# %% [markdown]
# ## Days as times
#
# The time of an update is the day it is about. A feed brings changed prices only, some of them twice; an
# upsert by its version makes updates of it. Equal prices write nothing.


# %%
def deliver(day: int, *rows: tuple[str, int | None, int]) -> None:
    """The feed of one day: sku, price in cents or None for "no longer sold", version."""
    frame = spark.createDataFrame(rows, "sku string, cents bigint, version bigint")
    ts.upsert(prices, frame, time=day, order_by="version")


deliver(1, ("tea", 450, 1), ("mug", 900, 1), ("pot", 3000, 1))
deliver(2, ("tea", 470, 1), ("tea", 480, 2))
deliver(3, ("mug", 9000, 1), ("pot", 3000, 1))
deliver(4, ("pot", None, 1))

spark.read.format("tidelake").option("asOf", 3).load("shop/prices").show()

# %% [markdown]
# ## A stream into another collection
#
# Sales land as files. Their stream is written exactly once; start this cell again, and nothing is added.

# %%
Path("landing").mkdir()
sold = spark.createDataFrame(
    [(1, "tea", 1), (2, "mug", 2), (3, "mug", 3), (4, "mug", 3), (5, "tea", 4)],
    "id bigint, sku string, day bigint",
)
sold.write.mode("append").parquet("landing")


def take_sales() -> None:
    """Everything that has landed and was not taken before."""
    arriving = spark.readStream.schema(sold.schema).parquet("landing")
    stream = arriving.writeStream.format("tidelake").option("time", "day").trigger(availableNow=True)
    stream.option("checkpointLocation", "sales-checkpoint").start("shop/sales").awaitTermination()


take_sales()
take_sales()
assert ts.snapshot(spark, sales).count() == 5

# %% [markdown]
# ## The correction
#
# The mug cost 900 cents on the third day, not 9000. History is not rewritten: the correction is an update of
# day five. What was known on day four can still be asked for, and so can the difference.

# %%
deliver(5, ("mug", 900, 1))

known = ts.snapshot(spark, prices, as_of=4).where("sku = 'mug'").first()
corrected = ts.changes(spark, prices, 4, 5)
corrected.show()
assert known.cents == 9000
assert sorted((r.cents, r._diff) for r in corrected.collect()) == [(900, 1), (9000, -1)]

# %% [markdown]
# ## What to pay back
#
# Sales of days three and four at the wrong price, in SQL over a view of the changes.

# %%
corrected.createOrReplaceTempView("corrected")
ts.updates(spark, sales, 3, 5).createOrReplaceTempView("sold")
back = spark.sql(
    "SELECT -sum(cents * corrected._diff * sold._diff) AS cents FROM sold JOIN corrected USING (sku)"
).first()
print(f"to pay back: {back.cents / 100:.2f}")
assert back.cents == 2 * (9000 - 900)

# %% [markdown]
# ## Tidying up
#
# Merge the small batches, let history before day four go, and see that a read before it is refused.

# %%
ts.release()
prices.advance_since(4)
assert ts.merge(spark, prices).applied
try:
    prices.snapshot(as_of=3)
except tidelake.errors.HistoryCompacted as folded:
    print(folded)
spark.stop()
lake.close()
