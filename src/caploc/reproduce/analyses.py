"""What the paper says in words, measured: sharing, scale, ways to fail, the price of choosing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import hypot
from typing import Any

from caploc.components import Head
from caploc.errors import BadOption
from caploc.report import charts
from caploc.report.exhibits import NOTHING, Exhibit, Row, Value
from caploc.reproduce.exhibits import SHARED, costs, palette
from caploc.reproduce.laboratory import Heads, Lab
from caploc.reproduce.preset import Benchmark, PresetModel
from caploc.reproduce.selection import (
    able,
    fill_exhibit,
    filtered_note,
    format_score,
    general,
    left_out,
    named_heads,
    score_value,
    search_own,
    short_note,
    universal_heads,
)
from caploc.search.published import tie_note
from caploc.stats.chance import Chance, overlaps
from caploc.stats.localization import (
    FEWEST_MODELS,
    WIDTH,
    Scores,
    Strength,
    localization,
    mean_strength,
    trend,
)

LONGEST = 90  # characters of an answer shown in a cell
KINDS = 4  # of answers shown in a cell
STRENGTH = "localization strength"


def sharing_exhibit(lab: Lab) -> Exhibit:
    """Heads and key-value groups that benchmarks share, beside what chance would give."""
    rows: list[Row] = []
    short: list[str] = []
    for model in lab.preset.models:
        found: dict[str, list[Head]] = {}
        for benchmark in able(lab, model, lab.preset.localized):
            named = named_heads(lab, model, benchmark)
            short += short_note(lab, model, benchmark, named)
            if named:
                found[benchmark.label] = named
        for pair in overlaps(found, model.grid, draws=lab.draws):
            names = " ".join(pair.heads) or NOTHING
            heads, groups = against_chance(pair.head_chance), against_chance(pair.group_chance)
            rows.append((model.label, f"{pair.first}, {pair.second}", names, *heads, *groups))
    return fill_exhibit(lab, "sharing", rows, after=short)


def against_chance(chance: Chance) -> Row:
    """How many, how many by chance, and how surprising, from the whole grid and within layers."""
    return (
        Value(chance.count, digits=0),
        Value(chance.expected, digits=2),
        Value(chance.p, digits=4),
        Value(chance.p_in_layers, digits=4),
        Value(chance.p_of_pairs, digits=4),
    )


def scale(lab: Lab) -> Exhibit:
    """How strongly each capability is localized, model by model, and the trend with size."""
    models = lab.preset.models
    sizes = {model.label: float(model.parameters) for model in models}
    every: dict[str, dict[str, Strength]] = {}
    for benchmark in lab.preset.localized:
        found = {model.label: strength(lab, model, benchmark) for model in models}
        every[benchmark.label] = {label: each for label, each in found.items() if each}
    shared = [each for each in every.values() if len(each) == len(models)]
    if len(shared) > 1 and len(models) > 1:
        every[SHARED] = {label: mean_strength([each[label] for each in shared]) for label in sizes}
    rows: list[Row] = []
    notes = []
    for name, strengths in every.items():
        for label, size in sizes.items():
            one = strengths.get(label)
            value = Value(one.strength, one.stderr) if one else Value(None)
            rows.append((name, label, Value(size / 1e9), value))
        if len(models) >= FEWEST_MODELS:
            enough = len(strengths) >= FEWEST_MODELS
            said = in_words(strengths, sizes) if enough else "too few models for a trend."
            notes.append(f"{name}: {said}")
    if len(models) < FEWEST_MODELS:
        notes.append(f"A trend with size takes {FEWEST_MODELS} models or more.")
    notes += [filtered_note(lab), *left_out(lab)]
    exhibit = fill_exhibit(lab, "scale", rows, after=notes)
    curves = {
        name: [(sizes[label] / 1e9, each.strength, each.stderr) for label, each in points.items()]
        for name, points in every.items()
    }
    draw = partial(charts.curves, curves, across="billions of parameters", up=STRENGTH, zero=True)
    draw = partial(draw, logarithmic=True, palette=palette(lab.preset))
    return replace(exhibit, draw=draw if len(models) > 1 else None)


def in_words(strengths: Mapping[str, Strength], sizes: Mapping[str, float]) -> str:
    """The trend with size as a note: of ranks, and from the smallest model to the largest."""
    told = trend(strengths, sizes)
    least, most = (strengths[told.models[end]] for end in (0, -1))
    rise, half = most.strength - least.strength, WIDTH * hypot(most.stderr, least.stderr)
    change = (
        f"from {told.models[0]} to {told.models[-1]} it changes by {rise:+.3f} (95 % interval over "
        f"examples {rise - half:+.3f} to {rise + half:+.3f})."
    )
    if told.rho is None:
        return f"no rank correlation with size, the strengths being equal; {change}"
    return (
        f"rank correlation with size {told.rho:+.2f}, two-sided p {told.p:.3f}, which with "
        f"{len(told.models)} models cannot be below {told.least_p:.3f}; {change}"
    )


def strength(lab: Lab, model: PresetModel, benchmark: Benchmark) -> Strength | None:
    """How localized a benchmark is; None where a score is missing or no better than chance.

    None too where no heads are looked for, for the model cannot do it, or none are found.
    """
    if not able(lab, model, [benchmark]):
        return None
    if not (heads := named_heads(lab, model, benchmark)):
        return None
    scores = []
    for found in (lab.score(model, benchmark, heads), general(lab, model, heads)):
        known = (found.intact, found.intact_stderr, found.score, found.stderr)
        if None in known:
            return None
        scores.append(Scores(*known, found.drop_stderr, found.chance))  # type: ignore[arg-type]
    try:
        return localization(*scores)
    except BadOption:
        return None


def failures_exhibit(lab: Lab) -> Exhibit:
    """How a model fails without a benchmark's own heads, and without each universal head."""
    rows: list[Row] = []
    model = lab.preset.leader
    for benchmark in able(lab, model, lab.preset.localized):
        sets = [(f"{benchmark.label} heads", named_heads(lab, model, benchmark))]
        sets += [(str(head), [head]) for head in universal_heads(lab, model)]
        rows += [failing(lab, model, benchmark, name, heads) for name, heads in sets if heads]
    return fill_exhibit(lab, "failures", rows, kinds=KINDS)


