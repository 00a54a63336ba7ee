"""Visitors take turns on one model and never share a mask; who leaves is heard no more."""

import asyncio

import pytest

from caploc.playground.serving import Turns
from caploc.playground.setting import PageQuestion

CHOICES = [["L0H13", "L0H14"], ["L5H1"], ["L0H13", "L0H14", "L3H12", "L1H2"]]


@pytest.fixture
def turns():
    with_end = Turns()
    yield with_end
    with_end.end()


async def gathered(stream):
    return [event async for event in stream]


def test_answers_in_several_tabs_are_those_of_each_alone(playground, turns):
    questions = [
        PageQuestion(heads=heads, prompt=prompt, new_tokens=8)
        for heads, prompt in zip(CHOICES, ["47+38=", "sort 72941=", "recall:"], strict=True)
    ]
    alone = [list(playground.answers(question)) for question in questions]

    async def together():
        streams = [turns.stream(playground.answers(question)) for question in questions]
        return await asyncio.gather(*map(gathered, streams))

    assert asyncio.run(together()) == alone


def test_steps_of_several_streams_alternate(turns):
    seen = []

    def steps(name):
        for number in range(4):
            seen.append(name)
            yield number

    async def together():
        return await asyncio.gather(*(gathered(turns.stream(steps(name))) for name in "ab"))

    assert asyncio.run(together()) == [[0, 1, 2, 3]] * 2
    assert seen == ["a", "b"] * 4


def test_a_stream_that_nobody_reads_on_is_closed(turns):
    told = []

    def steps():
        try:
            for number in range(10**9):
                told.append(number)
                yield number
        finally:
            told.append("closed")

    async def leave():
        stream = turns.stream(steps())
        assert await anext(stream) == 0
        await stream.aclose()
        await turns.call(lambda: None)  # whatever was to be done before is done

    asyncio.run(leave())
    assert told == [0, "closed"]


def test_a_visitor_who_leaves_while_waiting_is_heard_no_more(turns):
    told = []

    def steps():
        try:
            while True:
                told.append("step")
                yield 1
        finally:
            told.append("closed")

    async def leave():
        waiting = asyncio.create_task(gathered(turns.stream(steps())))
        while len(told) < 3:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await turns.call(lambda: None)
        counted = len(told)
        await turns.call(lambda: None)
        assert len(told) == counted

    asyncio.run(leave())
    assert told[-1] == "closed"
