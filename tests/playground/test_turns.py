"""Visitors take turns on one model and never share a mask; who leaves is heard no more."""

import asyncio
import json
from functools import partial

import pytest

from caploc.playground.playground import PageQuestion
from caploc.playground.serving import Turns

CHOICES = [["L0H13", "L0H14"], ["L5H1"], ["L0H13", "L0H14", "L3H12", "L1H2"]]


@pytest.fixture
def turns():
    with_end = Turns()
    yield with_end
    with_end.end()


async def gathered(stream):
    return [json.loads(line) async for line in stream]


def test_answers_in_several_tabs_are_those_of_each_alone(playground, turns):
    questions = [
        PageQuestion(heads=heads, prompt=prompt, new_tokens=8)
        for heads, prompt in zip(CHOICES, ["47+38=", "sort 72941=", "recall:"], strict=True)
    ]

    def ignore(event):
        pass

    alone = [playground.answer(question, ignore) for question in questions]

    async def together():
        streams = [turns.stream(partial(playground.answer, question)) for question in questions]
        return await asyncio.gather(*map(gathered, streams))

    lines = asyncio.run(together())
    assert [found[-1] for found in lines] == json.loads(json.dumps(alone))
    assert all({each["kind"] for each in found[:-1]} == {"so far"} for found in lines)


def test_an_answer_that_nobody_reads_on_is_stopped(turns):
    steps = []

    def endless(tell):
        while True:
            steps.append(1)
            tell({"step": len(steps)})

    async def leave():
        stream = turns.stream(endless)
        assert json.loads(await anext(stream)) == {"step": 1}
        waiting = asyncio.create_task(gathered(turns.stream(endless)))
        await stream.aclose()
        while len(steps) < 10_000:  # the one that waited has its turn
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await turns.call(lambda: "next") == "next"

    asyncio.run(asyncio.wait_for(leave(), 60))


def test_what_goes_wrong_on_the_way_is_the_last_line(turns, caplog):
    def broken(tell):
        tell({"kind": "so far"})
        raise RuntimeError("device lost")

    lines = asyncio.run(gathered(turns.stream(broken)))
    assert lines[0] == {"kind": "so far"}
    assert "RuntimeError: device lost" in lines[1]["message"] and len(lines) == 2
