"""Options of `caploc locate` that most runs leave as they are, grouped as its help shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from caploc.cli.options import (
    ONE_OR_MORE,
    Limit,
    check_count,
    numbers,
    option,
    split_names,
    task_option,
)
from caploc.errors import BadOption, pick
from caploc.naming import placed

if TYPE_CHECKING:
    from caploc.options import Settings

READ_BY = {  # which methods read an option that the others would pass over in silence
    "goal": ("scan",),
    "masks": ("css", "csb"),
    "rate": ("css", "csb"),
    "mask_counts": ("css-search", "csb-search"),
    "rates": ("css-search", "csb-search"),
    "estimator": ("css", "csb", "one-shot"),
}
OF_SPECIFIC = ("price", "twin")


def check_read(context: typer.Context, methods: Sequence[str], goal: str) -> None:
    """Refuse an option that none of these methods, or not this goal, would read.

    Raises:
        UnknownName: for a method that is none.
        BadOption: with the option, and what reads it.
    """
    from caploc.search import METHODS

    for method in methods:
        pick(METHODS, method, "method")
    changed = {
        each.name: each.opts[0]
        for each in context.command.params
        if each.name is not None and context.params.get(each.name) not in (None, each.default)
    }
    for name, readers in READ_BY.items():
        if name in changed and not set(methods) & set(readers):
            raise BadOption(
                f"{changed[name]} is for --method {', '.join(readers)}; got --method "
                f"{', '.join(methods)}, which does not read it. Leave it out, or name a method "
                "that does."
            )
    for name in OF_SPECIFIC:
        if name in changed and goal != "specific":
            raise BadOption(
                f"{changed[name]} is for --goal specific; got --goal {goal}. Leave it out, or name "
                "that goal."
            )


@dataclass(frozen=True)
class SpecificGroup:
    """What a specific set must break and leave alone."""

    panel: ClassVar = "A specific set"
    spare: Annotated[
        list[str] | None, task_option("A task that --goal specific must leave alone")
    ] = None
    twin: Annotated[
        list[str] | None,
        task_option(
            "The task in other words, for --goal specific to break as well (if absent, the "
            "one that caploc brings; none: the task alone)"
        ),
    ] = None
    price: Annotated[
        float, option("The most that --goal specific may cost a spared task; .02 is 2 points.")
    ] = 0.02

    def settings(self, goal: str) -> dict[str, Any]:
        """Return what a search with this goal may cost."""
        from caploc.search.settings import check_spared

        check_spared(goal, split_names(self.spare))
        return {"price": self.price}

    def tasks(self) -> dict[str, Any]:
        """Return the tasks of both kinds, as a study names them."""
        return {
            "spare": tuple(map(placed, split_names(self.spare))),
            "twins": tuple(map(placed, split_names(self.twin))),
        }


@dataclass(frozen=True)
class SearchGroup:
    """How heads are searched for."""

    panel: ClassVar = "Search"
    method: Annotated[
        list[str] | None,
        option(
            f"scan (if absent), css, csb, css-search, csb-search, one-shot, greedy; {ONE_OR_MORE}.",
        ),
    ] = None
    top: Annotated[int, option("Heads to name at most.", callback=check_count)] = 5
    examples: Annotated[
        int | None, option("Examples to find heads on; depends on method and task if absent.")
    ] = None
    exclude: Annotated[
        list[str] | None,
        option(
            "Heads never to knock out: L0H6,L3H1, a file of heads, or universal; may be repeated."
        ),
    ] = None
    seed: Annotated[int, option("Seed of examples, masks and controls.")] = 0


@dataclass(frozen=True)
class PublishedGroup:
    """What the paper's methods take besides."""

    panel: ClassVar = "The paper's methods"
    masks: Annotated[int, option("Masks to draw (css, csb).")] = 100
    rate: Annotated[float, option("Share of heads in a mask (css, csb).")] = 0.02
    mask_counts: Annotated[str, option("Numbers of masks to try (css-search, csb-search).")] = (
        "100,200,300,400"
    )
    rates: Annotated[
        str | None, option("Rates to try (css-search, csb-search); .01 to .1 if absent.")
    ] = None
    estimator: Annotated[
        str | None,
        option(
            "For css, csb, one-shot: lasso, lasso-cv, logistic, paired.",
        ),
    ] = None

    def settings(self, search: SearchGroup, **more: Any) -> "Settings":
        """Put the settings of a search together, checked; `more` are further fields."""
        from caploc.options import Settings

        settings = Settings(
            masks=self.masks,
            rate=self.rate,
            mask_counts=numbers(self.mask_counts, int),
            rates=numbers(self.rates, float) if self.rates else None,
            estimator=self.estimator,
            top=search.top,
            seed=search.seed,
            **more,
        )
        return settings


@dataclass(frozen=True)
class CheckGroup:
    """How a finding is checked."""

    panel: ClassVar = "Checks"
    controls: Annotated[int, option("Random sets of heads to compare with.")] = 20
    limit: Limit = None
    leave_out: Annotated[
        float,
        option("Share of a task's examples that may be left out: empty, too long, without answer."),
    ] = 0.0
    disjoint: Annotated[
        bool, option("Score only on examples that the search did not see.", "--disjoint")
    ] = False
    quick: Annotated[
        bool,
        option("Skip the curve and the search for a more specific part of the set.", "--quick"),
    ] = False
