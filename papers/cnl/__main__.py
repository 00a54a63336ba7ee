"""The experiments of CNL, one after another, into one folder: `python -m papers.cnl fidelity`.

Numbers go to `numbers.json`; tables are made of them. What was measured is not measured again.
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, get_args

from caploc import console
from caploc.errors import BadOption, CaplocError
from caploc.folder import LEDGER, package_versions, read_json, write_json
from caploc.models.loading import LoadedModel, load_model
from caploc.naming import placed
from caploc.neurons.enhancing import enhance_located
from caploc.neurons.finding import score_cache
from caploc.neurons.ledger import Cache
from caploc.neurons.locating import locate
from caploc.neurons.model import NeuronModel, as_neurons
from caploc.neurons.options import Attribution, NeuronStudy
from caploc.neurons.stats import plain_value
from caploc.neurons.study import load_source, open_study
from caploc.options import TaskOptions
from caploc.result import SCHEMA
from papers.cnl.erasing import erase_equal
from papers.cnl.fact_study import FactStudy
from papers.cnl.facts import Fact, read_facts
from papers.cnl.preset import CnlPreset, Step
from papers.cnl.tables import list_tables
from papers.cnl.yardstick import (
    ALONE,
    SHOTS,
    Asked,
    Comparison,
    PromptScorer,
    compare_all,
    compare_facts,
    compare_tasks,
    compare_texts,
    examples_of,
)
from papers.exhibits import Exhibit, write_all

NUMBERS = "numbers.json"
WORDS = (
    "Of the paper only the figures in docs/cnl.md are known to us, and none of its tables; what "
    "stands here is measured, by recipes that are ours where none is published, and reproduces no "
    "number of the paper. Brackets are 95 % intervals. A dash is something that was not measured, "
    "or is not defined."
)


class Experiments:
    """A preset, the folder it fills, and the numbers found so far.

    Raises UserError for a mistake, before a model is loaded where possible.
    """

    def __init__(
        self, preset: CnlPreset, folder: Path, command: str = "", *, quiet: bool = True
    ) -> None:
        self.preset, self.folder, self.command, self.quiet = preset, folder, command, quiet
        preset.check()
        for name in preset.facts.sets:
            read_facts(name)
        own = preset.model_dump(mode="json", exclude={"steps"})
        self.numbers: dict[str, Any] = {"preset": own}
        if (folder / NUMBERS).exists():
            self.numbers = read_json(folder / NUMBERS)
            if self.numbers["preset"] != own:
                raise BadOption(f"{folder} holds another preset's numbers; choose another --out.")

    def run(self, steps: Sequence[Step]) -> list[Exhibit]:
        """Measure, and write every table after each step; those of all steps so far."""
        shown: list[Exhibit] = []
        for step in steps:
            if step in ("erased", "tuned") and "main" not in self.numbers:
                self.located()
            getattr(self, step)()
            shown = self.write()
        return shown

    def write(self) -> list[Exhibit]:
        """Write the numbers, and a page of what they say."""
        self.numbers = plain_value(self.numbers)
        told = {"command": self.command, "versions": package_versions()}
        write_json(self.folder / NUMBERS, {"schema": SCHEMA, **self.numbers, **told})
        exhibits = list_tables(self.numbers)
        write_all(exhibits, self.folder, self.preset.about, f"    {self.command}\n\n{WORDS}")
        return exhibits

    @property
    def place(self) -> Path:
        """Where the sets lie that are erased and tuned."""
        return self.folder / ("neurons-sigma" if self.preset.share is None else "neurons")

    def measure(self, command: Callable[..., Any], *asked: Any) -> Any:
        """Run a command on neurons, which writes a page of its own into its folder."""
        with console.progress(self.quiet) as progress:
            return command(*asked, progress, command=self.command)[0]

    def locate(self, study: NeuronStudy, place: Path) -> Any:
        kinds = {task: kind for task, kind in self.preset.kinds.items() if task in study.tasks}
        return self.measure(partial(locate, kinds=kinds), study, place).as_dict()

    def located(self) -> None:
        """Neurons by the paper's threshold and by an equal share (rows 11 to 15 and 21)."""
        sigma = self.folder / "neurons-sigma"
        self.numbers["main"] = self.locate(self.preset.study(None), sigma)
        if self.preset.share is not None:  # the scores are the same whatever the rule
            scores = (score_cache(folder).folder for folder in (sigma, self.place))
            shutil.copytree(*scores, dirs_exist_ok=True)
            study = self.preset.study(self.preset.share)
            self.numbers["main"] = self.locate(study, self.place)

    def erased(self) -> None:
        """Erasure, each task's neurons on every task (17, 18)."""
        study = self.preset.study(self.preset.share)
        with open_study(study, self.place, None, self.command) as session:
            self.numbers["erasure"] = erase_equal(session, self.preset.cuts(), self.preset.kinds)

    def tuned(self) -> None:
        """Enhancement (16)."""
        preset, place = self.preset, self.place
        if preset.fewshot is not None:
            place = self.folder / "neurons-start"
            self.locate(preset.start, place)
        found: dict[str, Any] = {}
        for seed in preset.seeds:  # each takes minutes to hours
            tuned = self.measure(enhance_located, place, preset.enhancing(seed))
            found[str(seed)] = tuned.as_dict()["tasks"]
            self.numbers["enhancement"] = found
            self.write()

    @cached_property
    def loaded(self) -> LoadedModel:
        return load_model(**self.preset.options.loading())

    @cached_property
    def neurons(self) -> NeuronModel:
        return as_neurons(self.loaded)

    @cached_property
    def cache(self) -> Cache:
        self.folder.mkdir(parents=True, exist_ok=True)
        return Cache(self.folder / LEDGER)

    def recall(self, what: str, measure: Callable[[], Any]) -> Any:
        """Return what was measured before of this model under this name, or measure it."""
        asked = {"what": what, "model": self.loaded.fingerprint, "seed": self.preset.seed}
        return self.cache.recall(asked, lambda: plain_value(measure()))

    def compared(self) -> None:
        """Facts and capabilities by one score, rule, number of prompts and words (9, 10, 13)."""
        asked, place = self.preset.yardstick, self.folder / "prompts"
        gradient = PromptScorer(self.neurons, place, Attribution("gradient"))
        integrated = replace(gradient, attribution=Attribution("integrated", steps=asked.steps))
        everything = [*compare_facts(self.facts, asked.contexts, asked.drawn),
                      *self.compare_tasks(asked.size)]  # fmt: skip
        shown = [each for each in everything
                 if each[0]["of"] == "tasks" and each[0]["demonstrations"] != ALONE]  # fmt: skip
        found = self.numbers.setdefault("yardstick", {})
        found["gradient"] = compare_all(gradient, everything)
        found["gradient, of the question"] = compare_all(replace(gradient, question=True), shown)
        self.write()  # integrated gradients take as long again
        facts = [
            replace(fact, rewrites=fact.rewrites[:1])
            for relation in dict.fromkeys(fact.relation for fact in self.facts)
            for fact in [f for f in self.facts if f.relation == relation][: asked.few]
        ]
        few = [*compare_facts(facts, 1, 0), *self.compare_tasks(asked.few)]
        alone = [each for each in few if each[0]["demonstrations"] == ALONE]
        self.numbers["yardstick"]["integrated"] = compare_all(integrated, alone)

    @cached_property
    def facts(self) -> list[Fact]:
        """The facts of all sets that the model knows and says rightly in two ways or more."""
        asked = self.preset.facts, self.preset.seed, self.recall
        studies = (FactStudy(self.loaded, self.neurons, n, *asked) for n in self.preset.facts.sets)
        return [fact for study in studies for fact in study.known[0] if fact.rewrites]

    def compare_tasks(self, size: int) -> Iterator[Comparison]:
        """Compare so many examples a side of each task of two wordings, and ordinary text."""
        preset, words = self.preset, dict[str, list[list[Asked]]]()
        for task, kind in preset.kinds.items():
            options, needed = TaskOptions(fewshot=0, data=preset.data), 2 * (size + SHOTS)
            source = load_source(preset.options, task, options, needed, preset.seed)
            words.setdefault(kind, []).append(examples_of(source, kind))
        tasks = {kind: own[:2] for kind, own in words.items() if own[1:]}
        yield from compare_tasks(tasks, size)
        yield from compare_texts([each for own, _ in tasks.values() for each in own[:size]], size)

    def fidelity(self) -> None:
        """Is a fact located alike however it is worded (1 to 5)?"""
        self.ask_facts("fidelity")

    def reliability(self) -> None:
        """Does changing what was located change the fact, and it alone (6 to 8)?"""
        self.ask_facts("reliability")

    def ask_facts(self, question: str) -> None:
        for name in self.preset.facts.sets:
            asked = self.preset.facts, self.preset.seed, self.recall
            study = FactStudy(self.loaded, self.neurons, name, *asked)
            self.numbers.setdefault(question, {})[Path(name).stem] = study.measure(question)
            self.write()  # each takes half an hour


