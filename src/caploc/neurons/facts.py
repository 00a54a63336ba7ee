"""What is known and how it is asked: prompts, facts, their tokens, files of them, and the answers.

COUNTERFACT and zsRE are read as they are distributed with ROME (Meng et al. 2022). Our own form has
a fact on each line, as `Fact.as_dict` writes it. A line of a file of rewrites, which a language
model or a person wrote, is `{"fact": "17", "prompts": ["...", "..."]}`; `fact` is the fact's name.
That a prompt means the same cannot be seen by a program; what can is checked here.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from pydantic import TypeAdapter, ValidationError

from caploc.contents import describe_fault
from caploc.engine.encoding import RequestEncoder
from caploc.engine.plain import PaddedText, PaddingCheck, score_padded
from caploc.errors import BadData, ModelRefused
from caploc.files import read_text
from caploc.lookup import pick
from caploc.models.loading import CutModel
from caploc.progress import Progress, Silent
from caploc.stats.intervals import JsonRecord

TOGETHER = 64  # prompts in a forward pass


@dataclass(frozen=True)
class FactPrompt(JsonRecord):
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
class Fact(JsonRecord):
    """One fact, asked in several ways.

    `rewrites` mean the same as `prompt`; `neighbours` ask for other facts that an edit must leave
    as they are, their `other` being the false answer of this fact. `relation` is None where it is
    not known. `name` is unique among the facts of a study.
    """

    name: str
    relation: str | None
    prompt: FactPrompt
    rewrites: tuple[FactPrompt, ...] = ()
    neighbours: tuple[FactPrompt, ...] = ()


def check_names(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Take facts, if there are any and no two have one name.

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
    return tuple(facts)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt with its answer.

    `tokens` are those of the text and of the answer but its last, from which nothing is predicted;
    the last `len(answer)` positions predict `answer`. `subject` are the positions of the subject's
    tokens, empty where there is none.
    """

    tokens: tuple[int, ...]
    answer: tuple[int, ...]
    subject: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """The first predicting position: that of the text's last token."""
        return len(self.tokens) - len(self.answer)

    def first(self) -> "Encoded":
        """Leave only the first token of the answer to come."""
        return Encoded(self.tokens[: self.start + 1], self.answer[:1], self.subject)


class Encoder:
    """Turns prompts into tokens: what is read, what is to come, and where the subject stands.

    Tokens are those of lm-eval's Hugging Face model (special tokens included), except that a space
    at the end of a prompt stays with the prompt where the tokenizer lets it; lm-eval gives it to
    the answer, whose first token would then be a bare space for a tokenizer of bytes.
    """

    def __init__(self, loaded: CutModel) -> None:
        self.wording = RequestEncoder(loaded.model, loaded.tokenizer)
        self.tokenizer = loaded.tokenizer
        self.longest = int(self.wording.harness.max_length)

    def encode(self, prompt: FactPrompt, answer: str | None = None) -> Encoded:
        """Encode a prompt with its target, or with another answer.

        Raises:
            BadData: if it does not fit the model's window, or the answer has no token of its own.
        """
        encode, text = self.wording.harness.tok_encode, prompt.text
        answer = prompt.target if answer is None else answer
        context, whole = encode(text), encode(text + answer)
        if whole[: len(context)] != context:  # the tokenizer joins the last space and the answer
            text = text.rstrip()
            context = encode(text)
        wanted = whole[len(context) :]
        if not wanted or not context:
            raise BadData(f"{answer!r} after {prompt.text!r} has no token of its own.")
        tokens = (*context, *wanted[:-1])
        self._check(prompt.text, len(tokens))
        subject = self._subject(text, tuple(context), prompt.subject) if prompt.subject else ()
        return Encoded(tokens, tuple(wanted), subject)

    def read(self, text: str, subject: str) -> Encoded:
        """Encode a text without an answer; its last position predicts nothing that is known."""
        tokens = tuple(self.wording.harness.tok_encode(text))
        self._check(text, len(tokens))
        return Encoded(tokens, (), self._subject(text, tokens, subject))

    def _check(self, text: str, tokens: int) -> None:
        if tokens > self.longest:
            raise BadData(
                f"The prompt {text[:40]!r}... has {tokens} tokens; the model's window takes "
                f"{self.longest}."
            )

    def _subject(self, text: str, tokens: tuple[int, ...], subject: str) -> tuple[int, ...]:
        """Find the tokens that hold a part of the subject, where it stands last."""
        if subject not in text:
            raise BadData(f"The subject {subject!r} does not occur in {text!r}.")
        start = text.rindex(subject)
        return tuple(
            position
            for position, (first, end) in enumerate(self._offsets(text, tokens))
            if first < start + len(subject) and end > start and end > first
        )

    def _offsets(self, text: str, tokens: tuple[int, ...]) -> list[tuple[int, int]]:
        name = type(self.tokenizer).__name__
        if not self.tokenizer.is_fast:
            raise ModelRefused(
                f"The tokenizer {name} does not say where its tokens stand in a text, so that a "
                "subject cannot be found; use its fast version."
            )
        for special in (True, False):
            found = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
            if tuple(found["input_ids"]) == tokens:
                return list(found["offset_mapping"])
        raise ModelRefused(
            f"The tokenizer {name} encodes {text[:40]!r} in two ways, so that a subject cannot be "
            "found."
        )