def failing(lab: Lab, model: PresetModel, benchmark: Benchmark, name: str, heads: Heads) -> Row:
    """A row: the score, the verdict, the kinds of answers, one of the commonest broken ones."""
    told = lab.failures(model, benchmark, heads)
    kinds = {kind: part for kind, part in told["categories"].items() if part["count"]}
    ordered = sorted(kinds, key=lambda kind: -kinds[kind]["count"])
    shares = [f"{kind} {100 * kinds[kind]['share']:.0f} %" for kind in ordered[:KINDS]]
    return (
        benchmark.label,
        name,
        score_value(format_score(lab, model, benchmark, heads)),
        told["verdict"] or "cannot be told",
        ", ".join(shares) or NOTHING,
        next(examples(told, ordered), NOTHING),
    )


def examples(told: dict[str, Any], ordered: Sequence[str]) -> Iterator[str]:
    """How an answer of each kind that is not right begins, on one line and in quotes."""
    for kind in ordered:
        samples = told["samples"].get(kind) or []
        if kind != "right" and samples:
            text = " ".join(str(samples[0]["knocked_out"]).split())
            yield f"“{text[:LONGEST]}{'…' * (len(text) > LONGEST)}”"


def choice(lab: Lab) -> Exhibit:
    """Every setting that the main search tried, and how much its choice flatters itself."""
    preset, model = lab.preset, lab.preset.leader
    rows: list[Row] = []
    notes = []
    for benchmark in able(lab, model, preset.localized):
        told = search_own(lab, model, benchmark, preset.main).told
        for number, setting in enumerate(told.get("settings", [])):
            masks, rate = Value(setting["masks"], digits=0), Value(setting["rate"], digits=2)
            drop = Value(setting["drop"], setting["stderr"])
            on_others = Value(setting["held_out_drop"], setting["held_out_stderr"])
            kept = "kept" if number == told["chosen"] else ""
            rows.append((benchmark.label, masks, rate, drop, on_others, kept))
        if tie := tie_note(told) if "settings" in told else "":
            notes.append(f"{benchmark.label}: {tie}")
        if surplus := told.get("optimism"):
            notes.append(
                f"{benchmark.label}: the kept setting flatters itself by {surplus['value']:.3f} "
                f"(95 % interval {surplus['low']:.3f} to {surplus['high']:.3f})."
            )
    fixed = [] if rows else [f"{preset.main} has one setting, and nothing to choose."]
    return fill_exhibit(lab, "choice", rows, before=fixed, after=notes)


def rules(lab: Lab) -> Exhibit:
    """Benchmarks asked or scored in another way: intact, and without the benchmark's own heads."""
    rows: list[Row] = []
    for model in lab.preset.models:
        for benchmark in lab.preset.benchmarks:
            ways = {"as above": benchmark} if benchmark.others else {}
            ways |= {name: benchmark.asked_as(name) for name in benchmark.others}
            searched = ways and benchmark.localize and able(lab, model, [benchmark])
            heads = named_heads(lab, model, benchmark) if searched else []
            for name, way in ways.items():
                whole = score_value(lab.score(model, way, []))
                lost = costs(lab, model, None, way, heads)[:2] if heads else (Value(None),) * 2
                rows.append((model.label, benchmark.label, name, whole, *lost))
    return fill_exhibit(lab, "rules", rows)
