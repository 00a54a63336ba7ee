"""The playground itself: a loaded model, its runs, tasks and examples, and what they answer."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from pathlib import Path
from random import randrange
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from caploc.components import NAME, Head, HeadFile, Mask, write_heads
from caploc.engine.api import Ask
from caploc.engine.encoding import chat_template
from caploc.errors import BadOption
from caploc.export.card import evidence_of
from caploc.models.attention import pattern
from caploc.playground.answers import (
    INTACT,
    KNOCKED_OUT,
    SIDES,
    Event,
    PairedGeneration,
    PairedReading,
    cut_pieces,
)
from caploc.playground.serving import describe_error
from caploc.playground.setting import (
    AttentionRequest,
    ExampleRequest,
    HeadsRequest,
    PageQuestion,
    ScoreRequest,
    Setting,
)
from caploc.result import number
from caploc.store import Row
from caploc.tasks.task import (
    Generate,
    Generated,
    LogLikelihood,
    Request,
    Response,
    Rolling,
    Scored,
    Task,
    options_json,
    prompt_of,
)
from caploc.validation import measure_change
from caploc.wording import ScoreKind, called, unit_of_metric, unit_of_outcomes

SCORED_AT_ONCE = 16  # examples between two visitors' turns


@dataclass(frozen=True)
class DrawnExample:
    """One example of a task; `judges_code` lets the sandbox run programs that the model wrote."""

    task: Task
    number: int
    judges_code: bool = False

    @property
    def requests(self) -> list[Request]:
        return list(self.task.requests(self.number))

    @property
    def prompt(self) -> str:
        """Return what the model reads before its answer."""
        first = self.requests[0]
        return "" if isinstance(first, Rolling) else prompt_of(first)

    @property
    def gold(self) -> str | None:
        """Return the right answer in words, None where there is none."""
        nothing: list[Response] = [
            Generated("") if isinstance(request, Generate) else Scored(0.0, False, 0)
            for request in self.requests
        ]
        return self.task.show(self.number, nothing).gold

    @property
    def choices(self) -> list[str]:
        """List what tells the requests apart: the answers offered, or the contexts of one."""
        asked = [request for request in self.requests if isinstance(request, LogLikelihood)]
        if len({request.context for request in asked}) > 1:
            return [request.context for request in asked]
        return [request.continuation for request in asked]

    def describe(self) -> Event:
        """Return the example as the page shows it before it is asked."""
        first = self.requests[0]
        return {
            "task": self.task.name,
            "number": self.number,
            "size": self.task.size,
            "metric": self.task.metric,
            "kind": "written" if isinstance(first, Generate) else "read",
            "prompt": self.prompt,
            "gold": self.gold,
            "choices": self.choices,
        }

    def verdict(self, responses: Mapping[str, Sequence[Response]]) -> Event:
        """Return the gold answer and each side's score."""
        if self.task.executes_code and not self.judges_code:
            why = (
                "The answer is a program, which is shown and not run; start with --allow-code to "
                "have it judged in the sandbox."
            )
            return {"event": "verdict", "gold": self.gold, "withheld": why}
        return {
            "event": "verdict",
            "gold": self.gold,
            "metric": self.task.metric,
            **{side: self.judge(responses[side]) for side in SIDES},
        }

    def judge(self, responses: Sequence[Response]) -> dict[str, Any]:
        """One side's answer and its score, in words and as right, wrong or neither."""
        item = self.task.item(self.number, responses)
        score = self.task.score([self.number], [item]).score
        unit = unit_of_metric(self.task.metric, [score], self.task.higher_is_better)
        mark = None
        if unit.kind is ScoreKind.SHARE and score in (0, 1):
            mark = "right" if score == 1 else "wrong"
        return {
            "answer": self.task.show(self.number, responses).answer,
            "score": score,
            "said": unit.score(score),
            "mark": mark,
        }


