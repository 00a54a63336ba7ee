"""A task whose questions are given, and rows whose answers are planted."""

import json

import numpy as np

from caploc.result import Score
from caploc.store import Row
from caploc.tasks.task import (
    Generate,
    Generated,
    LogLikelihood,
    Rolling,
    Scored,
    Shown,
    responses_json,
)
from caploc.validation.failures import categorize_failures

LIMIT = 64
COUNT = 40
ANIMALS = "cats dogs cows hens pigs goats ducks geese".split()


def sentence(number, count):
    """An answer in words, of which the examples share most."""
    return f"There are {count} {ANIMALS[number % 8]} on the farm, so the answer is {count}."


GOLDS = [sentence(number, 3 * number + 2) for number in range(COUNT)]
WRONG = [sentence(number, 3 * number + 1) for number in range(COUNT)]


class Asked:
    """A task of these requests and gold answers; an item is its outcome."""

    name, outcome_kind, version = "asked", "metric", "1"
    higher_is_better, executes_code, chance = True, False, 0.0

    def __init__(self, requests, golds, metric="exact_match"):
        self.asked, self.golds, self.metric = requests, golds, metric

    @property
    def size(self):
        return len(self.asked)

    def in_metric(self):
        return self

    def question(self, example):
        return str(example)

    def gold(self, example):
        return None

    def lacks(self, example):
        return None

    def without(self, examples):
        return self

    def margin(self, example, responses):
        raise NotImplementedError

    def choice(self, example):
        return None

    def key(self, example):
        return str(example)

    def requests(self, example):
        return self.asked[example]

    def item(self, example, responses):
        raise NotImplementedError

    def outcome(self, item):
        return float(item)

    def score(self, examples, items):
        return Score.of(float(np.mean(items)), None, len(items))

    def first(self, limit):
        return list(range(limit or self.size))

    def show(self, example, responses):
        first = self.asked[example][0]
        prompt = first.prompt if isinstance(first, Generate) else getattr(first, "context", "")
        said = [r.text if isinstance(r, Generated) else f"{r.logprob}" for r in responses]
        return Shown(prompt, self.golds[example], " / ".join(said))


def writing(golds, prompts=None, limit=LIMIT):
    """A task of written answers."""
    prompts = prompts or [f"question {number}:" for number in range(len(golds))]
    options = json.dumps({"until": ["\n\n"], "max_gen_toks": limit, "do_sample": False})
    return Asked([(Generate(prompt, options),) for prompt in prompts], golds)


def choosing(golds, choices=4, metric="acc", texts=None):
    """A multiple choice; the gold answers are positions."""
    texts = texts or [" " + letter for letter in "ABCDEFGH"[:choices]]
    requests = [
        tuple(LogLikelihood(f"question {n}", text) for text in texts) for n in range(len(golds))
    ]
    return Asked(requests, [str(gold) for gold in golds], metric)


def scoring(count, rolling=False):
    """A task that scores one text of each example."""
    texts = [f" the text of {number}" for number in range(count)]
    asked = [(Rolling(text) if rolling else LogLikelihood("so", text),) for text in texts]
    return Asked(asked, texts)


def row(number, responses, outcome):
    """One example's row."""
    return Row(
        b"", str(number), number, outcome, outcome, responses_json(tuple(responses)), 1.0, 1, 0.0
    )


def sure(pick, choices=4, best=-0.1, other=-6.0):
    """Log-probabilities of choices of which one is likely."""
    return [best if choice == pick else other for choice in range(choices)]


def texts_rows(task, texts, tokens=None, outcomes=None):
    """Rows of written answers, right where they are the gold ones but for space around them."""
    tokens = tokens or [10] * len(texts)
    outcomes = outcomes or [
        float(text.strip() == gold.strip()) for text, gold in zip(texts, task.golds, strict=True)
    ]
    return [
        row(number, [Generated(text, said=(0,) * count)], outcome)
        for number, (text, count, outcome) in enumerate(zip(texts, tokens, outcomes, strict=True))
    ]


def choices_rows(task, likelihoods, tokens=1):
    """Rows of a multiple choice, right where the gold position is the likeliest."""
    return [
        row(
            number,
            [Scored(value, False, tokens) for value in values],
            float(int(np.argmax(values)) == int(task.golds[number])),
        )
        for number, values in enumerate(likelihoods)
    ]


def likelihood_rows(values, outcomes=None, tokens=40):
    """Rows of single texts; the outcome is the log-probability unless another is given."""
    outcomes = outcomes or values
    return [
        row(number, [Scored(value, outcome == 1, tokens)], outcome)
        for number, (value, outcome) in enumerate(zip(values, outcomes, strict=True))
    ]


def labels(task, intact, knocked_out):
    """The categories as words, in the order of the examples."""
    told = categorize_failures(task, intact, knocked_out)
    return [str(told.labels[example]) for example in sorted(told.labels)]
