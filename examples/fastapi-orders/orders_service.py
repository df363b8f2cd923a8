"""A web service that writes orders to a topic, and serves them from a view of the topic in memory.

    OTTLA_BOOTSTRAP=127.0.0.1:9092 uvicorn orders_service:app

POST /orders                     writes an order; the response is sent when every in-sync replica has it
GET /customers/{customer}/orders the orders of a customer
GET /healthz, GET /readyz        for Kubernetes: restart the service; send it requests
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, status
from pydantic import BaseModel, Field

from ottla.client import Consumer, Producer
from ottla.client.errors import AuthorizationError, ClientError
from ottla.client.serialization import JsonDeserializer, JsonSerializer, TextDeserializer, TextSerializer

TOPIC = "orders"
DELIVERY_TIMEOUT_MS = 5_000
"""After this, the response is an error: a client of the web waits no longer."""


class Order(BaseModel):
    customer: str = Field(min_length=1, max_length=100)
    amount: int = Field(gt=0, description="in cents")


class Written(BaseModel):
    partition: int
    offset: int


class Orders:
    """The topic: `place` writes, `of` reads the view, which `follow` keeps up to date."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._producer = Producer(
            bootstrap_servers=bootstrap_servers,
            acks="all",
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=DELIVERY_TIMEOUT_MS // 2,
            key_serializer=TextSerializer(),
            value_serializer=JsonSerializer(),
        )
        # Without a group: each instance of the service reads the whole topic.
        self._consumer = Consumer(
            bootstrap_servers=bootstrap_servers,
            auto_offset_reset="earliest",
            key_deserializer=TextDeserializer(),
            value_deserializer=JsonDeserializer(),
        )
        self._by_customer: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._follower: asyncio.Task[None] | None = None
        self.is_current = False
        """Whether the view has all records that were in the topic when the service started."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Orders]:
        async with self._producer, self._consumer:
            self._follower = asyncio.create_task(self._follow())
            try:
                yield self
            finally:
                self._follower.cancel()
                with suppress(asyncio.CancelledError):
                    await self._follower

    async def place(self, order: Order) -> Written:
        """Raises ClientError if it is unknown whether the order was written, or if it was refused."""
        value = order.model_dump(exclude={"customer"})
        record = await self._producer.send_and_wait(TOPIC, value, key=order.customer)
        return Written(partition=record.partition, offset=record.offset)

    def of(self, customer: str) -> list[dict[str, Any]]:
        return self._by_customer.get(customer, [])

    @property
    def failed(self) -> bool:
        """Whether the view is no longer updated."""
        return self._follower is not None and self._follower.done()

    async def _follow(self) -> None:
        partitions = [(TOPIC, number) for number in await self._consumer.partitions_for(TOPIC)]
        self._consumer.assign(partitions)
        ends = await self._consumer.end_offsets(partitions)
        while True:
            self.is_current = self.is_current or all(
                [await self._consumer.position(partition) >= end for partition, end in ends.items()]
            )
            for records in (await self._consumer.poll(timeout_s=1)).values():
                for record in records:
                    self._by_customer[record.key].append(record.value)


def orders_of(request: Request) -> Orders:
    orders: Orders = request.app.state.orders
    return orders


Running = Annotated[Orders, Depends(orders_of)]
router = APIRouter()


@router.post("/orders", status_code=status.HTTP_201_CREATED)
async def place(order: Order, orders: Running) -> Written:
    try:
        return await orders.place(order)
    except AuthorizationError as error:
        raise HTTPException(status.HTTP_500_INTERNAL_SERVER_ERROR, error.name) from error
    except ClientError as error:
        # The order may have been written nevertheless: it needs an id where it must not be written twice.
        again = {"Retry-After": "1"}
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, error.name, headers=again) from error


@router.get("/customers/{customer}/orders")
async def placed_by(customer: str, orders: Running) -> list[dict[str, Any]]:
    return orders.of(customer)


@router.get("/healthz")
async def health(orders: Running) -> str:
    if orders.failed:
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "the view is no longer updated")
    return "ok"


@router.get("/readyz")
async def ready(orders: Running) -> str:
    if not orders.is_current:
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "the view is being read")
    return "ok"


def create_app(bootstrap_servers: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Orders(bootstrap_servers).running() as orders:
            app.state.orders = orders
            yield

    app = FastAPI(title="Orders", lifespan=lifespan)
    app.include_router(router)
    return app


app = create_app(os.environ.get("OTTLA_BOOTSTRAP", "127.0.0.1:9092"))
