"""Scan, then trial: the default search, two stages of fixed sizes.

*Scan*: every head is knocked out alone on a few examples that the model gets right, other examples
for other heads. One pass tells by how much the log-odds of the right answer change, its stop
included, and whether it is still the likeliest text. *Trial*: the heads that the scan puts
first are knocked out alone on the same fresh examples and scored by the task's own metric. Effects,
intervals and q-values are those of the trial, whose size is fixed beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from caploc import designs
from caploc.recovery import CONFIDENCE, falls_of_each, false_discovery_rates, fit_paired
from caploc.recovery.estimate import Estimate, Measurements, PerHead, is_binary, right_of, survived
from caploc.search.plan import Asking, Found, Plan, Problem, ScanRecord, Search, intact_plan
from caploc.search.settings import KNOBS
from caploc.search.summary import NOTHING_SCORED, nothing_found, nothing_to_lose

LEVEL = 0.05  # false discovery rate at which a head is named
CERTAIN = 1e-7  # a log-probability nearer to 0 is rounding
BREAKS = 0.75  # share of right answers that a head which breaks the task takes at least


@dataclass(frozen=True)
class Sizes:
    """How many rows both stages take.

    In the scan every head is asked `scanned` examples. In the trial at least `heads` heads are
    asked up to `trial` examples each, `most` rows in all.
    """

    scanned: int
    heads: int
    trial: int
    most: int

    @classmethod
    def of(cls, problem: Problem) -> "Sizes":
        """Divide the budget: the trial's usual size, then the scan; the trial gets what is left.

        Without a budget both stages have their usual size, and heads that broke what the scan asked
        are tried on top of the others.
        """
        every = len(problem.eligible)
        heads = min(KNOBS.tried * problem.settings.top, every)
        budget = problem.settings.budget
        if budget is None:
            most = (1 + KNOBS.breaking) * heads * KNOBS.trial
            return cls(KNOBS.scanned, heads, KNOBS.trial, most)
        spare = budget - heads * KNOBS.trial
        scanned = int(np.clip(spare // every, KNOBS.least_scanned, KNOBS.most_scanned))
        rest = budget - scanned * every
        return cls(scanned, heads, max(rest // heads, 1), rest)

    def each(self, tried: int) -> int:
        """How many examples each head is tried on, if so many are tried."""
        return max(min(self.trial, self.most // max(tried, 1)), 1)


@dataclass
class Scan:
    """What single heads, or sets of them, take from right answers of one task.

    `probe` is that of the task's signal, which is `linear` if it is the outcome itself. `before`
    holds the signal of each right example with nothing but the `base` knocked out. For
    each column and each of its rows `fall` is the fall of the log-odds, which ranks heads also
    where the model is sure of itself; `lost` the share of the answer's probability that is gone;
    `kept` whether the answer is still the likeliest.
    """

    problem: Problem
    probe: str
    right: Sequence[int]
    linear: bool = False
    base: tuple[int, ...] = ()
    before: dict[int, float] = field(default_factory=dict)
    fall: Float[np.ndarray, "heads rows"] = field(init=False)
    lost: Float[np.ndarray, "heads rows"] = field(init=False)
    kept: Float[np.ndarray, "heads rows"] = field(init=False)

    def __post_init__(self) -> None:
        self.fall = self.lost = self.kept = np.full((self.problem.heads, 0), np.nan)

    def open(self) -> Asking[None]:
        """Ask how strongly the model holds on to its right answers; drop those it would not give.

        A few are not the likeliest text once read in one pass: their tokens were others.
        """
        if not self.right:
            return
        masks = self.problem.without_each([self.base])
        measured = yield Plan.crossed(self.probe, masks, self.right, "intact signal")
        self.before = measured.where(measured.kept_or_unknown != 0).by_example()
        self.right = [example for example in self.right if example in self.before]

    def ask(self, heads: Sequence[int], count: int, offset: int = 0) -> Asking[int]:
        """Knock out each head alone on `count` right examples; return the number of rows.

        Examples are dealt in turn, so that neighbours get different ones and each is used alike.
        """
        if not self.right or not len(heads):
            return 0
        count = min(count, len(self.right))
        dealt = deal(self.right, len(heads), count, offset)
        masks = designs.singles(self.problem.heads)[list(heads)]
        masks[:, list(self.base)] = True
        mask = np.repeat(np.arange(len(heads)), count)
        measured = yield Plan(self.probe, masks, mask, dealt.ravel(), "scan")
        told = self.fall_of(measured), self.lost_by(measured), measured.kept_or_unknown
        self.fall, self.lost, self.kept = (
            np.concatenate([known, self.by_head(heads, values)], axis=1)
            for known, values in zip((self.fall, self.lost, self.kept), told, strict=True)
        )
        return len(mask)

    def by_head(
        self, heads: Sequence[int], values: Float[np.ndarray, " _"]
    ) -> Float[np.ndarray, "heads _"]:
        """Spread the values of these heads, as many for each, over all heads; NaN for others."""
        table = np.full((self.problem.heads, len(values) // len(heads)), np.nan)
        table[list(heads)] = values.reshape(len(heads), -1)
        return table

    def before_of(self, measured: Measurements) -> Float[np.ndarray, " rows"]:
        """List the signal before the knockout, row by row; NaN where that is not known."""
        return np.array([self.before.get(int(e), np.nan) for e in measured.example])

    def fall_of(self, measured: Measurements) -> Float[np.ndarray, " rows"]:
        """Compute the fall of the answer's log-odds, row by row; of a `linear` signal its own."""
        was = self.before_of(measured)
        if self.linear:
            return was - measured.outcome
        return log_odds(was) - log_odds(measured.outcome)

    def lost_by(self, measured: Measurements) -> Float[np.ndarray, " rows"]:
        """Compute the share of the right answer's probability that is gone, row by row.

        It lies between 0 and 1: `1 - exp(after - before)` of log-probabilities, 0 where the answer
        grew likelier. Of a `linear` signal it is the fall itself.
        """
        change = measured.outcome - self.before_of(measured)
        return -change if self.linear else 1 - np.exp(np.minimum(change, 0.0))

    def resampled(self, random: np.random.Generator) -> "Scan":
        """Draw as many of each head's rows anew, with replacement."""
        again, drawn = replace(self), random.integers(self.fall.shape[1], size=self.fall.shape)
        again.fall, again.lost, again.kept = (
            np.take_along_axis(rows, drawn, axis=1) for rows in (self.fall, self.lost, self.kept)
        )
        return again

    @property
    def asked(self) -> Int[np.ndarray, " heads"]:
        """Rows of each head that could be scored."""
        return np.isfinite(self.lost).sum(axis=1)

    @property
    def broken(self) -> Int[np.ndarray, " heads"]:
        """Of these, the answers that are others than before; none where that is not known."""
        return np.nansum(1 - self.kept, axis=1).astype(int)

    @property
    def mean_lost(self) -> PerHead:
        """Mean share of the answer's probability that each head takes; NaN where none was asked."""
        return self.mean_of(self.lost)

    @property
    def mean_fall(self) -> PerHead:
        """Mean fall of the answer's log-odds without each head; NaN where none was asked."""
        return self.mean_of(self.fall)

    @property
    def mean_change(self) -> PerHead:
        """Mean change of the answer's log-odds without each head; NaN where none was asked.

        A gain counts as a fall: a head that tilts the model to one of two words takes from some
        answers what it gives to others, and those asked may all be of one word. Of a `linear`
        signal it is the mean fall.
        """
        return self.mean_of(self.fall if self.linear else np.abs(self.fall))

    def mean_of(self, values: Float[np.ndarray, "heads rows"]) -> PerHead:
        """Average what is known of each head; NaN where nothing is."""
        total = np.nansum(values, axis=1)
        return np.divide(total, self.asked, out=np.full(len(total), np.nan), where=self.asked > 0)

    def order(self) -> list[int]:
        """Columns of the heads that were scanned, the one without which odds change most first."""
        mean = self.mean_change
        order = np.argsort(-np.nan_to_num(mean, nan=-np.inf), kind="stable")
        return [int(column) for column in order if np.isfinite(mean[column])]


