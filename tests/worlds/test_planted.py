import json
from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest
import torch

from caploc.models.cutting import knocked_out
from caploc.models.loading import load_model
from worlds.planted import Planted, write_planted

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
def test_only_needed_and_universal_heads_change_an_outcome_alone(written, plan):
    model = written(plan)
    intact, truth = model.right(), model.truth
    effects = {head: (model.right([head]) ^ intact).mean() for head in model.loaded.grid.components}
    assert intact.mean() == 0.9
    changed = {head: effect for head, effect in effects.items() if effect}
    assert changed == pytest.approx(truth.needed | dict.fromkeys(truth.universal, 0.9))
    assert all(0.08 <= cost <= 0.3 for cost in truth.needed.values())


@pytest.mark.parametrize("plan", [FULL, Planted(needed=6, backups=1, rescuers=2, common=2)])
def test_the_truth_says_every_outcome_under_random_masks(written, plan):
    model, random = written(plan), np.random.default_rng(0)
    harmless = [head for head in model.loaded.grid.components if head not in model.truth.universal]
    seen = set()
    for _ in range(40):
        cut = [head for head in harmless if random.random() < 0.15]
        right = model.right(cut)
        assert np.array_equal(right, model.truth.right(cut))
        assert model.truth.accuracy(map(str, cut)) == right.mean()
        seen.add(right.mean())
    assert len(seen) > 10


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


def test_a_seed_gives_the_same_model_and_another_seed_another(tmp_path):
    write_planted(tmp_path / "a", FULL)
    write_planted(tmp_path / "b", FULL)
    write_planted(tmp_path / "c", replace(FULL, seed=FULL.seed + 1))
    for file in ("model.safetensors", "config.json", "tokenizer.json", "planted.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    other = (tmp_path / "c" / "model.safetensors").read_bytes()
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != other
