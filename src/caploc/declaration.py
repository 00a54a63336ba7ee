"""What a study is asked to do: one task on one model with one method, declared and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from caploc import designs
from caploc.components import Grid, Heads, find_grid
from caploc.errors import BadOption
from caploc.exclusion import resolve_excluded
from caploc.modes import Intervention
from caploc.naming import are_twins
from caploc.options import MOST_MASKS, StudyFields, record
from caploc.result import Subsets
from caploc.search import METHODS, Problem
from caploc.tasks.catalog import check_data, check_task_name, list_twins
from caploc.tasks.defects import without_defects
from caploc.tasks.task import Request, Task
from caploc.validation import CURVED
from caploc.validation.frontier import check_sides, split_examples
from caploc.wording import called
from caploc.workbench import ModelOptions, check_task_count, load_intervention

PAPER_EXAMPLES = 100  # that the paper's methods find heads on
SCAN_EXAMPLES = 400  # that the default search draws on, at most
FINDING = 2 / 3  # of a small task's examples, to find heads on; the rest is for the check
FRESH = 600  # examples kept for the check, at most
CHECKED = 100  # of them that no search sees: the finding, controls and held-out masks are on them
FEWEST_FRESH = 20  # below which there is no check on fresh examples; so few no search sees


@dataclass(frozen=True)
class Draw:
    """A task's examples: to search on, to compare sets on, and held out, which no search sees.

    Of a task with few, all are to search on.
    """

    searched: list[int]
    fresh: list[int]
    held_out: list[int]

    @property
    def kept(self) -> list[int]:
        """Those that heads are not searched on."""
        return self.held_out + self.fresh

    @property
    def judged(self) -> list[int]:
        """Those that findings are checked on."""
        return self.held_out or self.searched


@record(frozen=True)
class Study(StudyFields):
    """A study of a model that can be loaded: what follows from what was chosen."""

    model: ModelOptions

    @property
    def seeks_set(self) -> bool:
        """Tell whether the search is to find a set; only the default one has goals."""
        return METHODS[self.method].has_goals and self.settings.goal != "heads"

    @property
    def names_sets(self) -> bool:
        """Tell whether heads are named for what they do together."""
        return self.seeks_set or METHODS[self.method].names_sets

    @property
    def seeks_specific(self) -> bool:
        """Tell whether this set must leave other tasks alone."""
        return self.seeks_set and self.settings.goal == "specific"

    @property
    def beside(self) -> tuple[str, ...]:
        """All tasks but the one that heads are searched for, each once."""
        names = dict.fromkeys((*self.twins, *self.spare, *self.other_tasks))
        return tuple(name for name in names if name != self.task)

    @property
    def named_tasks(self) -> tuple[str, ...]:
        return (self.task, *self.beside, *self.mode.tasks)

    def is_twin(self, name: str) -> bool:
        """Tell whether a task is this one in other words."""
        return name in self.twins or are_twins(name, self.task)

    def check(self, heads: Heads | None = None) -> "Study":
        """Refuse, by a UserError, what can be refused before data or weights are loaded.

        Returns the study with its budget spent, its excluded heads by name and its twins. `heads`
        are the model's, if they are known.
        """
        study = self.with_twins()
        check_data(study.options)
        check_task_count("The study", 1 + len(study.beside))
        study.mode.check_beside(study.beside)
        if study.track is not None:
            from caploc.tracking import check_tracking

            check_tracking(study.track)
        for name in study.named_tasks:
            check_task_name(name, study.options)
        check_sides(study.task, study.spare, study.twins)
        heads = study.model.check() if heads is None else heads
        grid = find_grid(study.components, heads)
        sized = study.sized(grid)
        if not study.exclude:
            return sized
        source, top = study.model.source(), study.settings.top
        excluded = resolve_excluded(study.exclude, source, heads, grid, top)
        return replace(sized, exclude=excluded)

    def with_twins(self) -> "Study":
        """Return the study with the tasks in other words that a specific set must break too."""
        twins = [name for name in self.twins if name != "none"]
        if self.seeks_specific and not self.twins:
            twins = [name for name in list_twins(self.task) if name not in self.spare]
        return replace(self, twins=tuple(twins))

    def sized(self, grid: Grid[Any]) -> "Study":
        """Turn a budget of rows into masks, or into examples, if it buys one round of them."""
        heads = grid.size
        if self.settings.top > heads:
            raise BadOption(
                f"--top {self.settings.top} is more than the {heads} {grid.COMPONENT.KIND}s of "
                f"{self.model.name}."
            )
        method, budget = METHODS[self.method], self.settings.budget
        examples = self.examples or PAPER_EXAMPLES
        if method.masks is None:
            method.check(Problem(heads, range(examples), self.settings))
            return self
        if method.draws_masks:
            designs.check_mask_size(heads, self.settings.rate)
        if budget is None:
            return self
        need = examples if method.draws_masks else method.masks(Problem(heads, (), self.settings))
        if (bought := budget // need) < 1:
            raise BadOption(
                f"--budget {budget} is too small: {self.method} needs {need} rows or more."
            )
        settings = replace(self.settings, budget=None)
        if method.draws_masks:
            if bought > MOST_MASKS:
                raise BadOption(
                    f"--budget {budget} buys {bought} masks, and {MOST_MASKS:,} are the most; "
                    "lower it, or raise --examples."
                )
            return replace(self, settings=replace(settings, masks=bought), examples=examples)
        return replace(self, settings=settings, examples=bought)

    def tasks(self) -> dict[str, Task]:
        """Load the task, the first, and those beside it, which are asked in their own way."""
        own, others = self.model.tasks([self.task], self.options), self.options.plain()
        loaded = [*own, *self.model.tasks(self.beside, others)]
        return dict(zip((self.task, *self.beside), loaded, strict=True))

    def intervention(self) -> Intervention:
        """Load what it takes to knock heads out as the mode says."""
        return load_intervention(self.model, self.mode, self.options, self.settings.seed)

    def without_defects(
        self, tasks: Mapping[str, Task], misfit: Callable[[Request], str | None]
    ) -> dict[str, Task]:
        """Leave out examples that cannot be asked as they stand, or raise BadData that names them.

        Looked at are those that the study may ask.
        """
        kept = {}
        for name, task in tasks.items():
            asked = {*task.first(self.limit)}
            if name == self.task:
                draw = self.draw(task.size)
                asked |= {*draw.searched, *draw.kept}
            elif self.seeks_specific:
                asked |= {*chain(*split_examples(task.size, self.settings.seed))}
            shown = called(task.name)
            kept[name] = without_defects(task, sorted(asked), misfit, self.leave_out, shown)
        return kept

    def draw(self, size: int) -> Draw:
        """Draw the examples of the task, of so many; raises BadOption if none is left to score."""
        most = size - FEWEST_FRESH if size >= 2 * FEWEST_FRESH else size
        usual = min(SCAN_EXAMPLES, max(1, round(FINDING * size)), most)
        scans = METHODS[self.method].has_goals
        count = self.examples or (usual if scans else min(PAPER_EXAMPLES, size))
        searched = designs.draw_examples(size, count, seed=self.settings.seed)
        if self.disjoint and len(searched) == size:
            raise BadOption(
                f"--disjoint leaves none of the {size} examples of {self.task} to judge on; lower "
                "--examples."
            )
        # more examples begin with those of fewer
        longer = designs.draw_examples(size, min(size, count + FRESH), seed=self.settings.seed)
        kept = longer[count:] if len(longer) >= count + FEWEST_FRESH else []
        # half of them are for comparing sets, where there are sets to compare
        most = max(len(kept) // 2, FEWEST_FRESH) if self.names_sets else len(kept)
        held_out = min(CHECKED, most)
        return Draw(searched, kept[held_out:], kept[:held_out])

    def curve_examples(
        self, tasks: Mapping[str, Task], subsets: Subsets | None
    ) -> dict[str, list[int]]:
        """Choose those of each task that its curve is drawn on: of the checks, `CURVED` at most.

        `subsets` says whether a smaller set is named, which leaves half of its examples.
        """
        own = self.draw(tasks[self.task].size).judged[: min(CHECKED, self.limit or CHECKED)]
        if subsets is not None and subsets.found != subsets.named:
            own = own[1::2]
        sides = {*self.twins, *self.spare} if self.seeks_specific else set()
        chosen = {
            name: split_examples(task.size, self.settings.seed)[1][: self.limit]
            if name in sides
            else task.first(self.limit)
            for name, task in tasks.items()
        }
        return {name: each[:CURVED] for name, each in (chosen | {self.task: own}).items()}
