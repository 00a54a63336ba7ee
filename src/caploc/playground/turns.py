"""Whose turn it is: everything that touches the model runs on one thread, a step at a time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """One thread that serves every visitor in turn.

    Streams take turns step by step: a long answer in one tab does not keep another waiting, and a
    step knocks out its own heads and none afterwards, so that visitors never share a mask.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="playground")

    async def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Have one piece of work done and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)

    async def stream(self, steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
        """Hand on what a generator yields; it is closed when nobody listens any more."""
        over = object()
        try:
            while (found := await self.call(next, steps, over)) is not over:
                yield found
        finally:
            self.thread.submit(steps.close)

    def end(self) -> None:
        """Take no more work; the step that runs is the last."""
        self.thread.shutdown(wait=True, cancel_futures=True)
