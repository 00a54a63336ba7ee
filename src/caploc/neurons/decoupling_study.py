"""What do located neurons follow: the capability, the content, or the single item? The command."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from caploc.commonality import ARMS, Contrast
from caploc.errors import BadOption
from caploc.exhibits import drawing
from caploc.exhibits.exhibit import Exhibit, Value
from caploc.folder import DECOUPLING, LEDGER, claim
from caploc.ledger import Ledger
from caploc.lookup import pick
from caploc.neurons.attribution import Attribution
from caploc.neurons.cells import Row, bounds, ranged
from caploc.neurons.decoupling import CONTRASTS, ITEMS, ItemLocator, decouple, draw_contrasts
from caploc.neurons.scores import Rule
from caploc.neurons.study import Finding, NeuronBench, Reported, run_command
from caploc.progress import Progress
from caploc.workbench import ModelOptions

EFFECTS = ("commonality", "individual", "content")


@dataclass(frozen=True)
class DecouplingStudy:
    """Which contrasts of which model, and how the neurons of single items are located."""

    model: ModelOptions
    contrasts: str
    items: int = ITEMS
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
    def locators(self) -> list[ItemLocator]:
        return [ItemLocator(asked, self.rule) for asked in self.attributions]


@contextmanager
def open_decoupling(study: DecouplingStudy, folder: Path, command: str) -> Iterator[NeuronBench]:
    """Claim a study's folder and load its model."""
    study.check()
    with claim(folder, asdict(study) | {"kind": "decoupling"}, command) as store:
        yield NeuronBench.of(study.model.engine(), store, folder)


def measure_decoupling(
    study: DecouplingStudy, folder: Path, progress: Progress | None = None, *, command: str = ""
) -> Reported:
    """Locate every item of the contrasts on its own; writes `decoupling.json`."""

    def find(bench: NeuronBench) -> Finding:
        ledger = Ledger(folder / LEDGER)
        contrasts = draw_contrasts(study.contrasts, study.items, seed=study.seed)
        found = {}
        for locator in study.locators:
            asked = {
                "study": asdict(study) | {"attributions": None},
                "locator": asdict(locator),
                "model": bench.neurons.fingerprint,
            }
            measure = partial(_measure, study, bench, contrasts, locator, progress)
            found[str(locator)] = ledger.recall(asked, measure)
        results = {
            "model": study.model.name,
            "contrasts": study.contrasts,
            "locators": found,
        }
        title = f"Capability and content apart in {study.model.name}"
        shown = [effects_exhibit(study.contrasts, found), groups_exhibit(study.contrasts, found)]
        return Finding(DECOUPLING, results, title, headline(found), shown)

    return run_command(open_decoupling(study, folder, command), find, folder, command)


def _measure(
    study: DecouplingStudy,
    bench: NeuronBench,
    contrasts: Sequence[Contrast],
    locator: ItemLocator,
    progress: Progress | None,
) -> dict[str, Any]:
    """Measure one locator's part."""
    ways, within, seed = [locator], study.within, study.seed
    return decouple(bench, contrasts, ways, within=within, progress=progress, seed=seed).as_dict()


def headline(found: dict[str, Any]) -> str:
    """Say the answer in a sentence."""
    name, first = next(iter(found.items()))
    effects = first["followed"][0]["effects"]
    return (
        f"Sets of single items ({name}): items of one capability are "
        f"{ranged(effects['commonality'])} more alike than others, rewordings of one item "
        f"{ranged(effects['individual'])} more than that"
    )


def effects_exhibit(contrasts: str, found: dict[str, Any]) -> Exhibit:
    """Show how alike an item's neurons are to its partners', and the effects."""
    followed = {name: each["followed"][0] for name, each in found.items()}
    rows: list[Row] = [
        (
            name,
            f"{found[name]['right']} of {found[name]['contrasts']}",
            Value(each["sizes"]["mean"], digits=1),
            *(ranged(each["effects"]["similarity"][arm]) for arm in ARMS),
            *(ranged(each["effects"][effect]) for effect in EFFECTS),
            ranged(each["beyond_answer"]),
        )
        for name, each in followed.items()
    ]
    columns = (
        "locator; items used; neurons an item; reworded (SS); same capability (SC); same content "
        "(CD); neither (DD); commonality effect; individual effect; content effect; rewording "
        "beyond the answer"
    )
    return Exhibit(
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
            list(found),
            {e: [bounds(each["effects"][e]) for each in followed.values()] for e in EFFECTS},
            label="effect on IoU",
        ),
    )


def groups_exhibit(contrasts: str, found: dict[str, Any]) -> Exhibit:
    """Show what the sets of many items of one capability have in common, and of all mixed."""
    rows: list[Row] = []
    for name, each in found.items():
        for group, told in each["followed"][0]["groups"].items():
            votes = {f"{vote['least']:g}": vote["count"] for vote in told["votes"]}
            rows.append(
                (
                    f"{name}, {group}",
                    str(told["sets"]),
                    str(told["in_any"]),
                    Value(told["iou"]),
                    Value(told["pairwise"]["iou"]),
                    *(str(votes[share]) for share in ("0.1", "0.5", "0.9")),
                )
            )
    columns = (
        "locator, items; items; neurons in any; IoU of all; mean pairwise IoU; in 10 % of items; "
        "in 50 %; in 90 %"
    )
    return Exhibit(
        f"groups-{contrasts.replace('/', '-')}",
        f"What many items' neurons have in common: {contrasts}",
        tuple(columns.split("; ")),
        rows,
        ["The IoU of all items' sets shrinks with their number; the vote counts do not."],
    )
