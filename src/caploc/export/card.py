"""The model card: what was cut, what a run says for it, what not, and how it was checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, StrictUndefined, Template

from caploc.contents import Answers, read_file
from caploc.export.weights import AdapterSize, LogitAgreement
from caploc.finished import FinishedRun
from caploc.folder import ANSWERS
from caploc.heads import Head, HeadFile
from caploc.models.sources import ModelSource
from caploc.naming import PRETRAINED
from caploc.report.exhibits import escape_markdown
from caploc.report.method import split_rows
from caploc.report.page import curve_of
from caploc.report.sentence import headline, second_sentence
from caploc.report.wording import (
    Unit,
    called,
    outcome_unit,
    significant,
    unit_of,
    unit_of_other,
    visible,
)
from caploc.result import Effect, Record, Result, Score

TEMPLATE = "card.md.jinja"
TAGS = ("caploc", "attention-heads", "ablation", "interpretability")
LICENCE_FIELDS = ("license", "license_name", "license_link")
RELATION = {"checkpoint": "finetune", "lora": "adapter"}
SCORES = ("name", "metric", "higher_is_better", "intact", "knocked_out", "change")
HELD_OUT = ("fresh", "examples", "intact", "knocked_out", "change")
EFFECT = ("head", "effect", "low", "high", "q", "universal")


def evidence_of(run: FinishedRun, heads: Sequence[Head]) -> dict[str, Any]:
    """Collect what the run measured of this very set of heads; None for what it did not.

    Scores with heads knocked out are of the run's own set. Those of another set are there only
    where `caploc curve` measured it.
    """
    result, names = run.result, [str(head) for head in heads]
    own = set(names) == set(result.top)
    validation, held_out = result.validation, result.validation.held_out
    main = validation.task
    if not own:
        main = main.model_copy(update={"knocked_out": _on_curve(run, names), "change": None})
    if not own or (held_out and held_out.knocked_out is None):
        held_out = None
    by_name = result.by_name()
    checked = _alone_in_check(result) if own else {}
    sets = validation.frontier.sets if validation.frontier else []
    judged = next((each for each in sets if set(each.heads) == set(names)), None)
    others = [_fields(other, (*SCORES, "twin")) for other in validation.other_tasks]
    return {
        "task": _fields(main, SCORES),
        "examples_held_out": _fields(held_out, HELD_OUT) if held_out else None,
        "controls": validation.controls.as_dict() if own and validation.controls else None,
        "other_tasks": others if own else None,
        "frontier": judged.as_dict() if judged else None,
        "heads": [
            {**_fields(by_name.get(name), EFFECT), **checked.get(name, {}), "head": name}
            for name in names
        ],
        "heads_checked": set(names) <= checked.keys(),
        "headline": f"{headline(result)} {second_sentence(result)}" if own else None,
        "run_named": result.top,
        "dtype": result.model.dtype,
        "rows": counts[0] if (counts := split_rows(result)) else result.cost.rows,
        "method": result.method.as_dict(),
        "fit": result.fit.as_dict(),
        "seed": result.seed,
        "command": result.command,
        "versions": result.versions,
    }


def _alone_in_check(result: Result) -> dict[str, dict[str, Any]]:
    """Return what the check has each named head do alone; a single one is what it knocked out."""
    members, held_out = result.validation.members, result.validation.held_out
    if members:
        return {one.head: one.alone.as_dict() for one in members.heads}
    if len(result.top) == 1 and held_out and held_out.change:
        change = held_out.change
        return {result.top[0]: {"effect": change.outcome, "low": change.low, "high": change.high}}
    return {}


def _fields(part: Record | None, names: Sequence[str]) -> dict[str, Any]:
    """Return some fields of a part as files hold them, None for those that are not there."""
    written = part.as_dict() if part else {}
    return {name: written.get(name) for name in names}


def _on_curve(run: FinishedRun, names: Sequence[str]) -> Score | None:
    """Return the score with these heads knocked out, where `caploc curve` measured it."""
    curve = curve_of(run.folder)
    if curve is None:
        return None
    points = curve.curves.get(run.result.task.name, [])
    same = set(curve.heads[: len(names)]) == set(names)
    return points[len(names)] if same and len(points) > len(names) else None


def prompts_of(run: FinishedRun) -> list[str]:
    """List prompts of the run's task, to compare models on; none if the run kept no answers."""
    if not (run.folder / ANSWERS).exists():
        return []
    answers = read_file(run.folder / ANSWERS, Answers).root
    return [answer.prompt for answer in answers if answer.prompt]


