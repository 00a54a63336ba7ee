"""How asks are cut into chunks."""

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine.api import Ask
from caploc.tasks.task import Generate, LogLikelihood
from caploc.workers.distributed import LEAD, ROWS, cut_chunks

FEWSHOT = "x" * LEAD


def crossed(masks, prompts, parts=1):
    """Every mask of one head on every prompt; with several parts, choices."""
    rows = [(mask, prompt) for mask in np.eye(masks, dtype=bool) for prompt in prompts]
    return [
        Ask(
            (row, part),
            Generate(text, "{}") if parts == 1 else LogLikelihood(text, f" {part}"),
            mask,
        )
        for row, (mask, text) in enumerate(rows)
        for part in range(parts)
    ]


@given(
    masks=st.integers(1, 40),
    prompts=st.lists(st.text("ab", max_size=3), min_size=1, max_size=12, unique=True),
    fewshot=st.booleans(),
    parts=st.integers(1, 3),
    workers=st.integers(1, 300),
)
def test_every_row_is_whole_in_one_chunk(masks, prompts, fewshot, parts, workers):
    asks = crossed(masks, [FEWSHOT * fewshot + prompt for prompt in prompts], parts)
    chunks = cut_chunks(asks, workers)
    assert sorted(ask.key for ask in chain(*chunks)) == [ask.key for ask in asks]
    rows = [{ask.key[0] for ask in chunk} for chunk in chunks]
    assert sum(map(len, rows)) == masks * len(prompts)
    assert all(0 < len(each) <= ROWS for each in rows)


def masks_of(chunk):
    return {ask.knocked_out.tobytes() for ask in chunk}


def prompts_of(chunk):
    return {ask.request.prompt for ask in chunk}


def test_rows_of_a_mask_stay_together_where_prompts_begin_alike_else_those_of_a_prompt():
    alike = crossed(30, [f"{FEWSHOT}{number}" for number in range(50)])
    assert all(len(masks_of(chunk)) <= ROWS // 50 for chunk in cut_chunks(alike, 1))
    apart = crossed(50, [f"{number} and so on" for number in range(30)])
    assert all(len(prompts_of(chunk)) <= ROWS // 50 for chunk in cut_chunks(apart, 1))
