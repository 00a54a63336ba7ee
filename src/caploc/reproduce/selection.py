"""Which heads an exhibit is about: universal ones apart, and a benchmark's own without them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from caploc.heads import Head
from caploc.reproduce.laboratory import ScoredTask, Searched
from caploc.reproduce.preset import Benchmark, Preset, PresetModel
from caploc.stats.localization import HeadCost, Intact, Universality
from caploc.stats.localization import judge_universality as find_universal

TRIED = 100  # examples of each task of a benchmark that a candidate is tried on alone


class Lab(Protocol):
    """What exhibits need: a laboratory, or a reckoning of what one would measure.

    `struck` keeps each model's universal heads, by its label, once they are known. `draws` is the
    number of random sets of heads that chance is told from: 1 where no number will be read.
    """

    preset: Preset
    draws: int
    struck: dict[str, list[Head]]

    def score(
        self,
        model: PresetModel,
        benchmark: Benchmark,
        heads: Sequence[Head],
        limit: int | None = None,
    ) -> ScoredTask:
        """A benchmark with heads knocked out."""
        ...

    def failures(
        self, model: PresetModel, benchmark: Benchmark, heads: Sequence[Head]
    ) -> dict[str, Any]:
        """How the knocked-out model fails."""
        ...

    def search(self, model: PresetModel, benchmark: Benchmark, label: str) -> Searched:
        """What a search finds."""
        ...


def universal_candidates(lab: Lab, model: PresetModel) -> list[Head]:
    """Heads among the first found for benchmarks of at least two families, the most often first.

    Of equals the one comes first that was found first, in the order of the benchmarks.
    """
    preset = lab.preset
    kin: dict[Head, set[str]] = {}
    for benchmark in preset.localized:
        found = lab.search(model, benchmark, preset.main)
        for head in found.ranking[: preset.top]:
            kin.setdefault(head, set()).add(benchmark.kin)
    often = Counter({head: len(families) for head, families in kin.items() if len(families) > 1})
    return [head for head, _ in often.most_common()]


def universality(lab: Lab, model: PresetModel) -> Universality:
    """The candidates tried alone on every benchmark, and the verdict on each."""
    effects: dict[str, dict[Head, HeadCost]] = {}
    intact: dict[str, Intact] = {}
    heads = universal_candidates(lab, model)
    for benchmark in lab.preset.benchmarks:
        for head in heads:
            found = lab.score(model, benchmark, [head], limit=TRIED)
            if found.drop is None or found.drop_stderr is None or found.intact is None:
                continue
            whole = Intact(found.intact, found.intact_stderr or 0.0, found.chance)
            intact[benchmark.label] = whole
            effect = HeadCost(-found.drop, found.drop_stderr)
            effects.setdefault(benchmark.label, {})[head] = effect
    families = {benchmark.label: benchmark.kin for benchmark in lab.preset.benchmarks}
    return find_universal(effects, intact, families)


def universal_heads(lab: Lab, model: PresetModel) -> list[Head]:
    """The model's universal heads."""
    if model.label not in lab.struck:
        lab.struck[model.label] = model.grid.named_in(universality(lab, model).universal)
    return lab.struck[model.label]


def named_heads(
    lab: Lab, model: PresetModel, benchmark: Benchmark, label: str | None = None, count: int = 0
) -> list[Head]:
    """The first heads that a search finds for a benchmark, universal ones left out.

    `count` of them, or as many as the preset's `top`; by the main search, or the one labelled.
    """
    struck = universal_heads(lab, model)
    found = lab.search(model, benchmark, label or lab.preset.main)
    kept = [head for head in found.ranking if head not in struck]
    return kept[: count or lab.preset.top]


def idle(lab: Lab, model: PresetModel, benchmark: Benchmark, label: str) -> set[Head]:
    """Heads of a ranking for which the search saw no need: it would have named them otherwise."""
    wanted = lab.preset.search(label).top or lab.preset.top
    found = lab.search(model, benchmark, label)
    return set(found.ranking[found.chosen :]) if found.chosen < wanted else set()


def knowledge_heads(lab: Lab, model: PresetModel) -> list[Head]:
    """Heads among the first found for at least two subjects of knowledge, the most often first."""
    often = Counter(h for subject in lab.preset.subjects for h in named_heads(lab, model, subject))
    return [head for head, times in often.most_common() if times > 1]