@dataclass(frozen=True)
class FactAnswer:
    """What the model makes of an answer.

    `log_probability` is the mean over the answer's tokens; `right` whether each was the likeliest.
    """

    log_probability: float
    right: bool


class FactAnswers:
    """Asks a model for the probability of answers, edits included."""

    def __init__(self, loaded: CutModel) -> None:
        self.loaded, self.encoder = loaded, Encoder(loaded)
        self.padding = PaddingCheck(loaded, left=False)

    def right(self, prompt: FactPrompt) -> bool:
        return self.to([self.encoder.encode(prompt)])[0].right

    def log_probabilities(
        self, asked: Sequence[tuple[FactPrompt, str]]
    ) -> Float64[np.ndarray, " asked"]:
        """Average the log-probability over the tokens of each answer after its prompt."""
        found = self.to([self.encoder.encode(*each) for each in asked])
        return np.array([each.log_probability for each in found], dtype=float)

    def to(self, encoded: Sequence[Encoded]) -> list[FactAnswer]:
        """Say what the model makes of each prompt's answer, in the order given."""
        results: dict[int, FactAnswer] = {}
        intact = np.zeros(self.loaded.grid.size, dtype=bool)
        for alike in self.padding.groups(range(len(encoded)), lambda at: encoded[at].tokens):
            for first in range(0, len(alike), TOGETHER):
                places = alike[first : first + TOGETHER]
                some = [encoded[place] for place in places]
                asked = [PaddedText(each.tokens, intact, [each.answer]) for each in some]
                read = score_padded(self.loaded, asked)
                for place, each, ((logprob, greedy),) in zip(places, some, read, strict=True):
                    results[place] = FactAnswer(logprob / len(each.answer), greedy)
        return [results[place] for place in range(len(encoded))]


def known_facts(
    loaded: CutModel,
    facts: Sequence[Fact],
    *,
    rewrites: bool = False,
    progress: Progress | None = None,
) -> tuple[tuple[Fact, ...], dict[str, int | None]]:
    """Keep the facts whose prompt the model answers rightly; with `rewrites`, only right ones too.

    Counts `facts` and `facts_known`, `rewrites` and `rewrites_known` (None if they are not asked).

    Raises:
        BadData: if a prompt does not fit the model's window, or no fact is known.
    """
    shown, asker = progress or Silent(), FactAnswers(loaded)
    shown.start("facts known", len(facts))
    kept, given, rewrites_known = [], 0, 0
    for fact in facts:
        given += len(fact.rewrites)
        prompts = [fact.prompt, *(fact.rewrites if rewrites else ())]
        encoded = [asker.encoder.encode(prompt) for prompt in prompts]
        first, *others = asker.to(encoded)
        shown.advance(1, sum(len(each.tokens) for each in encoded))
        right = tuple(p for p, found in zip(fact.rewrites, others, strict=False) if found.right)
        rewrites_known += len(right)
        if first.right:
            kept.append(replace(fact, rewrites=right) if rewrites else fact)
    if not kept:
        raise BadData(
            f"The model answers none of the {len(facts)} facts rightly, so nothing can be located; "
            "give facts that it knows."
        )
    counts = {"facts": len(facts), "facts_known": len(kept), "rewrites": given}
    return tuple(kept), {**counts, "rewrites_known": rewrites_known if rewrites else None}


Record = Mapping[str, Any]
LONGEST = 2**30  # bytes of a file of facts, or of texts
NATURAL_QUESTION = "nq question: "  # how zsRE's file marks its unrelated questions
OWN_FORM: TypeAdapter[Fact] = TypeAdapter(Fact)


def read_facts(path: Path, form: str = "lines") -> tuple[Fact, ...]:
    """Read the facts of a file; `form` is `counterfact`, `zsre` or `lines`."""
    records, build = pick(FORMS, form, "form of facts")
    return check_names([_build(build, record, where) for where, record in records(Path(path))])


