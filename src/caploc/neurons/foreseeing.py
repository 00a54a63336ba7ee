"""What finding a study's neurons will take: tokens, passes and memory, before weights are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from caploc.engine.encoding import RequestEncoder, Span
from caploc.engine.memory import CUDA_SHARE, SHARE
from caploc.models.placement import computing_dtype, free_memory
from caploc.models.projections import text_config
from caploc.neurons.attribution import METHODS, Attribution, Batcher
from caploc.neurons.study import NamedRow, NeuronStudy, load_source
from caploc.report.exhibits import Exhibit
from caploc.stats.intervals import JsonRecord

GB = 1e9


@dataclass(frozen=True)
class ScoringPlan(JsonRecord):
    """What scoring one task's examples by one method takes.

    `passes` is the cost of an example in forward passes of the model. Of bytes `weights` are those
    of the weights, `peak` those at most beside them in the batches that will be made, and `least`
    the same where one example is read at one point at a time.
    """

    task: str
    method: str
    examples: int
    tokens: int
    longest: int
    passes: int
    weights: int
    peak: int
    least: int

    @classmethod
    def of(
        cls, task: str, spans: Sequence[Span], asked: Attribution, batcher: Batcher, weights: float
    ) -> "ScoringPlan":
        """Foresee some examples in the batches that they will be scored in."""
        longest = max(spans, key=batcher.row_bytes)
        return cls(
            task,
            asked.method,
            len(spans),
            sum(len(span.inputs) for span in spans),
            len(longest.inputs),
            asked.passes(text_config(batcher.sizer.model).num_hidden_layers),
            int(weights),
            batcher.peak(longest, asked.copies, len(spans)),
            batcher.needs.fixed + batcher.row_bytes(longest),
        )


def foresee_scoring(study: NeuronStudy) -> tuple[dict[str, Any], list[Exhibit]]:
    """Foresee every task's scores by every method; only config, tokenizer and tasks are read.

    Raises:
        UserError: if the study cannot be done.
    """
    study.check()
    weights = study.model.weights()
    model, device = weights.empty, weights.where.device
    wording = RequestEncoder(model, study.model.tokenizer())
    model.to(dtype=computing_dtype(model.config, weights.dtype))  # type: ignore[call-arg]
    share = CUDA_SHARE if device.type == "cuda" else SHARE
    memory = max(1, int(share * (free_memory(device) - weights.bytes)))
    found = []
    for task in study.tasks:
        source = load_source(study.model, task, study.options, study.examples, study.seed)
        spans = source.spans(wording)
        for method in METHODS:
            asked = replace(study.attribution, method=method)
            needs = asked.needs(model, waits=False)
            batcher = Batcher(model, study.model.batch_size, memory, needs, device)
            found.append(ScoringPlan.of(task, spans, asked, batcher, weights.bytes))
    name = study.model.name
    result = {"model": name, "device": str(device), "plans": [each.as_dict() for each in found]}
    return result, [plan_exhibit(name, found)]


def plan_exhibit(model: str, found: Sequence[ScoringPlan]) -> Exhibit:
    """Show what is foreseen, in gigabytes of a thousand million bytes."""
    rows: list[NamedRow] = [
        {
            "task": each.task,
            "method": each.method,
            "examples": f"{each.examples:,}",
            "tokens": f"{each.tokens:,}",
            "longest": f"{each.longest:,}",
            "forward passes": f"{each.passes:,.0f}",
            "tokens x passes": f"{each.tokens * each.passes:,.0f}",
            "peak": f"{(each.weights + each.peak) / GB:.2f} GB",
            "at least": f"{(each.weights + each.least) / GB:.2f} GB",
        }
        for each in found
    ]
    notes = [
        f"The weights take {found[0].weights / GB:.2f} GB of each peak; a backward pass counts as "
        "a forward pass. The peak is that of the batches that this device has room for, the least "
        "that of one example at one point at a time (--batch-size 1)."
    ]
    return Exhibit.of("plan", f"What scoring neurons of {model} will take", rows, notes)