def log_odds(logprob: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """Turn log-probabilities into log-odds, as far as single precision tells them from certain."""
    logprob = np.minimum(logprob, -CERTAIN)
    return logprob - np.log(-np.expm1(logprob))


def deal(
    examples: Sequence[int], heads: int, count: int, offset: int = 0
) -> Int[np.ndarray, "heads count"]:
    """Deal `count` different examples to each of the heads, all examples about equally often."""
    places = (offset + np.arange(heads * count).reshape(heads, count)) % len(examples)
    return np.asarray(examples)[places]


@dataclass
class Trial:
    """Heads knocked out alone on the same fresh examples, scored by the task's own metric."""

    heads: list[int]
    intact: dict[int, float]
    seen: Measurements

    def estimate(self) -> Estimate:
        """Effects, 95 % intervals and q-values over the heads tried; NaN for all others.

        q is of a fall: one-sided p-values, adjusted for the number of heads tried.
        """
        p = np.full(self.seen.masks.shape[1], np.nan)
        p[self.heads] = falls_of_each(self.table(), binary=is_binary(self.intact))
        estimate = fit_paired(self.seen, self.intact, level=CONFIDENCE)
        return replace(estimate, q=false_discovery_rates(p))

    def joined(self, other: "Trial") -> "Trial":
        """This trial and one of other heads on the same examples."""
        return Trial([*self.heads, *other.heads], self.intact, self.seen.joined(other.seen))

    def critical(self) -> list[int]:
        """List the heads without which, for sure, hardly a right answer is left."""
        right = [place for place, outcome in enumerate(self.intact.values()) if outcome > 0]
        if not right or not is_binary(self.intact):
            return []
        lost = np.nanmean(self.table()[:, right] < 0, axis=1)
        breaks = (lost >= BREAKS) & (self.estimate().q[self.heads] < LEVEL)
        return [column for column, sure in zip(self.heads, breaks, strict=True) if sure]

    def table(self) -> Float[np.ndarray, "heads examples"]:
        """The change of every example's outcome without each head, in the order of `heads`."""
        examples = [*self.intact]
        place = {example: at for at, example in enumerate(examples)}
        change = np.full((len(self.heads), len(examples)), np.nan)
        cut = self.seen.masks.argmax(axis=1)[self.seen.mask]
        row_of = {column: row for row, column in enumerate(self.heads)}
        for column, example, outcome in zip(
            cut.tolist(), self.seen.example.tolist(), self.seen.outcome.tolist(), strict=True
        ):
            if example in place:
                change[row_of[column], place[example]] = outcome - self.intact[example]
        return change


def split(problem: Problem, trial: int) -> tuple[list[int], list[int]]:
    """Divide the examples into those of the scan and those of the trial, which share none.

    The scan gets a third of them, the trial the rest or as many as it takes.
    """
    order = designs.generator(problem.settings.seed).permutation(problem.examples).tolist()
    scanned = max(len(order) // 3, len(order) - trial)
    return order[:scanned], order[scanned:]


def to_try(scan: Scan, heads: int) -> list[int]:
    """Choose the heads of a trial: the first of the scan, and what broke half its answers."""
    order, broke_half = scan.order(), 2 * scan.broken >= scan.asked
    breaking = [column for column in order if broke_half[column]]
    most = (1 + KNOBS.breaking) * heads
    return list(dict.fromkeys([*order[:heads], *breaking]))[:most]


def scan_heads(problem: Problem, sizes: Sizes, right: Sequence[int]) -> Asking[Scan]:
    """Scan every head that may be knocked out."""
    scan = Scan(problem, problem.signal, right, problem.signal == problem.probe)
    yield from scan.open()
    yield from scan.ask(problem.eligible, sizes.scanned)
    return scan


def try_heads(problem: Problem, heads: Sequence[int], examples: Sequence[int]) -> Asking[Trial]:
    """Knock out each of the heads alone on all of these examples."""
    intact = (yield intact_plan(problem, problem.probe, examples)).by_example()
    masks = designs.singles(problem.heads)[list(heads)]
    seen = yield Plan.crossed(problem.probe, masks, list(examples), "trial")
    return Trial(list(heads), intact, seen)


def named(estimate: Estimate, top: int, excluded: Sequence[int] = ()) -> list[int]:
    """List up to `top` columns without which the outcome surely falls, the largest fall first."""
    sure = (estimate.q < LEVEL) & (estimate.effect < 0) & (estimate.high < 0)
    order = [column for column in estimate.order() if sure[column] and column not in excluded]
    return order[:top]


def find_universal(problem: Problem, columns: Sequence[int]) -> Asking[dict[int, str]]:
    """Find which of these heads, each alone, takes half of what is right in another task too.

    Of few right answers half may be lost by chance: by the exact test something is lost for sure.
    Returns the probe of the first such task by column.
    """
    breaks: dict[int, str] = {}
    for probe, examples in problem.elsewhere.items():
        left = [column for column in columns if column not in breaks]
        if not len(examples) or not left:
            continue
        intact = (yield intact_plan(problem, probe, examples)).by_example()
        right = right_of(intact)[: KNOBS.elsewhere]
        if not right:
            continue
        masks = designs.singles(problem.heads)[left]
        measured = yield Plan.crossed(probe, masks, right, "another task")
        alive = survived(measured, intact).reshape(len(left), len(right))
        sure = falls_of_each(alive - 1.0, binary=True) < LEVEL
        found = sure & (alive.mean(axis=1) <= 1 - KNOBS.universal)
        breaks |= {column: probe for column, broke in zip(left, found, strict=True) if broke}
    return breaks


def stability(
    scan: Scan, trial: Trial, heads: int, excluded: Sequence[int] = ()
) -> tuple[float, PerHead]:
    """Search again on resampled examples: the mean Jaccard of the sets, and each head's share.

    100 times the answers that each head was scanned on and the trial's examples are drawn with
    replacement, `heads` or more are chosen by the scan, and the surest are named; every pair of
    named sets is compared (Méloux et al., arXiv 2510.00845, call .8 the least for a stable
    circuit). A head that was not tried takes the rows of one that it drove out of the trial.
    """
    settings, change = scan.problem.settings, trial.table()
    random = designs.generator(settings.seed)
    binary = bool(np.isin(change[np.isfinite(change)], (-1.0, 0.0, 1.0)).all())
    row_of = {column: row for row, column in enumerate(trial.heads)}
    members = np.zeros((KNOBS.resamples, scan.problem.heads), dtype=bool)
    for sample in members:
        tried = to_try(scan.resampled(random), heads)
        new = [column for column in tried if column not in row_of]
        gone = [column for column in trial.heads if column not in tried]
        lent = row_of | {ours: row_of[theirs] for ours, theirs in zip(new, gone, strict=False)}
        columns = np.array([column for column in tried if column in lent], dtype=int)
        examples = random.integers(change.shape[1], size=change.shape[1])
        drawn = change[[lent[column] for column in columns]][:, examples]
        mean = np.nan_to_num(drawn).mean(axis=1)
        p = falls_of_each(drawn, binary=binary)
        sure = (false_discovery_rates(p) < LEVEL) & (mean < 0) & ~np.isin(columns, list(excluded))
        order = np.argsort(mean, kind="stable")
        sample[columns[order[sure[order]][: settings.top]]] = True
    return mean_overlap(members), members.mean(axis=0)


def mean_overlap(members: Bool[np.ndarray, "samples heads"]) -> float:
    """Mean Jaccard of every two samples' sets; two empty ones are alike."""
    sizes, shared = members.sum(axis=1), members.astype(int) @ members.T.astype(int)
    either = sizes[:, None] + sizes - shared
    jaccard = np.divide(shared, either, out=np.ones(shared.shape), where=either > 0)
    return float(jaccard[np.triu_indices(len(members), 1)].mean())


def scan_then_trial(problem: Problem) -> Search:
    """Find the heads that matter most alone."""
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    if hopeless := nothing_to_lose(problem, intact):
        return nothing_found(problem, hopeless)
    sizes = Sizes.of(problem)
    scanned_on, tried_on = split(problem, sizes.trial)
    right = [example for example in right_of(intact) if example in {*scanned_on}]
    scan = yield from scan_heads(problem, sizes, right)
    if not scan.order():
        return nothing_found(problem, NOTHING_SCORED)
    heads = to_try(scan, sizes.heads)[: max(sizes.heads, sizes.most // KNOBS.least_tried)]
    trial = yield from try_heads(problem, heads, tried_on[: sizes.each(len(heads))])
    estimate = trial.estimate()
    sure = named(estimate, problem.heads)
    asked = sure[: 2 * problem.settings.top]
    breaks = yield from find_universal(problem, asked)
    chosen = [column for column in asked if column not in breaks][: problem.settings.top]
    stable, share = stability(scan, trial, sizes.heads, [*breaks])
    chance = np.where(np.isin(np.arange(problem.heads), trial.heads), share, np.nan)
    tried = sorted(trial.heads, key=lambda column: float(estimate.effect[column]))
    rest = [column for column in scan.order() if column not in trial.heads]
    return Found(
        chosen=chosen,
        ranking=problem.rank(list(dict.fromkeys([*chosen, *tried, *rest]))),
        estimate=replace(estimate, top_chance=chance),
        seen=trial.seen,
        critical=trial.critical(),
        universal=[*breaks],
        breaks_task=breaks,
        stages=ScanRecord(
            budget=problem.settings.budget,
            rows=int(scan.asked.sum()) + len(trial.seen.outcome),
            scanned=scan.asked,
            broken=scan.broken,
            lost=scan.mean_lost,
            tried=trial.heads,
            tried_on=len(trial.intact),
            stability=stable,
        ),
        notes=[] if sure else [nobody(trial)],
    )


def nobody(trial: Trial) -> str:
    """Say that no head is named, and on what that rests."""
    examples = len(trial.intact)
    few = "So few examples show hardly any effect: give more, or a larger --budget."
    together = (
        "Heads that cover for each other do so only together: look for a set with --goal set."
    )
    return (
        f"No head is needed beyond doubt: none of the {len(trial.heads)} tried alone, on "
        f"{examples} examples, surely lowers the score. "
        f"{few if examples < KNOBS.least_tried else together}"
    )
