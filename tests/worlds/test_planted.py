import json
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from caploc.declaration import ModelOptions, Study
from caploc.errors import BadOption
from caploc.evaluation import Evaluation, evaluate
from caploc.models.cutting import knocked_out
from caploc.models.loading import load_model
from caploc.study import run_study
from worlds.planted import Backup, Planted, write_planted

PLANS = [
    Planted(needed=1, universal=1, examples=200),
    Planted(needed=5, backups=2, universal=1, examples=200, seed=1),
    Planted(needed=10, backups=3, universal=2, examples=200, seed=2),
]
FULL = PLANS[-1]


class Written:
    """A planted model on disk, and its answers by plain forward passes."""

    def __init__(self, folder, plan):
        self.folder, self.truth = folder, write_planted(folder, plan)

    @cached_property
    def loaded(self):
        return load_model(str(self.folder), device="cpu")

    def task(self, name="planted"):
        return str(self.folder / f"{name}.yaml")

    def examples(self, name="planted"):
        return list(map(json.loads, (self.folder / f"{name}.jsonl").read_text().splitlines()))

    @torch.inference_mode()
    def right(self, cut=(), name="planted"):
        """Which examples the model answers rightly with heads cut."""
        model, tokenizer, examples = self.loaded, self.loaded.tokenizer, self.examples(name)
        prompts = tokenizer([example["prompt"] for example in examples], return_tensors="pt")
        gold = tokenizer.convert_tokens_to_ids([example["answer"] for example in examples])
        mask = torch.from_numpy(model.grid.mask(cut))[None]
        with knocked_out(model.projections, model.grid, mask):
            logits = model.model(prompts["input_ids"]).logits[:, -1]
        return (logits.argmax(-1) == torch.tensor(gold)).numpy()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    made = {}

    def write(plan):
        if plan not in made:
            made[plan] = Written(tmp_path_factory.mktemp("planted"), plan)
        return made[plan]

    return write


each_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.needed} needed")


@each_plan
def test_the_heads_are_found_and_pass_the_proof(written, plan):
    loaded = written(plan).loaded
    assert loaded.grid.heads_per_layer == (8, 8, 8, 8)
    assert loaded.dtype == "float32"


def test_plain_transformers_answer_in_words(written):
    model = written(FULL)
    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    plain = AutoModelForCausalLM.from_pretrained(model.folder)
    examples = model.examples()
    prompts = tokenizer([example["prompt"] for example in examples], return_tensors="pt")
    spoken = plain.generate(**prompts, max_new_tokens=1, do_sample=False)[:, -1:]
    answers = tokenizer.batch_decode(spoken)
    right = [answer == example["answer"] for answer, example in zip(answers, examples, strict=True)]
    assert np.mean(right) == 0.9
    assert {answer for answer, ok in zip(answers, right, strict=True) if not ok} == {"unsure"}


def test_with_its_rescuer_gone_too_a_needed_head_costs_nothing(written):
    model = written(Planted(needed=3, backups=1, rescuers=2, examples=200, seed=3))
    truth, intact = model.truth, model.right()
    assert len(truth.rescuers) == 2 and intact.mean() == truth.accuracy() == 0.9
    for rescuer, head in truth.rescuers.items():
        assert np.array_equal(model.right([rescuer, head]), intact)
        for cut in ([head], [rescuer], [rescuer, *truth.needed], [*truth.rescuers, head]):
            assert np.array_equal(model.right(cut), truth.right(cut))


@each_plan
def test_only_needed_and_universal_heads_change_an_outcome_alone(written, plan):
    model = written(plan)
    intact, truth = model.right(), model.truth
    effects = {head: (model.right([head]) ^ intact).mean() for head in model.loaded.grid.components}
    assert intact.mean() == 0.9
    changed = {head: effect for head, effect in effects.items() if effect}
    assert changed == pytest.approx(truth.needed | dict.fromkeys(truth.universal, 0.9))
    assert all(0.08 <= cost <= 0.3 for cost in truth.needed.values())


def test_strengths_are_what_the_heads_cost(tmp_path):
    model = Written(tmp_path, Planted(needed=3, strengths=(0.01, 0.29, 0.5)))
    costs = [0.9 - model.right([head]).mean() for head in model.truth.needed]
    assert costs == pytest.approx([0.01, 0.29, 0.5])


def test_a_backup_costs_nothing_alone_and_more_than_the_sum_with_its_needed_head(written):
    model = written(FULL)
    assert len(model.truth.backups) == 3
    for head, backup in model.truth.backups.items():
        alone, needed = model.right([head]), model.right([backup.behind])
        both = model.right([head, backup.behind])
        assert alone.mean() == 0.9
        assert needed.mean() - both.mean() == pytest.approx(backup.share)
        assert backup.share >= 0.08


def test_the_truth_says_every_outcome_under_random_masks(written):
    model, random = written(FULL), np.random.default_rng(0)
    harmless = [head for head in model.loaded.grid.components if head not in model.truth.universal]
    seen = set()
    for _ in range(40):
        cut = [head for head in harmless if random.random() < 0.15]
        right = model.right(cut)
        assert np.array_equal(right, model.truth.right(cut))
        assert model.truth.accuracy(map(str, cut)) == right.mean()
        seen.add(right.mean())
    assert len(seen) > 10


