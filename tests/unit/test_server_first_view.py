"""Who asks before the controller's first word waits for it, not for ever, and only then."""

from __future__ import annotations

import asyncio

import pytest

from ottla.metadata.cache import MetadataCache
from ottla.protocol.messages import UpdateMetadataRequest
from ottla.server.handlers import first_view
from ottla.server.handlers.first_view import FirstView


class FakeRequest:
    def __init__(self, *, abandoned: bool = False) -> None:
        self.abandoned = abandoned
        self.failed: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)


def test_requests_wait_for_the_first_update_and_later_ones_do_not() -> None:
    async def story() -> None:
        cache = MetadataCache()
        view = FirstView(cache, asyncio.get_running_loop())
        answered: list[object] = []
        early, gone, late = FakeRequest(), FakeRequest(abandoned=True), FakeRequest()
        assert view.wait(early, answered.append)  # type: ignore[arg-type]
        assert view.wait(gone, answered.append)  # type: ignore[arg-type]
        assert answered == []
        cache.update(UpdateMetadataRequest(controller_id=1))
        assert answered == [early]
        assert not view.wait(late, answered.append)  # type: ignore[arg-type]
        cache.update(UpdateMetadataRequest(controller_id=1))
        assert answered == [early]

    asyncio.run(story())


def test_one_that_fails_is_told_and_the_others_are_answered() -> None:
    async def story() -> None:
        view = FirstView(MetadataCache(), asyncio.get_running_loop())
        bad, good = FakeRequest(), FakeRequest()
        answered: list[object] = []

        def fails(request: object) -> None:
            raise ZeroDivisionError

        view.wait(bad, fails)  # type: ignore[arg-type]
        view.wait(good, answered.append)  # type: ignore[arg-type]
        view.release()
        assert [type(e) for e in bad.failed] == [ZeroDivisionError]
        assert answered == [good]

    asyncio.run(story())


def test_without_a_controller_the_wait_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_view, "FIRST_VIEW_TIMEOUT_S", 0.05)

    async def story() -> None:
        view = FirstView(MetadataCache(), asyncio.get_running_loop())
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        view.wait(FakeRequest(), answered.set_result)  # type: ignore[arg-type]
        await asyncio.wait_for(answered, 60)
        assert view.reached.is_set()

    asyncio.run(story())
