"""Score chosen heads, and ask more of a finished run."""

from pathlib import Path
from typing import Annotated

from caploc import console
from caploc.cli import options
from caploc.cli.options import argument, option
from caploc.declaration import ModelOptions, check_places
from caploc.errors import BadOption
from caploc.naming import default_folder
from caploc.options import Mode, TaskOptions, build
from caploc.pairs import name_task


@options.takes_groups
def evaluate(
    model: options.Model,
    task: options.Tasks,
    heads: Annotated[str, option("Heads to knock out, such as L0H5,L1H3.")] = "",
    limit: options.Limit = None,
    out: options.Out = None,
    *,
    asking: Annotated[options.Said, TaskOptions, options.NO_CODE],
    knockout: Annotated[options.Said, Mode],
    code: options.CodeGroup,
    loading: Annotated[options.Said, ModelOptions, options.Without(("model",))],
    workers: options.WorkerGroup,
    output: options.OutputGroup,
) -> None:
    """Score tasks with no head and with the given heads knocked out.

    Examples:
        caploc evaluate smollm2 --heads L14H3,L20H5 --task words/past,words/copy
        caploc evaluate meta-llama/Llama-3.2-1B-Instruct --task gsm8k,boolq --limit 100
        caploc evaluate smollm2 --heads L8H1 --task words/plural --json --out runs/plural

    Writes:
        evaluation.json: scores intact and knocked out, changes, what was lost
        rows.sqlite: every row

    See also:
        locate, curve, export
    """
    options.check_heads(heads)
    mode = build(Mode, knockout)
    asked = build(TaskOptions, asking | {"allow_code": code.allow_code})
    loaded = options.model_of(loading, model, workers=workers.parse())
    options.check_named_tasks(options.split_names(task))
    check_places(loaded, asked)
    from caploc import tables
    from caploc.components import parse_components
    from caploc.evaluation import Evaluation
    from caploc.evaluation import evaluate as run

    folder = out or default_folder(model, "evaluate", heads or "intact", *task)
    code.check()
    with output.progress() as progress:
        evaluation = Evaluation(
            loaded,
            tuple(parse_components(heads)),
            tuple(name_task(name, folder) for name in options.split_names(task)),
            asked,
            limit,
            mode,
        )
        result = run(evaluation, folder, progress, command=options.command_line())
    written = f"Written: {folder / 'evaluation.json'}"
    told = *tables.tell_losses(result), written
    output.show(result.as_dict(), tables.evaluation_table(result), *told)


@options.takes_groups
def curve(
    folder: options.RunWithHeads,
    most: Annotated[int, option("Heads to knock out at most.", callback=options.check_count)] = 10,
    *,
    may: options.PermissionGroup,
    output: options.OutputGroup,
) -> None:
    """Score tasks with 0, 1, 2, ... of a run's heads knocked out.

    `caploc locate` has drawn this for the heads that it names; here it is for more of them. The
    examples are the same: at most 100 of each task, those of the checks.

    Examples:
        caploc curve runs/addition --most 10
        caploc curve runs/addition --most 5 --json

    Writes:
        curve.json: scores of every task for each number of heads
        figures/, report.html: the run's, with the curve

    See also:
        view, interactions
    """
    from caploc.evaluation import curve as run
    from caploc.finished import FinishedRun
    from caploc.report.figures import metrics_of, tabulate_curve

    allowed = may.allowed()
    with output.progress() as progress:
        drawn = run(folder, most, progress, allowed)
    figure = f"Figure: {folder / 'figures' / 'curve.svg'}"
    result = FinishedRun.read(folder, allowed).result
    names, rows = tabulate_curve(drawn, metrics_of(result))
    output.show(drawn.as_dict(), (["knocked out", "the last", *names], rows), figure)


@options.takes_groups
def interactions(
    folder: options.RunWithHeads,
    most: Annotated[int, option("Chosen heads to look at, at most.")] = 5,
    examples: Annotated[int, option("Examples that every contrast is on.")] = 100,
    budget: Annotated[
        int | None,
        option("Rows of the screen for backups; 4 a head if absent."),
    ] = None,
    *,
    may: options.PermissionGroup,
    output: options.OutputGroup,
) -> None:
    """Ask whether a run's heads stand in for each other.

    And which heads outside the run back them up: needed once the run's heads are gone.

    Examples:
        caploc interactions runs/addition
        caploc interactions runs/addition --most 3 --examples 200 --budget 800

    Writes:
        interactions.json: contrasts of pairs and sets, with intervals and q-values
        figures/, report.html: the run's, with what is beyond doubt of them

    See also:
        universal, curve
    """
    from caploc import tables
    from caploc.finished import FinishedRun
    from caploc.interactions import interactions as run

    allowed = may.allowed()
    with output.progress() as progress:
        found = run(folder, most, examples, budget, progress, allowed)
    written = f"Written: {folder / 'interactions.json'}"
    result = FinishedRun.read(folder, allowed).result
    output.show(found, tables.interaction_table(found, result), found["limits"], written)


@options.takes_groups
def universal(
    folders: Annotated[
        list[Path],
        argument(
            "Folders of finished runs of one model, a task each, or folders of such folders.",
            callback=options.check_runs,
        ),
    ],
    family: Annotated[
        list[str] | None, option("NAME=TASK,TASK: tasks that count as one; repeat.")
    ] = None,
    examples: Annotated[int, option("Examples of each task to try heads on.")] = 100,
    out: options.Out = None,
    *,
    may: options.PermissionGroup,
    output: options.OutputGroup,
) -> None:
    """Find heads that many tasks need, and what is left of runs.

    Examples:
        caploc universal runs/demo/words-past runs/demo/words-plural
        caploc universal runs/gsm8k runs/mbpp runs/boolq --family sums=gsm8k,arithmetic

    Writes:
        universal.json: candidates, their cost on every task, each task's own heads
        rows.sqlite: every row
        heads.json: the universal heads, for `locate --exclude`

    See also:
        view, locate
    """
    from caploc.folder import finished_in

    runs = [each for folder in folders for each in finished_in(folder)]
    if len(runs) == 1:
        raise BadOption(
            f"Universal heads are those of several tasks; got one run, {runs[0]}. Name the folders "
            "of two or more runs, each of another task."
        )
    from caploc import tables
    from caploc.finished import FinishedRun
    from caploc.universal import Trials
    from caploc.universal import find_universal as run

    families, allowed = options.parse_families(family or []), may.allowed()
    trials = Trials([FinishedRun.read(each, allowed) for each in runs], families, examples)
    where = out or default_folder("universal", *(folder.name for folder in folders))
    with output.progress() as progress:
        found = run(trials, where, progress, command=options.command_line())
    if output.as_json:
        console.say_json(found)
        return
    if found["candidates"]:
        console.show_table(*tables.universal_table(found))
        console.say(tables.explain_universal(found))
    else:
        console.say("No head is among the first of two runs, and none breaks a task: none to try.")
    console.show_table(*tables.own_table(found))
    console.say(f"Written: {where / 'universal.json'}")