def read_licence(text: str) -> dict[str, str]:
    """Read what a model card says of the licence; empty if it says nothing that can be read."""
    try:
        card: Any = ModelCard(text, ignore_metadata_errors=True)
        data = card.data.to_dict()
    except Exception:  # noqa: BLE001  # a stranger's YAML fails in any way it likes
        return {}
    return {key: data[key] for key in LICENCE_FIELDS if isinstance(data.get(key), str)}


@dataclass(frozen=True)
class CardContent:
    """Everything that a card tells."""

    kind: str
    title: str
    source: ModelSource
    file: HeadFile
    result: Result | None  # the run's, None where heads were named by hand
    licence: dict[str, str]  # as the base model's card states it
    agreements: Sequence[LogitAgreement]
    prompts: int  # of the run's task, among what was compared
    rewritten: Sequence[str]  # weight files that differ from the base model's
    size: AdapterSize | None
    command: str


def write_card(content: CardContent) -> str:
    """Write the text of README.md: metadata for the Hub, then the card."""
    units: dict[str, Any] = {}
    if content.result is not None:  # the effects may be of another signal than the scores
        main, others = unit_of(content.result), content.result.validation.other_tasks
        units = {"main": main, "effects": outcome_unit(content.result)}
        units["others"] = [unit_of_other(other, main) for other in others]
    body = _template().render(
        story=content,
        evidence=content.file.evidence,
        units=units,
        fetched=PRETRAINED.get(content.source.name),  # a model that caploc has a short name for
        licence=content.licence.get("license_name") or content.licence.get("license"),
    )
    tidy = re.sub(r"\n{3,}", "\n\n", body.strip())
    on_hub = content.source.commit is not None
    licence: dict[str, Any] = {**content.licence}
    metadata = ModelCardData(
        library_name={"checkpoint": "transformers", "lora": "peft"}.get(content.kind, "caploc"),
        pipeline_tag="text-generation",
        tags=[*TAGS],
        # the Hub refuses the name of a folder
        base_model=content.source.name if on_hub else None,
        base_model_relation=RELATION.get(content.kind) if on_hub else None,
        **licence,
    )
    return f"---\n{str(metadata.to_yaml()).strip()}\n---\n\n{tidy}\n"


class _Figure(str):
    """Numbers and their unit, or a line of code, which Markdown shows as they are."""

    __slots__ = ()


def _measured(unit: Unit, part: Mapping[str, Any] | None) -> _Figure:
    found = Score.model_validate(part or {})
    text = unit.score(found.score)
    if found.score is not None and found.stderr:  # 0 where all are alike, which is no error
        text += f" ± {unit.error(found.stderr)}"
    alone = found.examples is None or found.score is None
    return _Figure(text if alone else f"{text} (of {found.examples:,})")


def _interval(unit: Unit, part: Mapping[str, Any]) -> _Figure:
    effect = Effect(effect=part["effect"], low=part["low"], high=part["high"])
    text, ends = unit.effect(effect.effect), unit.interval(effect)
    return _Figure(f"{text} ({ends})" if ends else text)


def _code(command: Any) -> _Figure:
    """Write a command on one line, set in: nothing in it can end the block."""
    return _Figure("    " + " ".join(visible(command or "not recorded").split()))


def _escaped(value: Any) -> Any:
    """Write a value as Markdown shows it: text is text, whatever is in it."""
    if isinstance(value, _Figure):
        return value
    if isinstance(value, float):
        return significant(value)
    return f"{value:,}" if isinstance(value, int) else escape_markdown(str(value))


@cache
def _template() -> Template:
    """Load the card's template, in which every value is escaped on its way out."""
    made = Environment(
        autoescape=False,  # the card is Markdown: `_escaped` does what is needed there
        finalize=_escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"measured": _measured, "interval": _interval, "code": _code}
    made.filters["called"] = called
    made.globals["figure"] = lambda unit, value: _Figure(unit.score(value))
    return made.from_string(files("caploc.export").joinpath(TEMPLATE).read_text(encoding="utf-8"))
