"""Opens many connections without a client library, which send now and then and close, until a command ends it.

    python -m tests.programs.soak.visitors HOST PORT COUNT STAY_S SILENCE_S TOPIC

So many are there at any time; each stays and is silent for so long on average, by a seed that is always the same. They
leave in turn by a FIN, and every fourth by a reset. When standard input ends, all finish what they are at and leave.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import sys

from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from tests.builders.wire import batch

CLIENT_IDS = 20
ARRIVAL_S = 10  # of the first ones
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER, after no time
_SEED = 7


def words(client_id: str, topic: str) -> list[bytes]:
    """Return requests without correlation ids: the first of a connection, and those that follow in any order."""
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0)
    partition.records = batch(2)
    produced = ProduceRequest.TopicProduceData(name=topic, partition_data=[partition])
    asked = MetadataRequest.MetadataRequestTopic(name=topic, topic_id=None)
    messages = (
        (ApiVersionsRequest(client_software_name="visitor", client_software_version="1"), 3),
        (MetadataRequest(topics=[asked], allow_auto_topic_creation=False), 12),
        (ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[produced], transactional_id=None), 9),
    )
    for message, version in messages:
        message.API_VERSION = version
        message.with_header(0, client_id)
    return [bytes(message.encode(header=True, framed=True)) for message, _ in messages]


class Visitors:
    """The clients."""

    def __init__(self, host: str, port: int, stay_s: float, silence_s: float, topic: str) -> None:
        self._address = host, port
        self._stay_s, self._silence_s = stay_s, silence_s
        self._words = [words(f"visitor-{number}", topic) for number in range(CLIENT_IDS)]
        self._leaving = asyncio.Event()
        self._random = random.Random(_SEED)

    async def visit(self, count: int) -> None:
        """Run `count` clients at a time, each replaced when it leaves, until the end of standard input."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._come_and_go(number))
            await loop.run_in_executor(None, sys.stdin.read)
            self._leaving.set()

    async def _come_and_go(self, number: int) -> None:
        await self._pause(self._random.uniform(0, ARRIVAL_S))
        first, *others = self._words[number % CLIENT_IDS]
        for visit in range(1 << 30):
            if self._leaving.is_set():
                return
            reader, writer = await asyncio.open_connection(*self._address)
            until = asyncio.get_running_loop().time() + self._random.expovariate(1 / self._stay_s)
            await _exchange(reader, writer, first, 1)
            correlation_id = 1
            while not self._leaving.is_set() and asyncio.get_running_loop().time() < until:
                await self._pause(self._random.expovariate(1 / self._silence_s))
                correlation_id += 1
                await _exchange(reader, writer, self._random.choice(others), correlation_id)
            if visit % 4 == 3:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.close()

    async def _pause(self, seconds: float) -> None:
        """Pause for this time, or less if all are to leave."""
        try:
            await asyncio.wait_for(self._leaving.wait(), seconds)
        except TimeoutError:
            return


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, correlation_id: int
) -> None:
    writer.write(request[:8] + struct.pack(">i", correlation_id) + request[12:])
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = await reader.readexactly(size)
    assert int.from_bytes(answer[:4], "big") == correlation_id


def main() -> None:
    host, port, count, stay_s, silence_s, topic = sys.argv[1:]
    asyncio.run(Visitors(host, int(port), float(stay_s), float(silence_s), topic).visit(int(count)))


if __name__ == "__main__":
    main()