def main(arguments: Sequence[str]) -> None:
    """Run what is asked for into a folder."""
    parser = argparse.ArgumentParser("python -m papers.cnl", description=__doc__)
    parser.add_argument("steps", nargs="+", choices=["all", *get_args(Step)], metavar="STEP",
                        help=f"all of the preset, or {', '.join(get_args(Step))}")  # fmt: skip
    parser.add_argument("--preset", default="real", help="real, paper, or a TOML file like them")
    parser.add_argument("--model", help="in place of the preset's")
    parser.add_argument("--out", type=Path, help="folder; resumes what lies there")
    parser.add_argument("--quiet", action="store_true")
    asked = parser.parse_args(arguments)
    preset, name = CnlPreset.read(asked.preset), f"cnl-{Path(asked.preset).stem}"
    if asked.model:
        preset = preset.model_copy(update={"model": placed(asked.model)})
        name = f"{name}-{Path(asked.model).name}"
    folder, command = asked.out or Path("runs") / name, ["python", "-m", "papers.cnl", *arguments]
    experiments = Experiments(preset, folder, shlex.join(command), quiet=asked.quiet)
    experiments.run(preset.steps if "all" in asked.steps else asked.steps)
    console.say(f"Written: {folder / 'index.md'}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CaplocError as error:
        sys.exit(str(error))
