"""Revenue of a shop by minute and customer, from a topic to a Parquet table, each order once. Plain Spark.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 revenue.py 127.0.0.1:9092 table

It processes the orders that are there, and stops; start it again (cron, Airflow) to process the new ones. A
minute is written when orders of ten minutes later have been read: until then, late orders are counted.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

TOPIC = "orders"
VALUE = "customer STRING, amount INT, at TIMESTAMP"
LATEST = "10 minutes"


def read_orders(spark: SparkSession, bootstrap: str, topic: str = TOPIC) -> DataFrame:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.select(f.from_json(f.col("value").cast("string"), VALUE).alias("order")).select("order.*")


def revenue(orders: DataFrame) -> DataFrame:
    """Sums by minute and customer, of a stream or of a table."""
    return (
        orders.where("amount > 0")
        .withWatermark("at", LATEST)
        .groupBy(f.window("at", "1 minute").alias("minute"), "customer")
        .agg(f.sum("amount").alias("amount"), f.count("*").alias("orders"))
        .select(f.col("minute.start").alias("minute"), "customer", "amount", "orders")
    )


def run(spark: SparkSession, bootstrap: str, table: str, topic: str = TOPIC) -> None:
    """Appends to the table. Its folder has the checkpoint, too: offsets and open minutes."""
    query = (
        revenue(read_orders(spark, bootstrap, topic))
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", f"{table}/data")
        .option("checkpointLocation", f"{table}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    session = SparkSession.builder.appName("revenue").getOrCreate()
    run(session, *sys.argv[1:])
    session.stop()
