"""What finding a study's neurons will take: tokens, passes and memory, before weights are read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from caploc.engine.encoding import RequestEncoder, Span
from caploc.engine.memory import CUDA_SHARE, SHARE
from caploc.models.placement import computing_dtype, free_memory
from caploc.models.projections import text_config
from caploc.neurons.attribution import METHODS, Attribution, Batcher
from caploc.neurons.study import NeuronStudy, load_source
from caploc.report.exhibits import Exhibit
from caploc.report.tabulation import fill_tables
from caploc.stats.intervals import JsonRecord


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

    Raises UserError if the study cannot be done.
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
    return result, fill_tables("plan", result)
