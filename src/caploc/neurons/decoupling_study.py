"""What do located neurons follow: the capability, the content, or the single item? The command."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from caploc.commonality import Contrast
from caploc.errors import BadOption
from caploc.exhibits import drawing
from caploc.exhibits.exhibit import Exhibit, Value
from caploc.exhibits.page import write_exhibits
from caploc.folder import DECOUPLING, LEDGER, claim, versions, write_json
from caploc.ledger import Ledger
from caploc.lookup import pick
from caploc.neurons.attribution import Attribution
from caploc.neurons.bench import NeuronBench
from caploc.neurons.decoupling import CONTRASTS, decouple, draw_contrasts
from caploc.neurons.exhibits.intervals import from_file, told
from caploc.neurons.items import Locator
from caploc.neurons.rule import Rule
from caploc.progress import Progress, Silent
from caploc.workbench import ModelOptions

Row = tuple[str | Value, ...]
ARMS = ("SS", "SC", "CD", "DD")
EFFECTS = ("commonality", "individual", "content")


@dataclass(frozen=True)
class DecouplingStudy:
    """Which contrasts of which model, and how the neurons of single items are located."""

    model: ModelOptions
    contrasts: str
    items: int = 1000
    attributions: tuple[Attribution, ...] = (Attribution(),)
    rule: Rule = field(default_factory=Rule)
    within: int | None = None
    seed: int = 0

    def check(self) -> "DecouplingStudy":
        """Refuse every mistake that can be seen before weights are loaded.

        Raises:
            UserError: in one sentence.
        """
        pick(CONTRASTS, self.contrasts, "set of contrasts")
        if self.items < 2:
            raise BadOption(f"--items must be 2 or more; got {self.items}.")
        for locator in self.locators:
            locator.check()
        names = list(map(str, self.locators))
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadOption(f"--method names the same locator twice ({twice[0]}); name each once.")
        self.model.check()
        return self

    @property
    def locators(self) -> list[Locator]:
        """The ways in which items are located."""
        return [Locator(asked, self.rule) for asked in self.attributions]


@contextmanager
def opened(
    study: DecouplingStudy, folder: Path, command: str
) -> Iterator[tuple[NeuronBench, Ledger]]:
    """A study's folder, claimed, its model and what was measured."""
    study.check()
    with claim(folder, asdict(study) | {"kind": "decoupling"}, command) as store:
        bench = NeuronBench.of(study.model.engine(), store, folder)
        yield bench, Ledger(folder / LEDGER)


def measure_decoupling(
    study: DecouplingStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> tuple[dict[str, Any], list[Exhibit]]:
    """Locate every item of the contrasts on its own; writes `decoupling.json`.

    Raises:
        UserError: for a mistake, before the model is loaded where possible.
        RunFailed: if the machine gives up; locators already done are kept.
    """
    with opened(study, folder, command) as (bench, ledger):
        contrasts = draw_contrasts(study.contrasts, study.items, seed=study.seed)
        found = {}
        for locator in study.locators:
            asked = {
                "study": asdict(study) | {"attributions": None},
                "locator": asdict(locator),
                "model": bench.neurons.fingerprint,
            }
            measure = partial(measured, study, bench, contrasts, locator, progress or Silent())
            found[str(locator)] = ledger.recall(asked, measure)
        result = {
            "schema": 1,
            "model": study.model.name,
            "contrasts": study.contrasts,
            "locators": found,
            "command": command,
            "versions": versions(),
        }
        write_json(folder / DECOUPLING, result)
    exhibits = shown(study.contrasts, found)
    title = f"Capability and content apart in {study.model.name}"
    write_exhibits(folder, title, headline(found), [], exhibits, command)
    return result, exhibits


def measured(
    study: DecouplingStudy,
    bench: NeuronBench,
    contrasts: Sequence[Contrast],
    locator: Locator,
    progress: Progress,
) -> dict[str, Any]:
    """One locator's part."""
    found = decouple(
        bench, contrasts, [locator], within=study.within, progress=progress, seed=study.seed
    )
    return found.as_dict()


def headline(found: dict[str, Any]) -> str:
    """The answer in a sentence."""
    name, first = next(iter(found.items()))
    effects = first["followed"][0]["effects"]
    return (
        f"Sets of single items ({name}): items of one capability are "
        f"{told(effects['commonality'])} more alike than others, rewordings of one item "
        f"{told(effects['individual'])} more than that"
    )


def shown(contrasts: str, found: dict[str, Any]) -> list[Exhibit]:
    """The exhibits of a decoupling."""
    rows: list[Row] = []
    for name, each in found.items():
        followed = each["followed"][0]
        effects = followed["effects"]
        rows.append(
            (
                name,
                f"{each['right']} of {each['contrasts']}",
                Value(followed["sizes"]["mean"], digits=1),
                *(told(effects["similarity"][arm]) for arm in ARMS),
                *(told(effects[effect]) for effect in EFFECTS),
                told(followed["beyond_answer"]),
            )
        )
    columns = (
        "locator; items used; neurons an item; reworded (SS); same capability (SC); same content "
        "(CD); neither (DD); commonality effect; individual effect; content effect; rewording "
        "beyond the answer"
    )
    names = list(found)
    return [
        Exhibit(
            f"decoupling-{contrasts.replace('/', '-')}",
            f"Capability and content apart: {contrasts}",
            tuple(columns.split("; ")),
            rows,
            [
                "Mean IoU of an item's neurons with its partner's; only contrasts of which the "
                "model answers all five items rightly. Commonality is SC less DD, individual SS "
                "less SC, content CD less DD, with paired 95 % intervals over items. A rewording "
                "keeps the answer and other content does not, so the last column compares it with "
                "another item of the same answer. The design is ours: the paper's is not known to "
                "us."
            ],
            partial(
                drawing.points,
                names,
                {
                    effect: [
                        from_file(each["followed"][0]["effects"][effect]) for each in found.values()
                    ]
                    for effect in EFFECTS
                },
                label="effect on IoU",
            ),
        ),
        groups(contrasts, found),
    ]


def groups(contrasts: str, found: dict[str, Any]) -> Exhibit:
    """What the sets of many items of one capability have in common, and of all mixed."""
    rows: list[Row] = []
    for name, each in found.items():
        for group, told_ in each["followed"][0]["groups"].items():
            votes = {f"{vote['least']:g}": vote["count"] for vote in told_["votes"]}
            rows.append(
                (
                    f"{name}, {group}",
                    str(told_["sets"]),
                    str(told_["in_any"]),
                    Value(told_["iou"]),
                    Value(told_["pairwise"]["iou"]),
                    *(str(votes[share]) for share in ("0.1", "0.5", "0.9")),
                )
            )
    return Exhibit(
        f"groups-{contrasts.replace('/', '-')}",
        f"What many items' neurons have in common: {contrasts}",
        (
            "locator, items",
            "items",
            "neurons in any",
            "IoU of all",
            "mean pairwise IoU",
            "in 10 % of items",
            "in 50 %",
            "in 90 %",
        ),
        rows,
        ["The IoU of all items' sets shrinks with their number; the vote counts do not."],
    )
