"""Is the intact model asked as it should be? What its wrong answers have in common."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from caploc.store import Row
from caploc.tasks.task import Generated, LogLikelihood, Response, Scored, Task, responses_from_json
from caploc.validation.lost import is_loop

MOSTLY = 0.5  # share of the answers that are wrong, and of these of one kind, to be told
FEWEST = 5  # wrong answers of a kind
UNLIKELY = 0.02  # probability of all choices together below which none is what the model would say

CAUSES = {
    "empty": "a stop string comes first, or the prompt does not ask for this answer; see `until` "
    "in the task's generation_kwargs, and whether the model wants its chat template "
    "(--chat-template)",
    "cut off": "too few tokens are allowed; raise max_gen_toks in the task's generation_kwargs",
    "repeating one piece of text": "the model does not know where to stop; see `until`, and "
    "whether it wants its chat template (--chat-template)",
    "choices that the model would not say": "the choices' text and the prompt do not fit; see "
    "whether a space belongs between them (--delimiter)",
    "begun with a space by the model": "a space belongs between prompt and answer; set it with "
    "--delimiter ' ' (join=' ' in Python)",
}


def describe_trouble(task: Task, rows: Sequence[Row]) -> str | None:
    """Say what most wrong answers of the intact model have in common, with the likely cause.

    None where at least half of the answers are right, or the wrong ones are of no one kind.
    """
    scored = [row for row in rows if np.isfinite(row.outcome)]
    wrong = [row for row in scored if row.outcome <= 0]
    if len(wrong) < max(MOSTLY * len(scored), FEWEST):
        return None
    kinds = Counter(kind for row in wrong for kind in kinds_of(task, row))
    if not kinds:
        return None
    kind, count = kinds.most_common(1)[0]
    if count < max(MOSTLY * len(wrong), FEWEST):
        return None
    return (
        f"{task.name}: the intact model gets {len(wrong)} of {len(scored)} examples wrong, and "
        f"{count} of these answers are {kind}. Probably {CAUSES[kind]}."
    )


def kinds_of(task: Task, row: Row) -> Iterator[str]:
    """Yield the kinds that a wrong answer is of."""
    responses = responses_from_json(row.responses)
    first = responses[0]
    if isinstance(first, Generated):
        if not first.text.strip():
            yield "empty"
        elif is_loop(first.text):
            yield "repeating one piece of text"
        elif first.end is None:
            yield "cut off"
    elif len(responses) > 1 and probability(responses) < UNLIKELY:
        yield "choices that the model would not say"
    elif len(responses) == 1 and lacks_space(task, row.number, first):
        yield "begun with a space by the model"


def probability(responses: Sequence[Response]) -> float:
    """Add up the probabilities of all choices."""
    return float(np.exp([r.logprob for r in responses if isinstance(r, Scored)]).sum())


def lacks_space(task: Task, example: int, scored: Scored) -> bool:
    """Tell whether the model would begin with a space where neither prompt nor answer has one."""
    request = task.requests(example)[0]
    if not isinstance(request, LogLikelihood) or not scored.instead.startswith(" "):
        return False
    return not request.context[-1:].isspace() and not request.continuation[:1].isspace()
