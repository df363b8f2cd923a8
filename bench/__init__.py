"""Side-by-side measurements of Ottla and Apache Kafka on one machine, in one run."""
