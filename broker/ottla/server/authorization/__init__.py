"""What a request needs to be allowed, API by API, as Kafka's KafkaApis has it.

Only with an authorizer (`authorizer.class.name`) is any of this in the way: then `guarding.guarded` puts a
guard before each handler. A guard refuses a request, or takes out of it what its sender may not touch and
adds to the answer how that was refused; so handlers know nothing of ACLs, and cost nothing without. Produce
and Fetch, whose answers are not messages but ready bytes, ask about each topic themselves (`topic_access`).
"""
