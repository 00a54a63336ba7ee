"""The model card: what was cut, what a run says for it, what not, and how it was checked."""

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, StrictUndefined

from caploc.components import HeadFile
from caploc.contents import Answers, read_file
from caploc.export.weights import LogitAgreement
from caploc.finished import FinishedRun
from caploc.folder import ANSWERS
from caploc.models.sources import ModelSource
from caploc.report.card import escape_markdown, write_markdown
from caploc.result import Result
from caploc.verdict import make_card
from caploc.wording import called, significant, visible

LICENCE_FIELDS = ("license", "license_name", "license_link")


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
    source: ModelSource
    file: HeadFile
    result: Result | None  # the run's, None where heads were named by hand
    licence: dict[str, str]  # as the base model's card states it
    agreement: LogitAgreement | None
    command: str


def write_card(content: CardContent) -> str:
    """Write the text of README.md: metadata for the Hub, then the card."""
    told: dict[str, Any] = {"content": content, "result": content.result}
    if (result := content.result) is not None:
        named = content.file.grid.named_in(result.top)  # a group or a layer is its heads
        told["own"] = set(content.file.heads) == set(named)
        told["card"] = _Markdown(write_markdown(make_card(result)))
    made = Environment(
        autoescape=False,  # the card is Markdown: `_escaped` does what is needed there
        finalize=_escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["code"] = _code
    made.filters["called"] = called
    template = files("caploc.export").joinpath("card.md.jinja").read_text(encoding="utf-8")
    body = re.sub(r"\n{3,}", "\n\n", made.from_string(template).render(told).strip())
    on_hub, checkpoint = content.source.commit is not None, content.kind == "checkpoint"
    licence: dict[str, Any] = {**content.licence}
    metadata = ModelCardData(
        library_name="transformers" if checkpoint else "caploc",
        pipeline_tag="text-generation",
        tags=["caploc", "attention-heads", "ablation", "interpretability"],
        # the Hub refuses the name of a folder
        base_model=content.source.name if on_hub else None,
        base_model_relation="finetune" if on_hub and checkpoint else None,
        **licence,
    )
    return f"---\n{str(metadata.to_yaml()).strip()}\n---\n\n{body}\n"


class _Markdown(str):
    """Numbers and their unit, or a line of code, which Markdown shows as they are."""

    __slots__ = ()


def _code(command: str | None) -> _Markdown:
    """Write a command on one line, set in: nothing in it can end the block."""
    return _Markdown("    " + " ".join(visible(command or "not recorded").split()))


def _escaped(value: Any) -> Any:
    """Write a value as Markdown shows it: text is text, whatever is in it."""
    if isinstance(value, _Markdown):
        return value
    if isinstance(value, float):
        return significant(value)
    return f"{value:,}" if isinstance(value, int) else escape_markdown(str(value))
