"""The model card: what was cut, what speaks for it, what does not, how it was checked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, StrictUndefined, Template

from caploc.exhibits.markdown import escaped
from caploc.export.adapter import Size
from caploc.export.verification import Agreement
from caploc.headfile import HeadFile
from caploc.models.sources import Source
from caploc.report.reading import Result, at, known, number_at, visible
from caploc.report.units import Unit, outcome_unit, significant, unit_of, unit_of_other

TEMPLATE = "card.md.jinja"
TAGS = ("caploc", "attention-heads", "ablation", "interpretability")
LICENCE_FIELDS = ("license", "license_name", "license_link")
RELATION = {"checkpoint": "finetune", "lora": "adapter"}


@dataclass(frozen=True)
class Story:
    """Everything that a card tells."""

    kind: str
    title: str
    source: Source
    file: HeadFile
    result: Result | None  # the run's, None where heads were named by hand
    licence: dict[str, str]  # as the base model's card states it
    agreements: Sequence[Agreement]
    prompts: int  # of the run's task, among what was compared
    rewritten: Sequence[str]  # weight files that differ from the base model's
    size: Size | None
    command: str


class Figure(str):
    """Numbers and their unit, which Markdown shows as they are."""

    __slots__ = ()


class Code(str):
    """A line of a code block."""

    __slots__ = ()


def write_card(story: Story) -> str:
    """The text of README.md: metadata for the Hub, then the card."""
    body = template().render(
        story=story,
        evidence=story.file.evidence,
        units=units(story),
        licence=story.licence.get("license_name") or story.licence.get("license"),
    )
    tidy = re.sub(r"\n{3,}", "\n\n", body.strip())
    return f"---\n{metadata(story)}\n---\n\n{tidy}\n"


def metadata(story: Story) -> str:
    """The card's YAML."""
    on_hub = story.source.commit is not None
    licence: dict[str, Any] = {**story.licence}
    data = ModelCardData(
        library_name={"checkpoint": "transformers", "lora": "peft"}.get(story.kind, "caploc"),
        pipeline_tag="text-generation",
        tags=[*TAGS],
        # the Hub refuses the name of a folder
        base_model=story.source.name if on_hub else None,
        base_model_relation=RELATION.get(story.kind) if on_hub else None,
        **licence,
    )
    return str(data.to_yaml()).strip()


def licence_of(text: str) -> dict[str, str]:
    """What a model card says of the licence; empty if it says nothing that can be read."""
    try:
        card: Any = ModelCard(text, ignore_metadata_errors=True)
        data = card.data.to_dict()
    except Exception:  # noqa: BLE001  # a stranger's YAML fails in any way it likes
        return {}
    return {key: data[key] for key in LICENCE_FIELDS if isinstance(data.get(key), str)}


def units(story: Story) -> dict[str, Any]:
    """How the run's scores are written, and the effects, which may be of another signal."""
    if story.result is None:
        return {}
    main = unit_of(story.result)
    return {
        "main": main,
        "effects": outcome_unit(story.result),
        "others": [unit_of_other(o, main) for o in others(story)],
    }


def others(story: Story) -> list[Any]:
    """Scores of the tasks beside the run's own."""
    return at(story.file.evidence, "other_tasks") or []


def measured(unit: Unit, part: Any) -> Figure:
    """A score with its standard error and its number of examples, where it has them."""
    value, error = number_at(part, "score"), number_at(part, "stderr")
    text = unit.score(value)
    if value is not None and error is not None:
        text += f" ± {unit.error(error)}"
    examples = number_at(part, "examples")
    return Figure(text if examples is None or value is None else f"{text} (of {examples:,.0f})")


def interval(unit: Unit, part: Any) -> Figure:
    """An effect with its interval."""
    effect = known(at(part, "effect"))
    low, high = known(at(part, "low")), known(at(part, "high"))
    text = unit.effect(effect)
    if low is None or high is None:
        return Figure(text)
    return Figure(f"{text} ({unit.bare_effect(low)} to {unit.bare_effect(high)})")


def figure(unit: Unit, value: Any) -> Figure:
    """A score without its error."""
    return Figure(unit.score(known(value)))


def code(command: Any) -> Code:
    """A command on one line, set in: nothing in it can end the block."""
    return Code(" ".join(visible(command or "not recorded").split()))


def shown(value: Any) -> Any:
    """A value as Markdown shows it: text is text, whatever is in it."""
    if isinstance(value, Code):
        return f"    {value}"
    if isinstance(value, Figure):
        return value
    if isinstance(value, float):
        return significant(value)
    return f"{value:,}" if isinstance(value, int) else escaped(str(value))


@cache
def template() -> Template:
    """The card's template, in which every value is escaped on its way out."""
    made = Environment(
        autoescape=False,  # the card is Markdown: `shown` does what is needed there
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"measured": measured, "interval": interval, "figure": figure, "code": code}
    return made.from_string(files("caploc.export").joinpath(TEMPLATE).read_text(encoding="utf-8"))
