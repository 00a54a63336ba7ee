"""The model card: what was cut, what a run says for it, what not, and how it was checked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, StrictUndefined, Template

from caploc.contents import read_contents
from caploc.exhibits.markdown import escaped
from caploc.export.verification import LogitAgreement
from caploc.export.weights import AdapterSize
from caploc.finished import FinishedRun
from caploc.folder import ANSWERS, CURVE
from caploc.headfile import HeadFile
from caploc.heads import Head
from caploc.models.sources import ModelSource
from caploc.report.reading import Result, at, known, number_at, visible
from caploc.report.units import Unit, outcome_unit, significant, unit_of, unit_of_other

TEMPLATE = "card.md.jinja"
TAGS = ("caploc", "attention-heads", "ablation", "interpretability")
LICENCE_FIELDS = ("license", "license_name", "license_link")
RELATION = {"checkpoint": "finetune", "lora": "adapter"}
SCORES = ("name", "metric", "higher_is_better", "intact", "knocked_out", "change")


def evidence_of(run: FinishedRun, heads: Sequence[Head]) -> dict[str, Any]:
    """Collect what the run measured of this very set of heads; None for what it did not.

    Scores with heads knocked out are of the run's own set. Those of another set are there only
    where `caploc curve` measured it.
    """
    result, names = run.result, [str(head) for head in heads]
    own = set(names) == set(result["top"])
    validation = result["validation"]
    main, others = _scores(validation["task"]), at(validation, "other_tasks") or []
    if not own:
        main |= {"knocked_out": _on_curve(run, names), "change": None}
    keys = ("fresh", "examples", "intact", "knocked_out", "change")
    held_out = {key: at(validation, "held_out", key) for key in keys}
    return {
        "task": main,
        "examples_held_out": held_out if own and held_out["knocked_out"] is not None else None,
        "controls": at(validation, "controls") if own else None,
        "other_tasks": [_scores(other) for other in others] if own else None,
        "heads": [_row(result, name) for name in names],
        "run_named": list(result["top"]),
        "dtype": at(result, "model", "dtype"),
        "rows": at(result, "cost", "rows"),
        **{key: at(result, key) for key in ("method", "fit", "seed", "command", "versions")},
    }


def _scores(part: Any) -> dict[str, Any]:
    return {key: at(part, key) for key in SCORES}


def _row(result: Result, name: str) -> dict[str, Any]:
    keys = ("head", "effect", "low", "high", "q", "universal")
    row = next((row for row in result["heads"] if row["head"] == name), {"head": name})
    return {key: row.get(key) for key in keys}


def _on_curve(run: FinishedRun, names: Sequence[str]) -> Any:
    """Return the score with these heads knocked out, where `caploc curve` measured it."""
    if not (run.folder / CURVE).exists():
        return None
    curve = read_contents(run.folder / CURVE)
    points = curve["curves"].get(run.result["task"]["name"], [])
    same = set(curve["heads"][: len(names)]) == set(names)
    return points[len(names)] if same and len(points) > len(names) else None


def prompts_of(run: FinishedRun) -> list[str]:
    """List prompts of the run's task, to compare models on; none if the run kept no answers."""
    if not (run.folder / ANSWERS).exists():
        return []
    answers = read_contents(run.folder / ANSWERS)
    return [answer["prompt"] for answer in answers if answer.get("prompt")]


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
        main, others = unit_of(content.result), at(content.file.evidence, "other_tasks") or []
        units = {"main": main, "effects": outcome_unit(content.result)}
        units["others"] = [unit_of_other(other, main) for other in others]
    body = _template().render(
        story=content,
        evidence=content.file.evidence,
        units=units,
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
    """Numbers and their unit, which Markdown shows as they are."""

    __slots__ = ()


class _Code(str):
    """A line of a code block."""

    __slots__ = ()


def _measured(unit: Unit, part: Any) -> _Figure:
    """Write a score with its standard error and its number of examples, where it has them."""
    value, error = number_at(part, "score"), number_at(part, "stderr")
    text = unit.score(value)
    if value is not None and error is not None:
        text += f" ± {unit.error(error)}"
    examples = number_at(part, "examples")
    return _Figure(text if examples is None or value is None else f"{text} (of {examples:,.0f})")


def _interval(unit: Unit, part: Any) -> _Figure:
    """Write an effect with its interval."""
    effect, low, high = (known(at(part, name)) for name in ("effect", "low", "high"))
    text = unit.effect(effect)
    if low is None or high is None:
        return _Figure(text)
    return _Figure(f"{text} ({unit.bare_effect(low)} to {unit.bare_effect(high)})")


def _figure(unit: Unit, value: Any) -> _Figure:
    return _Figure(unit.score(known(value)))


def _code(command: Any) -> _Code:
    """Write a command on one line, set in: nothing in it can end the block."""
    return _Code(" ".join(visible(command or "not recorded").split()))


def _escaped(value: Any) -> Any:
    """Write a value as Markdown shows it: text is text, whatever is in it."""
    if isinstance(value, _Code):
        return f"    {value}"
    if isinstance(value, _Figure):
        return value
    if isinstance(value, float):
        return significant(value)
    return f"{value:,}" if isinstance(value, int) else escaped(str(value))


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
    made.globals |= {"measured": _measured, "interval": _interval, "figure": _figure, "code": _code}
    return made.from_string(files("caploc.export").joinpath(TEMPLATE).read_text(encoding="utf-8"))