def test_the_other_task_needs_the_universal_heads_alone(written):
    model = written(FULL)
    for head in model.loaded.grid.components:
        right = model.right([head], "other")
        assert right.mean() == (head not in model.truth.universal)


def test_a_common_head_costs_its_strength_and_a_quarter_of_the_other_task(written):
    planted = written(Planted(needed=3, universal=1, common=2, examples=200, seed=4))
    truth, needed = planted.truth, list(planted.truth.needed)
    assert list(truth.common) == needed[1:]
    for cut in ((), *((head,) for head in needed), needed):
        assert (planted.right(cut) == truth.right(cut)).all()
        asks_north = [example["prompt"].endswith("north") for example in planted.examples("other")]
        lost = np.array(asks_north) if {*cut} & {*truth.common} else np.zeros(100, dtype=bool)
        assert (planted.right(cut, "other") == ~lost).all()
    assert not planted.right(truth.universal, "other").any()


def test_a_universal_head_breaks_every_answer_of_both_tasks_through_the_engine(written, tmp_path):
    model = written(FULL)
    tasks = (model.task(), model.task("other"))
    options = ModelOptions(str(model.folder), device="cpu")
    results = evaluate(Evaluation(options, model.truth.universal[:1], tasks), tmp_path).tasks
    assert [task.intact.score for task in results] == pytest.approx([0.9, 1.0])
    assert [task.knocked_out.score for task in results] == [0.0, 0.0]


@pytest.mark.slow
def test_one_shot_finds_exactly_the_planted_heads(written, tmp_path):
    model = written(FULL)
    study = Study(
        ModelOptions(str(model.folder), device="cpu"), model.task(), "one-shot", controls=0, limit=5
    )
    result = run_study(study, tmp_path / "run").result
    effects = {row.head: row.effect for row in result.heads}
    planted = {str(head) for head in (*model.truth.needed, *model.truth.universal)}
    assert all(effects[head] <= -0.03 for head in planted)
    assert {effect for head, effect in effects.items() if head not in planted} == {0.0}


def test_512_heads_do_what_the_truth_says(tmp_path):
    model = Written(tmp_path, Planted(16, 32, needed=20, backups=20, universal=4, examples=100))
    behind = {backup.behind: head for head, backup in model.truth.backups.items()}
    first, second, *_ = model.truth.needed
    assert model.loaded.grid.size == 512
    for cut in ([], [first], [behind[first]], [first, behind[first]], [first, second]):
        assert np.array_equal(model.right(cut), model.truth.right(cut))


def test_a_seed_gives_the_same_model_and_another_seed_another(tmp_path):
    write_planted(tmp_path / "a", FULL)
    write_planted(tmp_path / "b", FULL)
    write_planted(tmp_path / "c", replace(FULL, seed=FULL.seed + 1))
    for file in ("model.safetensors", "config.json", "tokenizer.json", "planted.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    other = (tmp_path / "c" / "model.safetensors").read_bytes()
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != other


def test_the_truth_is_written_beside_the_model(written):
    model = written(FULL)
    said = json.loads((model.folder / "truth.json").read_text())
    head, backup = next(iter(model.truth.backups.items()))
    assert said["needed"] == {str(name): cost for name, cost in model.truth.needed.items()}
    assert said["backups"][str(head)] == {"behind": str(backup.behind), "share": backup.share}
    assert said["universal"] == [str(name) for name in model.truth.universal]
    assert isinstance(backup, Backup) and backup.behind in model.truth.needed
    assert [row["margin"] for row in model.examples()] == list(model.truth.margins)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (Planted(needed=0), "needed must be from 1 to 20; got 0."),
        (Planted(needed=21), "needed must be from 1 to 20; got 21."),
        (Planted(2, 2, needed=5), "5 heads are to be planted, and a model of 2 layers with 2"),
        (Planted(2, 3, needed=3, backups=2, universal=2), "7 heads are to be planted"),
        (Planted(needed=2, backups=3), "backups must be from 0 to 2; got 3."),
        (Planted(layers=0), "layers must be 1 or more; got 0."),
        (Planted(examples=0), "examples must be 1 or more; got 0."),
        (Planted(universal=-1), "universal must be 0 or more; got -1."),
        (
            Planted(needed=2, strengths=(0.1,)),
            "strengths has one for each needed head, or none; got 1.",
        ),
        (Planted(needed=1, strengths=(0.6,)), "strengths are 0.01, 0.02 ... 0.5; got 0.6."),
        (Planted(needed=1, strengths=(0.125,)), "strengths are 0.01, 0.02 ... 0.5; got 0.125."),
    ],
)
def test_what_cannot_be_planted_is_refused(plan, sentence, tmp_path):
    with pytest.raises(BadOption) as refused:
        write_planted(tmp_path / "model", plan)
    assert sentence in str(refused.value)
    assert not (tmp_path / "model").exists()


def test_nothing_else_is_overwritten(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadOption, match="notes.txt' is a file; name a folder"):
        write_planted(tmp_path / "notes.txt", Planted())
    with pytest.raises(BadOption, match="holds something else; name a new or an empty folder"):
        write_planted(tmp_path, Planted())
    write_planted(tmp_path / "model", Planted())
    assert write_planted(tmp_path / "model", Planted(needed=2)).accuracy() == 0.9
