"""Plans: no model, only token ids, cuts and sizes."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, groupby, product
from os.path import commonprefix

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.engine.planning import (
    KEPT,
    MARGIN,
    RECORDS,
    SHORTEST,
    UPKEEP,
    MemorySizes,
    PlannedRow,
    PlannedWork,
    plan_batches,
    shared_length,
    shared_prefixes,
)

LAYERS = 4
SIZES = MemorySizes(
    layers=LAYERS,
    token=8 * LAYERS,
    residual=4,
    passing=500,
    memory=10**9,
    most_rows=64,
    most_tokens=2048,
)
# Texts made of a few blocks, some shorter and some longer than a prefix must be.
BLOCKS = [(1,) * (SHORTEST + 1), (2,) * 3, (3,) * 6, (1, 2) * SHORTEST]
texts = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4).map(lambda found: sum(found, ()))
memories = st.integers(0, 10**6) | st.just(10**9)


def crossed(prompts, cuts):
    """Every prompt under every mask."""
    pairs = product(range(prompts), range(len(cuts)))
    return [PlannedRow(number, prompt, mask) for number, (prompt, mask) in enumerate(pairs)]


def work_of(stems, cuts, *, answers=5, first=(), wanted=None):
    return PlannedWork(
        stems=stems,
        lengths=[len(stem) + 1 for stem in stems],
        answers=answers,
        cuts=cuts,
        wanted=crossed(len(stems), cuts) if wanted is None else wanted,
        first=first,
    )


@st.composite
def rows(draw):
    """What `work_of` takes."""
    stems = draw(st.lists(texts, min_size=1, max_size=6, unique=True))
    cuts = draw(st.lists(st.integers(0, LAYERS), min_size=1, max_size=5))
    every = crossed(len(stems), cuts)
    wanted = draw(st.lists(st.sampled_from(every), unique=True, min_size=1))
    first = draw(st.sets(st.sampled_from([row.number for row in wanted])))
    return {"stems": stems, "cuts": cuts, "first": first, "wanted": wanted}


def saved(stems):
    """Tokens that a group need not read, written from the definition."""
    length = min(len(commonprefix(stems)), min(map(len, stems)) - 1)
    return max(length * (len(stems) - 1) - UPKEEP, 0) if length >= SHORTEST else 0


@given(st.lists(texts, min_size=1, max_size=7))
def test_no_other_grouping_of_neighbours_saves_more(stems):
    ordered, count = sorted(stems), len(stems)
    cuts = (c for size in range(count) for c in combinations(range(1, count), size))
    best = max(
        sum(saved(ordered[a:b]) for a, b in zip((0, *c), (*c, count), strict=True)) for c in cuts
    )
    groups = shared_prefixes(stems)
    assert sorted(member for _, members in groups for member in members) == list(range(count))
    for length, members in groups:
        assert len({stems[m][:length] for m in members}) == 1
        assert (length > 0) == (saved([stems[m] for m in members]) > 0)
    assert sum(saved([stems[m] for m in members]) for _, members in groups) == best


@given(texts, texts)
def test_common_tokens_are_counted(first, second):
    assert shared_length(first, second) == len(commonprefix([first, second]))


@given(rows(), memories)
def test_every_row_is_planned_once_and_starts_from_what_fits(asked, memory):
    work = work_of(**asked)
    sizes = replace(SIZES, memory=memory)
    planned = plan_batches(work, sizes)
    planned_rows = [row for stage in planned.stages for row in stage.rows]
    assert Counter(planned_rows) == Counter(work.wanted)
    for stage in planned.stages:
        assert set(stage.recorded) <= {row.prompt for row in stage.rows}
        recorded = sum(
            len(work.stems[p][planned.shared(p) :]) + 1 + work.answers for p in stage.recorded
        )
        assert sizes.record(recorded) <= RECORDS * memory / 2
    assert 1 <= planned.slots <= min(sizes.most_rows, len(planned_rows))


@given(rows(), memories)
def test_prefixes_are_the_beginnings_of_their_prompts(asked, memory):
    work = work_of(**asked)
    planned = plan_batches(work, replace(SIZES, memory=memory))
    for prompt, stem in enumerate(work.stems):
        number = planned.prefix[prompt]
        before = () if number is None else planned.prefixes[number]
        assert (*before, *stem[planned.shared(prompt) :]) == stem
        assert stem[planned.shared(prompt) :]


@given(rows(), memories)
def test_rows_of_one_mask_that_read_a_prefix_run_together(asked, memory):
    work = work_of(**asked)
    planned = plan_batches(work, replace(SIZES, memory=memory))
    for stage in planned.stages:
        late = [row for row in stage.rows if row.number not in work.first]
        if late and planned.prefix[late[0].prompt] is not None:
            runs = [mask for mask, _ in groupby(late, key=lambda row: row.mask)]
            assert len(runs) == len(set(runs))
            assert runs == sorted(runs, key=lambda mask: work.cuts[mask])


@given(rows(), memories)
def test_first_rows_run_before_the_others_which_wait(asked, memory):
    work = work_of(**asked)
    stages = plan_batches(work, replace(SIZES, memory=memory)).stages
    firsts = [[row.number in work.first for row in stage.rows] for stage in stages]
    assert [all(flags) for flags in firsts] == [
        bool(work.first) and n == 0 for n in range(len(firsts))
    ]
    assert not any(any(flags) for flags in firsts[1:]) or not work.first
    waits = [stage.waits for stage in stages]
    assert waits == [bool(work.first) and n == 1 for n in range(len(stages))]


def separate(count, length=10):
    """Texts that share nothing."""
    return [(number, *range(100, 100 + length - 1)) for number in range(count)]


def test_texts_are_taken_in_blocks_that_fit_their_records():
    work = work_of(separate(12), cuts=[LAYERS] * 3)
    each = SIZES.record(11 + work.answers)
    memory = 5 * each / (RECORDS / 2)
    stages = plan_batches(work, replace(SIZES, memory=int(memory) + 1)).stages
    assert [len(stage.recorded) for stage in stages] == [5, 5, 2]
    assert all({row.prompt for row in stage.rows} == set(stage.recorded) for stage in stages)


@pytest.mark.parametrize("shared", [0, 40])
def test_slots_respect_the_most_rows_and_the_memory(shared):
    stems = [(*range(1000, 1000 + shared), *stem) for stem in separate(30)]
    work = work_of(stems, cuts=[0] * 10)
    assert plan_batches(work, SIZES).slots == SIZES.most_rows
    assert plan_batches(work, replace(SIZES, most_rows=1000)).slots == len(work.wanted)
    slots = [plan_batches(work, replace(SIZES, memory=2**power)).slots for power in range(24)]
    assert slots == sorted(slots) and slots[0] == 1 and slots[-1] == SIZES.most_rows
    for power, count in enumerate(slots):
        # the keys of all running rows, each with 11 own tokens, and of the prefix of one mask
        keys = SIZES.token * (count * (11 + work.answers) + shared)
        assert count == 1 or keys <= (KEPT + RECORDS) * 2**power


def test_a_pass_has_as_many_tokens_as_fit_but_the_longest_row_must():
    work = work_of(separate(3, length=50), cuts=[0])
    assert plan_batches(work, SIZES).tokens == SIZES.most_tokens
    assert plan_batches(work, replace(SIZES, memory=0)).tokens == 51
    tokens = plan_batches(work, replace(SIZES, memory=10**6)).tokens
    assert 51 < tokens < SIZES.most_tokens
    assert tokens * SIZES.passing <= (1 - RECORDS - KEPT) * 10**6


def test_prompts_are_recorded_only_where_their_rows_skip_more_than_that_costs():
    least = MARGIN * LAYERS
    for cuts in product(range(LAYERS + 1), repeat=2):
        for stems in (separate(3), [(*range(50, 350), *stem) for stem in separate(3)]):
            stages = plan_batches(work_of(stems, cuts=list(cuts)), SIZES).stages
            recorded = {prompt for stage in stages for prompt in stage.recorded}
            assert recorded == (set(range(3)) if sum(cuts) >= least else set())


def test_a_prefix_is_kept_at_all_depths_only_where_its_masks_start_above_the_bottom():
    stems = [(*range(50, 350), *stem) for stem in separate(3)]
    assert plan_batches(work_of(stems, cuts=[0] * 9), SIZES).deep is False
    assert plan_batches(work_of(stems, cuts=[3] * 9), SIZES).deep
    assert not plan_batches(work_of(stems, cuts=[3]), SIZES).deep  # read once, to skip three


@given(rows())
def test_the_smallest_plan_is_the_one_that_less_memory_makes_no_smaller(asked):
    work = work_of(**asked)
    least = plan_batches(work, replace(SIZES, memory=0))
    assert least.smallest and least.slots == 1
    for power in range(24):
        planned = plan_batches(work, replace(SIZES, memory=2**power))
        if planned.smallest:
            assert (planned.slots, planned.tokens) == (1, least.tokens)
            assert not planned.deep
            assert not any(stage.recorded for stage in planned.stages)


def test_a_plan_for_one_row_at_a_time_is_not_the_smallest_while_it_keeps_records():
    work = work_of(separate(2, length=50), cuts=[LAYERS] * 3)
    sizes = replace(SIZES, most_rows=1, most_tokens=10)
    assert not plan_batches(work, sizes).smallest
    assert plan_batches(work, replace(sizes, memory=0)).smallest


def test_no_rows_are_a_plan_without_stages():
    planned = plan_batches(work_of([(1, 2, 3)], cuts=[0], wanted=[]), SIZES)
    assert planned.stages == () and planned.slots == 1
