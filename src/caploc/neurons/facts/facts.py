"""What is known and how it is asked: prompts, and facts with rewrites and neighbours."""

from dataclasses import dataclass

from caploc.commonality.result import Result
from caploc.errors import BadData


@dataclass(frozen=True)
class Prompt(Result):
    """A text, the answer that continues it, and a false answer to hold against it.

    `subject` is what the fact is about, as it stands in the text; None where it is not known, and
    then the prompt serves as a control only. `target` and `other` follow the text directly: where
    words are parted by a space, they begin with it.

    Raises:
        BadData: if the text or the target is empty, the subject is not in the text, or both answers
            are the same.
    """

    text: str
    subject: str | None
    target: str
    other: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        if not self.text or not self.target:
            raise BadData(
                f"The prompt {self.text!r} with the answer {self.target!r} lacks one of the two; "
                "give both."
            )
        if self.subject is not None and (not self.subject or self.subject not in self.text):
            raise BadData(
                f"The subject {self.subject!r} does not occur in the prompt {self.text!r}; give "
                "it as it is written there, or null."
            )
        if self.target == self.other:
            raise BadData(
                f"The prompt {self.text!r} has {self.target!r} both as its answer and as the false "
                "one; give another false answer, or null."
            )


@dataclass(frozen=True)
class Fact(Result):
    """One fact, asked in several ways.

    `rewrites` mean the same as `prompt`; `neighbours` ask for other facts that an edit must leave
    as they are, their `other` being the false answer of this fact. `relation` is None where it is
    not known. `name` is unique among the facts of a study.
    """

    name: str
    relation: str | None
    prompt: Prompt
    rewrites: tuple[Prompt, ...] = ()
    neighbours: tuple[Prompt, ...] = ()


def check_names(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """The facts, if there are any and no two have one name.

    Raises:
        BadData: if there are none, or a name comes twice.
    """
    if not facts:
        raise BadData("There is no fact to study; give at least one.")
    names: set[str] = set()
    for fact in facts:
        if fact.name in names:
            raise BadData(f"Two facts are named {fact.name!r}; give each a name of its own.")
        names.add(fact.name)
    return facts
