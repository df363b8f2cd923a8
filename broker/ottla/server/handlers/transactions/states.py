"""DescribeTransactions 0 and ListTransactions 0 to 1 (KIP-664, KIP-994): what tools are shown of
transactions.

Behaviour: a coordinator describes its own transactional ids, each with an error of its own, and lists them
through filters by state, producer id and, from version 1, age; states that it does not know come back by
name.
"""

from __future__ import annotations

from ottla.coordinators.transactions.coordinator import TransactionCoordinator
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.server.dispatch.dispatcher import Request, Route


class TransactionStatesHandler:
    def __init__(self, transactions: TransactionCoordinator) -> None:
        self._transactions = transactions

    def routes(self) -> list[Route]:
        return [
            Route(DescribeTransactionsRequest, self.describe, _describe_error),
            Route(ListTransactionsRequest, self.list_transactions, _list_error),
        ]

    def describe(self, request: Request) -> None:
        message = request.decode(DescribeTransactionsRequest)
        states = [self._transactions.describe(each) for each in message.transactional_ids]
        request.respond(DescribeTransactionsResponse(transaction_states=states))

    def list_transactions(self, request: Request) -> None:
        request.respond(self._transactions.list_transactions(request.decode(ListTransactionsRequest)))


def _describe_error(
    message: DescribeTransactionsRequest, version: int, code: ErrorCode, detail: str | None
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponse.TransactionState(error_code=code, transactional_id=each)
            for each in message.transactional_ids
        ]
    )


def _list_error(
    message: ListTransactionsRequest, version: int, code: ErrorCode, detail: str | None
) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=code)
