"""Same-meaning prompts from a file, as a language model or a person writes them, and their filter.

A line of the file is `{"fact": "17", "prompts": ["...", "..."]}`; `fact` is the fact's name. That a
prompt means the same cannot be seen by a program; what can is checked here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from caploc.commonality.result import Result
from caploc.errors import BadData
from caploc.neurons.facts.facts import Fact, Prompt
from caploc.neurons.facts.reading import read_lines

Right = Callable[[Prompt], bool]  # whether the model answers a prompt rightly


@dataclass(frozen=True)
class Filtered(Result):
    """How many rewrites a file gave and why some were dropped; `share_kept` is None without any.

    `strangers` are facts named in the file that the study does not have; their prompts do not
    count as given.
    """

    given: int
    kept: int
    without_subject: int
    unchanged: int
    repeated: int
    answered_wrongly: int
    facts: int
    facts_without: int
    strangers: int

    @property
    def share_kept(self) -> float | None:
        """The share of the rewrites that passed."""
        return self.kept / self.given if self.given else None

    def as_dict(self) -> dict[str, object]:
        """As files hold it, the share among the counts."""
        return {**super().as_dict(), "share_kept": self.share_kept}


def read_rewrites(path: Path) -> dict[str, tuple[str, ...]]:
    """The prompts of each fact named in the file; lines of one fact add up.

    Raises:
        BadData: if the file cannot be read, or a line is not of the form; says which.
    """
    found: dict[str, tuple[str, ...]] = {}
    for where, record in read_lines(Path(path)):
        prompts = record.get("prompts")
        texts = isinstance(prompts, list) and all(isinstance(each, str) for each in prompts)
        if "fact" not in record or not texts or not prompts:
            raise BadData(
                f'{where} must be {{"fact": NAME, "prompts": [TEXT, ...]}} with one text or more.'
            )
        name = str(record["fact"])
        found[name] = found.get(name, ()) + tuple(prompts)
    return found


def with_rewrites(
    facts: Sequence[Fact], texts: Mapping[str, Sequence[str]], right: Right | None = None
) -> tuple[tuple[Fact, ...], Filtered]:
    """The facts with these rewrites in place of their own, and what became of each rewrite.

    A rewrite is kept if the fact's subject is in it, if it differs from the prompt and from the
    rewrites before it by more than case and spacing, and, with `right`, if the model answers it
    rightly. A fact that the texts do not name is left without rewrites.
    """
    dropped = dict.fromkeys(("without_subject", "unchanged", "repeated", "answered_wrongly"), 0)
    changed = []
    for fact in facts:
        kept: list[Prompt] = []
        given = texts.get(fact.name, ())
        for number, text in enumerate(given):
            reason = _reason(fact, given[:number], text, right)
            if reason:
                dropped[reason] += 1
            else:
                kept.append(replace(fact.prompt, text=text))
        changed.append(replace(fact, rewrites=tuple(kept)))
    names = {fact.name for fact in facts}
    counts = Filtered(
        given=sum(len(texts[name]) for name in texts if name in names),
        kept=sum(len(fact.rewrites) for fact in changed),
        facts=len(changed),
        facts_without=sum(not fact.rewrites for fact in changed),
        strangers=len(set(texts) - names),
        **dropped,
    )
    return tuple(changed), counts


def _reason(fact: Fact, before: Sequence[str], text: str, right: Right | None) -> str | None:
    """Why a rewrite is dropped; None if it is kept."""
    if (fact.prompt.subject or "") not in text or not text.strip():
        return "without_subject"
    if _plain(text) == _plain(fact.prompt.text):
        return "unchanged"
    if _plain(text) in {_plain(each) for each in before}:
        return "repeated"
    if right and not right(replace(fact.prompt, text=text)):
        return "answered_wrongly"
    return None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
