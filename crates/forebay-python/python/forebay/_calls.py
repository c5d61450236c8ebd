"""Calls that continue while the thread that made them does other work."""

from __future__ import annotations

import select
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from forebay._forebay import Call, Hub

__all__ = ["Calls"]


class Calls:
    """Calls under way; one thread uses them at a time. A call of one operation of the core continues without a thread."""

    def __init__(self) -> None:
        self._hub = Hub()

    def begin(self, method: Callable[..., Call], *arguments: Any) -> Call:
        """Starts a call by its method for asyncio, such as `file._begin_read_into`."""
        return method(self._hub, Future, *arguments)

    def end(self, call: Call) -> Any:
        """Waits for a call; returns its result."""
        future: Any = call.future
        if future is None:
            return call.result()
        poll = select.poll()
        poll.register(self._hub.fileno(), select.POLLIN)
        while not future.done():
            poll.poll()
            self._hub.run()
        return future.result()
