"""The hubs of asyncio loops."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Callable

from forebay._forebay import Call, Hub

_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()

Place = tuple[Hub, Callable[[], "asyncio.Future[Any]"]]


def place() -> Place:
    """Returns the running loop's hub, and the function that makes its futures."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None or not hub.is_here():
        hub = Hub()
        loop.add_reader(hub.fileno(), hub.run)
        # Each loop is a key of only its own thread.
        _hubs[loop] = hub
        # Not `list(_hubs)`: loops that other threads add would end it with a RuntimeError.
        for reference in _hubs.keyrefs():
            other = reference()
            # Calls of a closed loop are given up; otherwise its futures would keep it.
            if other is not None and other.is_closed():
                _hubs.pop(other, None)
    return hub, loop.create_future


async def end(call: Call) -> Any:
    """Waits for the end of a call. Cancelling the task gives the call up."""
    future = call.future
    if future is None:
        return call.result()
    try:
        return await future
    finally:
        call.cancel()