def read_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield where each record of a file with one a line stands, and the record; none is blank."""
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            yield _placed(_parse(line, where := f"{path}, line {number}"), where)


def _read_list(path: Path) -> Iterator[tuple[str, Record]]:
    records = _parse(_text(path), str(path))
    if not isinstance(records, list):
        raise BadData(f"{path} holds no list of records; give the file as it is distributed.")
    for number, record in enumerate(records):
        yield _placed(record, f"{path}, record {number}")


def _text(path: Path) -> str:
    try:
        return read_text(path, LONGEST, follow=True)
    except (OSError, UnicodeDecodeError) as error:
        raise BadData(f"{path} cannot be read ({error}); give a file of facts.") from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where} is not valid JSON ({error}); correct it.") from error


def _placed(record: Any, where: str) -> tuple[str, Record]:
    if not isinstance(record, dict):
        raise BadData(f"{where} is no JSON object but {type(record).__name__}; write one.")
    return where, record


def _build(build: Callable[[Record, str], Fact], record: Record, where: str) -> Fact:
    try:
        return build(record, where)
    except KeyError as error:
        raise BadData(f"{where} has no field {error}; its fields are {sorted(record)}.") from None
    except ValidationError as error:
        fault = describe_fault(error.errors(include_url=False)[0])
        raise BadData(f"{where} is not of the form expected ({fault}); correct it.") from None
    except (TypeError, AttributeError, IndexError) as error:
        raise BadData(f"{where} is not of the form expected ({error}); correct it.") from None
    except BadData as error:
        raise BadData(f"{where}: {error}") from None


def _counterfact(record: Record, where: str) -> Fact:
    asked = record["requested_rewrite"]
    subject = asked["subject"]
    old, new = (" " + asked[name]["str"].strip() for name in ("target_true", "target_new"))

    def about(text: str) -> FactPrompt:
        return FactPrompt(text, subject if subject in text else None, old, new)

    return Fact(
        name=str(record["case_id"]),
        relation=asked.get("relation_id"),
        prompt=FactPrompt(asked["prompt"].replace("{}", subject), subject, old, new),
        rewrites=tuple(map(about, record.get("paraphrase_prompts", ()))),
        # other subjects with the same true answer
        neighbours=tuple(
            FactPrompt(text, None, old, new) for text in record.get("neighborhood_prompts", ())
        ),
    )


def _zsre(record: Record, where: str) -> Fact:
    subject, target = record["subject"], " " + record["answers"][0].strip()
    other = " " + (record.get("alt") or "").strip()
    wrong = other if other.strip() and other != target else None
    again, spared = record["rephrase"], " " + record["loc_ans"].strip()
    unrelated = record["loc"].removeprefix(NATURAL_QUESTION).rstrip("?") + "?"
    return Fact(
        # the file has neither names nor relations: a record's place, and its question's wording
        name=where.rpartition(" ")[2],
        relation=record["src"].replace(subject, "{}"),
        prompt=FactPrompt(record["src"], subject, target, wrong),
        rewrites=(FactPrompt(again, subject if subject in again else None, target, wrong),),
        neighbours=(FactPrompt(unrelated, None, spared, wrong),) if spared != wrong else (),
    )


FORMS: dict[str, tuple[Callable[[Path], Iterator[tuple[str, Record]]], Any]] = {
    "counterfact": (_read_list, _counterfact),
    "zsre": (_read_list, _zsre),
    "lines": (read_lines, lambda record, _: OWN_FORM.validate_python(dict(record))),
}


def read_rewrites(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the prompts of each fact named in the file; lines of one fact add up.

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
    facts: Sequence[Fact],
    texts: Mapping[str, Sequence[str]],
    right: Callable[[FactPrompt], bool] = lambda _: True,
) -> tuple[tuple[Fact, ...], dict[str, int]]:
    """Give facts these rewrites in place of their own, and count what became of each rewrite.

    A rewrite is kept if the fact's subject is in it, if it differs from the prompt and from the
    rewrites before it by more than case and spacing, and if the model answers it `right`. A fact
    that the texts do not name is left without rewrites; `strangers` are names that no fact has,
    whose prompts are not counted.
    """
    counts = dict.fromkeys(
        ("given", "kept", "without_subject", "unchanged", "repeated", "answered_wrongly"), 0
    )
    changed = []
    for fact in facts:
        kept: list[FactPrompt] = []
        before = {_plain(fact.prompt.text): "unchanged"}
        for text in texts.get(fact.name, ()):
            reason = before.get(_plain(text), "kept")
            if (fact.prompt.subject or "") not in text or not text.strip():
                reason = "without_subject"
            elif reason == "kept" and not right(replace(fact.prompt, text=text)):
                reason = "answered_wrongly"
            before.setdefault(_plain(text), "repeated")
            counts["given"] += 1
            counts[reason] += 1
            if reason == "kept":
                kept.append(replace(fact.prompt, text=text))
        changed.append(replace(fact, rewrites=tuple(kept)))
    strangers = set(texts) - {fact.name for fact in facts}
    return tuple(changed), counts | {"strangers": len(strangers)}


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
