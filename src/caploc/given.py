"""Models, examples and scores that a program hands over itself, where commands name them."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from hashlib import blake2b
from inspect import getsource
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from caploc.engine import BatchEngine, chat_template
from caploc.engine.backends import check_engine
from caploc.errors import BadData, BadOption
from caploc.heads import HeadGrid
from caploc.measurement import HeadModel, RowEngine
from caploc.models import find_projections, prove_heads
from caploc.models.loading import LoadedModel
from caploc.models.placement import dtype_label, input_device
from caploc.models.sources import ModelSource
from caploc.tasks.catalog import GIVEN_SCORE, TaskOptions, load_task, wants_chat_template
from caploc.tasks.task import Task
from caploc.workbench import ModelOptions

Pairs = Sequence[tuple[str, str]]
Score = Callable[[str, str, str], float]
MOST_TOKENS = 64  # of an answer that a function is to score
SCORE = "score"  # the metric's name then


class GivenModel(ModelOptions):
    """A model of transformers that the caller has loaded; `score` judges its examples, if given."""

    loaded: LoadedModel
    score: "GivenScorer | None"

    @classmethod
    def of(
        cls, model: Any, tokenizer: PreTrainedTokenizerBase | None, score: Score | None = None
    ) -> "GivenModel":
        """Find and prove the heads of a loaded model, or of the one inside a peft model.

        Raises:
            BadOption: if it is no such model, or there is no tokenizer.
            ModelRefused: if its heads are not found or fail the proof.
        """
        loaded = model if isinstance(model, LoadedModel) else proved(model, tokenizer)
        given = cls(loaded.name, dtype="auto")
        # no fields: a study's are written to a file
        object.__setattr__(given, "loaded", loaded)
        object.__setattr__(given, "score", None if score is None else GivenScorer(score))
        return given

    def check(self) -> HeadGrid:
        check_engine(self.backend)
        return self.loaded.grid

    def source(self) -> ModelSource:
        raise BadOption(
            "Heads known to break every task are kept for models with a name; name the heads to "
            "exclude, or give the model's name in the place of the model."
        )

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.loaded.tokenizer

    def engine(self) -> BatchEngine[LoadedModel]:
        return BatchEngine(self.loaded, self.batch_size, backend=self.backend)

    @contextmanager
    def answering(self) -> Iterator[RowEngine[HeadModel]]:
        """Answer with the model out of training, which it is put back into afterwards."""
        training = self.loaded.model.training
        self.loaded.model.train(False)
        try:
            with torch.no_grad():
                yield self.engine()
        finally:
            self.loaded.model.train(training)

    def tasks(self, names: Sequence[str], options: TaskOptions) -> list[Task]:
        tokenizer = self.tokenizer()
        wanted = options.chat_template or any(map(wants_chat_template, names))
        chats = wanted and (options.chat_template or tokenizer.chat_template is not None)
        chat = chat_template(tokenizer) if chats else None
        return [load_task(name, options, chat, self.score) for name in names]


def proved(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> LoadedModel:
    """Find and prove a model's heads, and say who it is by a digest of its weights and config."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise BadOption(
            "This peft model puts a learned prompt before every text, which knocking out heads of "
            "the model inside would leave out; give an adapter that changes weights, such as LoRA."
        )
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(inner, PreTrainedModel):
        raise BadOption(
            f"{type(model).__name__} is no model of transformers; give what from_pretrained "
            "returns. For a module of your own see docs/tutorials/own_model.py."
        )
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise BadOption(
            "A loaded model needs its tokenizer: caploc.locate(model, tokenizer, task), where task "
            "is a name or a list of (prompt, answer)."
        )
    tokenizer = deepcopy(tokenizer)  # padding is set in it
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    projections, grid = find_projections(inner)
    prove_heads(inner, projections, grid)
    return LoadedModel(
        model=inner,
        tokenizer=tokenizer,
        grid=grid,
        projections=projections,
        name=inner.config._name_or_path or type(inner).__name__,
        fingerprint=digest_weights(inner),
        dtype=dtype_label(inner, None),
        device=input_device(inner),
    )


def digest_weights(model: PreTrainedModel) -> str:
    """Return a digest of a model's config and every value of its weights."""
    digest = blake2b(model.config.to_json_string().encode(), digest_size=20)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        values = tensor.detach().contiguous().cpu().flatten()
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


class GivenScorer:
    """Scores an answer by a function of prompt, right answer and what the model wrote."""

    def __init__(self, function: Score) -> None:
        self.function = function

    def definition(self) -> str:
        """Return what tells it from other functions: rows under another one are measured anew."""
        try:
            return getsource(self.function)
        except (OSError, TypeError):  # typed at a prompt, or no function of Python's
            return repr(getattr(self.function, "__code__", self.function))

    def __call__(self, doc: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
        return {SCORE: float(self.function(doc["prompt"], doc["answer"], results[0]))}


def write_task(pairs: Pairs, folder: Path, scored: bool) -> Path:
    """Write examples as a task in lm-eval's form below the folder; return its YAML.

    Without a function that scores, an example is right where the answer is what the model would
    say after the prompt, token by token. The answer follows the prompt as both are written, with a
    space between two words.

    Raises:
        BadData: if there is no example, or one is no pair of texts.
    """
    lines = [json.dumps(example_of(number, pair)) for number, pair in enumerate(pairs)]
    if not lines:
        raise BadData("There are no examples; give a list of (prompt, answer).")
    data = "\n".join(lines) + "\n"
    kind = "scored" if scored else "exact"
    place = folder / f"examples-{blake2b((kind + data).encode(), digest_size=4).hexdigest()}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "examples.jsonl").write_text(data, encoding="utf-8")
    ways: dict[str, Any] = {
        "output_type": "loglikelihood",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    if scored:
        ways = {
            "output_type": "generate_until",
            "process_results": GIVEN_SCORE,
            "generation_kwargs": {
                "until": ["\n\n"], "max_gen_toks": MOST_TOKENS, "do_sample": False,
            },
            "metric_list": [{"metric": SCORE, "aggregation": "mean", "higher_is_better": True}],
        }  # fmt: skip
    task = {
        "task": "examples",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str((place / "examples.jsonl").absolute())}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metadata": {"version": 1},
        **ways,
    }
    path = place / "examples.yaml"
    path.write_text(json.dumps(task, indent=1), encoding="utf-8")  # JSON is YAML
    return path.absolute()


def example_of(number: int, pair: Any) -> dict[str, str]:
    """Name the parts of an example, with a space before an answer that is a word after a word."""
    fits = isinstance(pair, tuple | list) and len(pair) == 2
    if not fits or not all(isinstance(text, str) and text for text in pair):
        raise BadData(
            f"Example {number} is {pair!r:.80}; each must be a pair of texts, (prompt, answer)."
        )
    prompt, answer = pair
    words = prompt[-1].isalnum() and answer[0].isalnum()
    return {"prompt": prompt, "answer": f" {answer}" if words else answer}
