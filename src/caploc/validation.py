"""Does the finding hold on what it has not seen: all examples, other tasks, random heads?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from caploc.errors import BadOption
from caploc.heads import Mask, Masks
from caploc.measurement import Meter
from caploc.progress import Progress
from caploc.search import Plan
from caploc.store import Row
from caploc.tasks.task import Score, Task


@dataclass(frozen=True)
class Comparison:
    """A task's rows with no head and with the chosen heads knocked out, on the same examples."""

    task: Task
    intact: Score
    knocked_out: Score
    intact_rows: list[Row]
    knocked_out_rows: list[Row]

    def as_dict(self) -> dict[str, Any]:
        """The part of `result.json` that tells of this task."""
        return {
            "name": self.task.name,
            "metric": self.task.metric,
            "higher_is_better": self.task.higher_is_better,
            "intact": asdict(self.intact),
            "knocked_out": asdict(self.knocked_out),
        }


def compare(meter: Meter, knocked_out: Mask, limit: int | None, progress: Progress) -> Comparison:
    """Score a task intact and under the mask, on its first `limit` examples (None: all)."""
    examples = meter.task.first(limit)
    intact = meter.under(knocked_out & False, examples, progress, f"{meter.task.name}, intact")
    cut = meter.under(knocked_out, examples, progress, f"{meter.task.name}, knocked out")
    return Comparison(meter.task, meter.score(intact), meter.score(cut), intact, cut)


def controls(
    meter: Meter, chosen: Mask, masks: Masks, examples: Sequence[int], progress: Progress
) -> dict[str, Any] | None:
    """Scores with random other heads knocked out, beside the chosen heads' on the same examples.

    None without masks, or if one is empty.
    """
    if not len(masks) or not masks.any(axis=1).all():
        return None
    rows = meter.measure(Plan.crossed(masks, examples), progress, "random controls")
    count = len(examples)
    scores = [
        meter.score(rows[first : first + count]).score for first in range(0, len(rows), count)
    ]
    cut = meter.under(chosen, examples, progress, "chosen heads")
    known = [score for score in scores if score is not None]
    return {
        "draws": len(masks),
        "examples": count,
        "chosen": meter.score(cut).score,
        "scores": scores,
        "mean": fmean(known) if known else None,
        "sd": stdev(known) if len(known) > 1 else None,
    }


def check_limit(limit: int | None) -> None:
    """Refuse a limit that leaves nothing.

    Raises:
        BadOption: if it is below 1.
    """
    if limit is not None and limit < 1:
        raise BadOption(f"--limit must be 1 or more; got {limit}.")