class Playground:
    """Answers what the page asks. Not for several threads: `Turns` calls it from one."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        if setting.runs:  # whose weights must be those of today
            run = setting.runs[0]
            self.engine = replace(run, study=replace(run.study, model=setting.model)).engine()
        else:
            self.engine = setting.model.engine()
        self.loaded = self.engine.loaded
        self.tasks: dict[str, Task] = {}
        self.known: dict[tuple[str, str, int], Row] = {}  # what the intact model answered

    @property
    def window(self) -> int:
        """Return the most tokens that the model reads and says together."""
        return int(self.engine.encoder.harness.max_length)

    def example(self, asked: ExampleRequest) -> DrawnExample:
        """Return the example asked for; raises UserError if there is no such task or example."""
        task = self.task(asked.task)
        # which example comes next decides nothing that is measured
        number = randrange(task.size) if asked.number is None else asked.number
        if not 0 <= number < task.size:
            raise BadOption(
                f"{task.name} has examples 0 to {task.size - 1:,}; there is no example {number}."
            )
        return DrawnExample(task, number, self.setting.judges_code)

    def task(self, name: str) -> Task:
        """Return a task of this playground, loaded when it is first wanted."""
        if name not in self.setting.tasks:
            raise BadOption(f"Task {name!r} is not laid out here; start again with --task {name}.")
        if name not in self.tasks:
            options = replace(self.setting.tasks[name], allow_code=True)  # to be loaded
            (task,) = self.setting.model.tasks([name], options)
            self.tasks[name] = task.in_metric()
        return self.tasks[name]

    def answers(self, question: PageQuestion) -> Generator[Event, None, None]:
        """Both answers to a question, as they come; the last event is `done` or `failed`."""
        try:
            heads = self.heads(question.heads)
            example = self.example(question.example) if question.example else None
            if example is None or isinstance(example.requests[0], Generate):
                yield from self.written(question, example, heads)
            else:
                yield from self.read(example, heads)
            yield {"event": "done"}
        except Exception as error:  # whatever a model does, the page gets a sentence
            yield {"event": "failed", "message": describe_error(error)}

    def written(
        self, question: PageQuestion, example: DrawnExample | None, heads: tuple[Head, ...]
    ) -> Iterator[Event]:
        """Answers that the model writes."""
        prompts = {
            side: self.engine.encoder.prompt(self.request(question, example, side))
            for side in SIDES
        }
        pair = PairedGeneration(self.engine, prompts, heads)
        yield from pair.events()
        if example is not None:
            said = {
                side: [Generated(pair.answer(side), tuple(pair.answers[side].said))]
                for side in SIDES
            }
            yield example.verdict(said)

    def read(self, example: DrawnExample, heads: tuple[Head, ...]) -> Iterator[Event]:
        """Answers that the task offers, or a text, read by both models."""
        requests = [r for r in example.requests if not isinstance(r, Generate)]
        reading = PairedReading(self.engine, requests, heads)
        yield {"event": "begin", "choices": example.choices, "gold": example.gold}
        yield from reading.events()
        yield example.verdict(reading.responses)

    def scores(self, asked: ScoreRequest) -> Generator[Event, None, None]:
        """Score a task's first examples on both sides; the last event is `scores` or `failed`."""
        try:
            yield from self.scored(asked)
        except Exception as error:  # whatever a model does, the page gets a sentence
            yield {"event": "failed", "message": describe_error(error)}

    def scored(self, asked: ScoreRequest) -> Iterator[Event]:
        """Have both sides answer, some examples at a time, and say how far that is."""
        task, heads = self.task(asked.task), self.heads(asked.heads)
        if task.executes_code and not self.setting.judges_code:
            raise BadOption(
                f"{task.name} runs what the model writes; start with --allow-code to have it "
                "scored in the sandbox."
            )
        examples = task.first(asked.examples)
        masks = {INTACT: self.loaded.grid.mask(()), KNOCKED_OUT: self.loaded.grid.mask(heads)}
        rows: dict[str, list[Row]] = {side: [] for side in SIDES}
        for first in range(0, len(examples), SCORED_AT_ONCE):
            part = examples[first : first + SCORED_AT_ONCE]
            for side in SIDES:
                new = [each for each in part if (side, task.name, each) not in self.known]
                for row in self.answered(task, new, masks[side]):
                    if side == INTACT:  # the same whatever heads are chosen next
                        self.known[side, task.name, row.number] = row
                    else:
                        rows[side].append(row)
            rows[INTACT] += [self.known[INTACT, task.name, each] for each in part]
            yield {"event": "scored", "done": len(rows[INTACT]), "of": len(examples)}
        yield {"event": "scores", "task": task.name, **compare_rows(task, rows)}

    def answered(self, task: Task, examples: Sequence[int], mask: Mask) -> Iterator[Row]:
        """Yield a row for each example, answered under the mask and scored."""
        requests = {example: task.requests(example) for example in examples}
        asks = [
            Ask((example, part), request, mask)
            for example in examples
            for part, request in enumerate(requests[example])
        ]
        said: dict[int, dict[int, Response]] = {example: {} for example in examples}
        for batch in self.engine.answer(asks):
            for answer in batch:
                said[answer.key[0]][answer.key[1]] = answer.response
        for example, parts in said.items():
            responses = [parts[part] for part in sorted(parts)]
            broken = any(isinstance(r, Scored) and not isfinite(r.logprob) for r in responses)
            item = None if broken else task.item(example, responses)
            outcome = nan if broken else task.outcome(item)
            yield Row(b"", "", example, outcome, item, "", 0.0, 0, 0.0)

    def request(self, question: PageQuestion, example: DrawnExample | None, side: str) -> Generate:
        """Return a question as tasks ask theirs; of a talk, as this side remembers it.

        Raises BadOption if the prompt is empty, or too long for the model with its answer.
        """
        if example is not None:
            first = example.requests[0]
            assert isinstance(first, Generate)
            return first
        if not question.prompt.strip():
            raise BadOption("The prompt is empty; write one, or draw an example of a task.")
        prompt = question.prompt
        if question.chat:
            talk = [
                {"role": role, "content": said}
                for turn in question.turns
                for role, said in (("user", turn.user), ("assistant", getattr(turn, side)))
            ]
            talk.append({"role": "user", "content": prompt})
            prompt = chat_template(self.loaded.tokenizer)(talk)
        length = len(self.engine.encoder.harness.tok_encode(prompt))
        if length + question.new_tokens > self.window:
            raise BadOption(
                f"The prompt has {length:,} tokens and the answer may have {question.new_tokens:,} "
                f"more; the model's window is {self.window:,}. Shorten one of them."
            )
        options = {"until": question.stops, "max_gen_toks": question.new_tokens, "do_sample": False}
        return Generate(prompt, options_json(options))

    def heads(self, names: Sequence[str]) -> tuple[Head, ...]:
        """Return heads by name, each once; raises UserError if there is none, or no such head."""
        found = self.loaded.grid.named_in(dict.fromkeys(names))
        if not found:
            raise BadOption("No head is chosen; pick one on the map, or take a run's top heads.")
        return tuple(found)

    def attention(self, asked: AttentionRequest) -> dict[str, Any]:
        """Return a head's attention over a prompt and what followed: tokens, and weights by row."""
        head = Head.parse(asked.head)
        tokens = [*self.context_tokens(asked), *asked.said]
        embeddings: Any = self.loaded.model.get_input_embeddings()
        size = int(embeddings.num_embeddings)
        if any(not 0 <= token < size for token in tokens):
            raise BadOption(f"said: the model's tokens are 0 to {size - 1:,}.")
        if len(tokens) > self.window:
            raise BadOption(
                f"The text has {len(tokens):,} tokens; the model's window is {self.window:,}."
            )
        heads = self.heads(asked.question.heads) if asked.knocked_out else ()
        weights = pattern(self.loaded, tokens, head, heads)
        return {
            "head": str(head),
            "tokens": cut_pieces(self.loaded.tokenizer, tokens),
            "weights": np.ascontiguousarray(weights.numpy(), dtype="<f4"),
        }

    def context_tokens(self, asked: AttentionRequest) -> list[int]:
        """Return the tokens that the model reads before its answer."""
        wording, question = self.engine.encoder, asked.question
        example = self.example(question.example) if question.example else None
        if example is None or isinstance(example.requests[0], Generate):
            return list(wording.prompt(self.request(question, example, asked.side)).tokens)
        requests = example.requests
        if asked.choice >= len(requests):
            raise BadOption(f"The example has {len(requests)} choices; there is no {asked.choice}.")
        request = requests[asked.choice]
        assert not isinstance(request, Generate)
        span = wording.spans(request)[0]
        return list(span.inputs[: len(span.inputs) + 1 - len(span.continuation)])

    def save_heads(self, asked: HeadsRequest) -> bytes:
        """Return the chosen heads as a file; raises UserError if there is none, or no such head."""
        heads, evidence = self.cite_run(self.heads(asked.heads), asked.run)
        file = HeadFile(
            heads=heads,
            grid=self.loaded.grid,
            model=called(self.loaded.name),
            fingerprint=self.loaded.fingerprint,
            evidence=evidence,
        )
        with TemporaryDirectory() as folder:
            path = Path(folder) / NAME
            write_heads(path, file)
            return path.read_bytes()

    def cite_run(
        self, heads: tuple[Head, ...], number: int | None
    ) -> tuple[tuple[Head, ...], dict[str, Any]]:
        """Heads in order, and what the run of this number says for them.

        The first of the run's ranking stand in its order, with what it measured; any others were
        chosen by hand, which no run speaks for, and stand layer by layer.
        Raises BadOption if there is no such run.
        """
        if number is not None:
            if not 0 <= number < len(self.setting.runs):
                raise BadOption(f"run: there are {len(self.setting.runs)} here, none is {number}.")
            run = self.setting.runs[number]
            first = tuple(self.loaded.grid.named_in(run.result.ranking())[: len(heads)])
            if set(first) == set(heads):
                return first, evidence_of(run, first)
        return tuple(sorted(heads, key=self.loaded.grid.column)), {}


def compare_rows(task: Task, rows: Mapping[str, Sequence[Row]]) -> Event:
    """Return a task's score on each side, the change with its 95 % interval, in words."""
    values = {}
    for side in SIDES:
        scored = [row for row in rows[side] if row.item is not None]
        values[side] = task.score([r.number for r in scored], [r.item for r in scored]).score
    unit = unit_of_metric(task.metric, list(values.values()), task.higher_is_better)
    change = measure_change(rows[INTACT], rows[KNOCKED_OUT])
    outcomes = unit_of_outcomes(unit)
    return {
        "metric": task.metric,
        "examples": len(rows[INTACT]),
        **{
            side: {"score": number(value), "said": unit.score(value)}
            for side, value in values.items()
        },
        "change": None if change is None else outcomes.effect(change.outcome),
        "interval": None if change is None else outcomes.interval(change),
        "shares": unit.kind is ScoreKind.SHARE,
    }
