"""What a run says of itself while it goes on, beside what it says at its end."""

import pytest

from caploc.contents import LiveRun, read_file
from caploc.declaration import ModelOptions, Study
from caploc.options import Settings
from caploc.progress import Silent
from caploc.study import run_study
from worlds import DEMO

STUDY = Study(
    ModelOptions(DEMO, device="cpu"),
    "demo/recall",
    settings=Settings(top=2, budget=400),
    examples=60,
    controls=0,
    limit=5,
)


class Watched(Silent):
    """Reads the run's file after every batch."""

    def __init__(self, folder):
        self.folder, self.seen, self.leading = folder, [], []

    def advance(self, rows, tokens):
        if (self.folder / "progress.json").exists():
            self.seen.append(read_file(self.folder / "progress.json", LiveRun))

    def expect(self, rows): ...
    def tell(self, text): ...

    def lead(self, heads):
        self.leading.append(list(heads))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    watched = Watched(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caploc.live.SECONDS", 0.0)
        return run_study(STUDY, folder, watched), watched


def test_the_map_fills_until_it_is_that_of_the_result(run):
    found, watched = run
    counts = [sum(share is not None for layer in s.layers for share in layer) for s in watched.seen]
    assert counts == sorted(counts) and counts[0] == 0 and len(set(counts)) > 2
    shown = {
        f"L{layer}H{index}": share
        for layer, shares in enumerate(watched.seen[-1].layers)
        for index, share in enumerate(shares)
    }
    scanned = {head.head: head.lost for head in found.result.heads if head.scanned}
    assert len(scanned) == 96
    assert {name: shown[name] for name in scanned} == pytest.approx(scanned)


def test_stage_and_rows_go_on_and_the_leading_heads_are_told(run):
    found, watched = run
    done = [live.done for live in watched.seen]
    assert done == sorted(done) and all(live.rows >= live.done for live in watched.seen)
    stages = list(dict.fromkeys(live.stage for live in watched.seen))
    assert [stage for stage in stages if stage.startswith("scan")]
    assert watched.leading[0] == [] and set(found.result.top) <= {*watched.leading[-1]}


def test_a_run_that_has_ended_leaves_no_file_of_its_progress(run):
    found, _ = run
    assert (found.folder / "result.json").exists()
    assert not (found.folder / "progress.json").exists()
