"""Compares the replicas of a topic: where does the log of each replica end, on each broker?

    python replica_offsets.py HOST:PORT TOPIC

One ListOffsets request goes to each broker that has a replica, all at the same time. The replica id -2 stands
for a debugging consumer: brokers answer it for partitions that they follow, too. Exit status: 0 when every
replica has all that its leader has, 1 when one lags or cannot be read, 2 for bad arguments.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict

from ottla.client import RequestClient
from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import ListOffsetsRequest, ListOffsetsResponse, MetadataRequest, MetadataResponse

DEBUGGING_CONSUMER = -2
LATEST = -1
Found = dict[tuple[int, int], int | str]
"""(partition, broker) to the log's end offset, or to the reason why it is not known."""


async def compare(client: RequestClient, topic: str) -> int:
    row = MetadataRequest.MetadataRequestTopic(name=topic)
    request = MetadataRequest(topics=[row], allow_auto_topic_creation=False)
    metadata: MetadataResponse = await client.request(request)
    (described,) = metadata.topics
    if described.error_code:
        print(f"{topic}: {ErrorCode.of(described.error_code).name}", file=sys.stderr)
        return 1
    partitions = sorted(described.partitions, key=lambda each: each.partition_index)
    found = await end_offsets(client, topic, partitions)
    status = 0
    print("partition  broker  role      log end  behind")
    for each in partitions:
        index = each.partition_index
        end = found.get((index, each.leader_id), "no leader")
        for broker in each.replica_nodes:
            here = found[index, broker]
            behind = end - here if isinstance(end, int) and isinstance(here, int) else None
            role = "leader" if broker == each.leader_id else "follower"
            print(f"{index:9}  {broker:6}  {role:8} {here:>8}  {'?' if behind is None else behind:>6}")
            status |= behind != 0
    return status


async def end_offsets(
    client: RequestClient, topic: str, partitions: list[MetadataResponse.MetadataResponsePartition]
) -> Found:
    replicas: defaultdict[int, list[int]] = defaultdict(list)
    for each in partitions:
        for broker in each.replica_nodes:
            replicas[broker].append(each.partition_index)
    responses = await asyncio.gather(
        *(client.request(latest(topic, indexes), broker) for broker, indexes in replicas.items()),
        return_exceptions=True,
    )
    found: Found = {}
    for (broker, indexes), response in zip(replicas.items(), responses, strict=True):
        if isinstance(response, ListOffsetsResponse):
            for result in response.topics[0].partitions:
                error = ErrorCode.of(result.error_code)
                found[result.partition_index, broker] = error.name if error else result.offset
        elif isinstance(response, ClientError):
            found.update({(index, broker): response.name for index in indexes})
        else:
            raise response
    return found


def latest(topic: str, indexes: list[int]) -> ListOffsetsRequest:
    rows = [ListOffsetsRequest.ListOffsetsPartition(partition_index=n, timestamp=LATEST) for n in indexes]
    wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=rows)
    return ListOffsetsRequest(replica_id=DEBUGGING_CONSUMER, topics=[wanted])


async def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: replica_offsets.py HOST:PORT TOPIC", file=sys.stderr)
        return 2
    bootstrap, topic = arguments
    async with RequestClient(bootstrap_servers=bootstrap) as client:
        return await compare(client, topic)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
