"""The playground itself: a loaded model, its tasks and examples, and what they answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import randrange
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from caploc.declaration import ModelOptions
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import chat_template
from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.models.loading import LoadedModel
from caploc.options import TaskOptions
from caploc.playground.answers import SIDES, BothSides, Shown
from caploc.result import number
from caploc.tasks.task import (
    Generate,
    LogLikelihood,
    Request,
    Response,
    Rolling,
    Scored,
    Task,
    options_json,
    prompt_of,
    write_answer,
)
from caploc.wording import unit_of_metric

MOST_TOKENS = 2048  # of one answer
MOST_TURNS = 100  # of a talk
MOST_CHARACTERS = 1_000_000  # of a prompt; the model's window is far below


class PageRequest(BaseModel):
    """Anything the page asks; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ExampleRequest(PageRequest):
    """An example of a task by its number, or any."""

    task: str
    number: int | None = None


class Turn(PageRequest):
    """What was said before: a message, and what each side answered."""

    user: str = Field(max_length=MOST_CHARACTERS)
    intact: str = Field(max_length=MOST_CHARACTERS)
    knocked_out: str = Field(max_length=MOST_CHARACTERS)


class PageQuestion(PageRequest):
    """A prompt, or an example of a task, and the heads to knock out.

    With `example` the prompt, its stops and its length are the task's own. With `chat` the prompt
    is a message in the model's chat template, after the `turns` of a talk in which each side
    remembers its own answers.
    """

    heads: list[str] = Field(max_length=1_000_000)
    prompt: str = Field(default="", max_length=MOST_CHARACTERS)
    example: ExampleRequest | None = None
    new_tokens: int = Field(default=64, ge=1, le=MOST_TOKENS)
    stops: list[str] = Field(default=[], max_length=16)
    chat: bool = False
    turns: list[Turn] = Field(default=[], max_length=MOST_TURNS)


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

    def describe(self) -> Shown:
        """Return the example as the page shows it before it is asked."""
        return {
            "task": self.task.name,
            "number": self.number,
            "size": self.task.size,
            "metric": self.task.metric.name,
            "prompt": self.prompt,
            "gold": self.task.example(self.number).gold,
        }

    def verdict(self, responses: Mapping[str, Sequence[Response]]) -> Shown:
        """Return each side's score."""
        if self.task.metric.runs_code and not self.judges_code:
            why = (
                "The answer is a program, which is shown and not run; start with --allow-code to "
                "have it judged in the sandbox."
            )
            return {"withheld": why}
        judged = {side: self.judge(responses[side]) for side in SIDES}
        return {"metric": self.task.metric.name, **judged}

    def judge(self, responses: Sequence[Response]) -> Shown:
        """One side's answer and its score, in words and as right, wrong or neither."""
        item = self.task.item(self.number, responses)
        score = self.task.score([self.number], [item]).score
        unit = unit_of_metric(self.task.metric.name, [score], self.task.metric.higher_is_better)
        mark = None
        if unit.sign == "%" and score in (0, 1):
            mark = "right" if score == 1 else "wrong"
        return {
            "answer": write_answer(self.task.example(self.number), responses),
            "score": score,
            "said": unit.score(score),
            "mark": mark,
        }


@dataclass
class Playground:
    """Answers what the page asks of one model; `run` is the finished run that it was opened on.

    `options` say how each task is asked. Not for several threads: `Turns` calls it from one.
    """

    model: ModelOptions
    engine: BatchEngine[LoadedModel]
    options: Mapping[str, TaskOptions]
    run: FinishedRun | None = None
    judges_code: bool = False

    def __post_init__(self) -> None:
        self.tasks: dict[str, Task] = {}

    @classmethod
    def of_run(
        cls, run: FinishedRun, device: str = "auto", *, judges_code: bool = False
    ) -> "Playground":
        """Load the model of a run, with the run's tasks; raises UserError if it has changed."""
        study = run.study
        if device != "auto":
            run = replace(run, study=replace(study, model=replace(study.model, device=device)))
        beside = dict.fromkeys(study.other_tasks, study.options.plain())
        options = {study.task: study.options} | beside
        return cls(run.study.model, run.engine(), options, run, judges_code)

    @property
    def loaded(self) -> LoadedModel:
        return self.engine.loaded

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
        return DrawnExample(task, number, self.judges_code)

    def task(self, name: str) -> Task:
        """Return a task of this playground, loaded when it is first wanted."""
        if name not in self.options:
            raise BadOption(f"Task {name!r} is not laid out here; start again with --task {name}.")
        if name not in self.tasks:
            options = replace(self.options[name], allow_code=True)  # to be loaded
            (task,) = self.model.tasks([name], options)
            self.tasks[name] = task.in_metric()
        return self.tasks[name]

    def answer(self, question: PageQuestion, tell: Callable[[Shown], None]) -> Shown:
        """Answer a question on both sides; `tell` hears what is said so far.

        Raises UserError if it cannot be asked.
        """
        heads = tuple(self.loaded.grid.named_in(dict.fromkeys(question.heads)))
        if not heads:
            raise BadOption("No head is chosen; pick one on the map, or take a run's top heads.")
        both = BothSides(self.engine, heads)
        example = self.example(question.example) if question.example else None
        if example is None or isinstance(example.requests[0], Generate):
            return self.write(question, example, both, tell)
        return self.read(example, both)

    def write(
        self,
        question: PageQuestion,
        example: DrawnExample | None,
        both: BothSides,
        tell: Callable[[Shown], None],
    ) -> Shown:
        """Have both sides write their answers."""
        prompts = {side: self.request(question, example, side) for side in SIDES}
        answers = both.write(prompts, lambda said: tell({"kind": "so far", **said}))
        sides = {}
        for side, said in answers.items():
            whole = LogLikelihood(prompts[side].prompt, said.text, said.said)
            cut = said.end is None  # by the limit
            sides[side] = {"tokens": both.read(whole), "text": said.text, "cut": cut}
        verdict = None
        if example:
            verdict = example.verdict({side: [said] for side, said in answers.items()})
        return {"kind": "written", **sides, "verdict": verdict}

    def read(self, example: DrawnExample, both: BothSides) -> Shown:
        """Have both sides read the answers that the task offers, or a text."""
        responses = both.answer(dict.fromkeys(SIDES, example.requests))
        choices = []
        for place, request in enumerate(example.requests):
            assert not isinstance(request, Generate)
            totals = {}
            for side in SIDES:
                scored = responses[side][place]
                assert isinstance(scored, Scored)
                totals[side] = number(scored.logprob)
            choices.append({"tokens": both.read(request), **totals})
        return {
            "kind": "read",
            "choices": choices,
            "right": example.task.example(example.number).right,
            "verdict": example.verdict(responses),
        }

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
        options: dict[str, Any] = {"max_gen_toks": question.new_tokens, "do_sample": False}
        request = Generate(prompt, options_json(options | {"until": question.stops}))
        length = len(self.engine.encoder.harness.tok_encode(prompt))
        if length + question.new_tokens > self.window:
            raise BadOption(
                f"The prompt has {length:,} tokens and the answer may have {question.new_tokens:,} "
                f"more; the model's window is {self.window:,}. Shorten one of them."
            )
        return request
