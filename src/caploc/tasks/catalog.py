"""From a task's name to a task: lm-eval's own, YAML files, the papers', and those on words.

First which definition a name stands for, then the task that is made of it.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from jinja2.exceptions import UndefinedError
from lm_eval.api.group import Group
from lm_eval.api.task import Task as HarnessLeaf
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind

from caploc.errors import BadData, BadOption, CaplocError, UnknownName, unknown
from caploc.naming import (
    DATA,
    OURS,
    PAIRS,
    YAML,
    ZERO_SHOT,
    are_twins,
    at_home,
    check_tasks,
    task_folders,
)
from caploc.options import TaskOptions
from caploc.tasks.datafiles import (
    data_overrides,
    definition,
    evaluated_split,
    has_training,
    local_files,
    text_as_written,
    training_instead,
)
from caploc.tasks.harness import HarnessTask
from caploc.tasks.leaf import ChatTemplate, Leaf
from caploc.tasks.programs import NOT_ALLOWED, check_programs, replace_code_eval
from caploc.tasks.task import Task
from caploc.tasks.taskfiles import has_mark, open_task_file
from caploc.tasks.templates import confine_templates

confine_templates()
# It prints a traceback, and raises what it says.
logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
replace_code_eval()
HERE = Path(__file__).parent
# Tasks that caploc brings: both papers' that lm-eval lacks, and few-shot ones on words, countries
# and numbers. Every YAML there is one.
OWN = ("paper", "words")


@cache
def own_manager(folder: str) -> TaskManager:
    """Return the tasks of a folder of `OWN`, or of one of the user's."""
    return TaskManager(include_path=HERE / folder, include_defaults=False)


@cache
def harness_manager() -> TaskManager:
    """Everything lm-eval registers; reading it takes seconds."""
    return TaskManager()


def own_folders() -> list[str]:
    """List the folders whose tasks have names: those of `OWN`, then the user's."""
    return [*OWN, *map(str, task_folders())]


def own_names() -> list[str]:
    """Return every task that caploc brings: the papers', those on words, then the user's."""
    return [name for folder in own_folders() for name in own_manager(folder).all_tasks]


def list_twins(name: str) -> list[str]:
    """List a task's twins with examples that caploc brings: of `words/past`, `words/past_twin`."""
    twins = [other for other in own_names() if other != name and are_twins(other, name)]
    return [other for other in twins if not other.endswith(ZERO_SHOT)]


def find_task(name: str) -> tuple[TaskManager, str]:
    """Return which manager knows the task, and by what name; raises UnknownName or BadData."""
    for folder in own_folders():
        if name in own_manager(folder).task_index:
            return own_manager(folder), name
    if name.startswith(OURS):
        raise unknown([one for one in own_names() if one.startswith(OURS)], name, "task")
    if name.endswith(YAML):
        return open_task_file(at_home(name))
    if name.endswith((*DATA, *PAIRS)):
        check_tasks([name])
        raise UnknownName(
            f"{name} holds examples and is no task: a YAML says how they are asked (docs/tasks.md)."
        )
    if name not in harness_manager().task_index:
        where = "`caploc tasks` lists them all; a path to a YAML works too."
        raise unknown([*own_names(), *harness_manager().all_tasks], name, "task", where)
    return harness_manager(), name


def leaf_entries(manager: TaskManager, name: str) -> Iterator[Entry]:
    """Yield the tasks behind a name: itself, or a group's or tag's, however deep."""
    entry = manager.task_index.get(name)
    if entry is None:
        return
    members = sorted(entry.tags) if entry.kind is Kind.TAG else definition(entry).get("task")
    if not isinstance(members, list):
        yield entry
        return
    waiting = list(reversed(members))
    while waiting:
        member = waiting.pop()
        if isinstance(member, str):
            yield from leaf_entries(manager, member)
        elif isinstance(member.get("task"), list):  # a group defined in place
            waiting += reversed(member["task"])
        else:
            yield from leaf_entries(manager, member.get("task") or member.get("group"))


FEWSHOT_SEED = 1234  # lm-eval's own default, so that few-shot examples agree


def check_task_name(name: str, options: TaskOptions | None = None) -> None:
    """Refuse what is no task, or runs model-written code when it may not; raises UserError."""
    allowed = options is not None and options.allow_code
    for entry in leaf_entries(*find_task(name)):
        if not allowed and definition(entry).get("unsafe_code"):
            raise BadOption(NOT_ALLOWED.format(entry.name))


def remedy_of(entries: Sequence[Entry]) -> str:
    """Say how a task does without the Hub: one task reads files, several need a YAML."""
    if len(entries) > 1:
        return "write a YAML that reads your own files (docs/tasks.md)"
    return f"pass the files: --data {evaluated_split(definition(entries[0])) or 'test'}=FILE"


def can_train(name: str, options: TaskOptions | None = None) -> bool:
    """Tell whether the task has a training split, in the files if the options name some."""
    entries = list(leaf_entries(*find_task(name)))
    return has_training(entries, (options or TaskOptions()).data)


def wants_chat_template(name: str) -> bool:
    """Tell whether some task behind the name is asked in the model's chat format if it has one."""
    return any(
        has_mark(definition(entry), "chat_template") for entry in leaf_entries(*find_task(name))
    )


def load_task(
    name: str,
    options: TaskOptions | None = None,
    chat: ChatTemplate | None = None,
) -> Task:
    """Load a task and build its requests.

    `chat` renders messages with the model's chat template; it is used only if the options or the
    task say so. Raises UserError for every mistake in the name, the options or the data, in one
    sentence.
    """
    options = options or TaskOptions()
    options.check_files()
    check_task_name(name, options)
    manager, spec = find_task(name)
    entries = list(leaf_entries(manager, spec))
    overrides = data_overrides(spec, entries, options.data, options.fewshot)
    if options.training:
        overrides = (overrides or {}) | training_instead(name, entries, options.data)
    if options.delimiter is not None:
        overrides = (overrides or {}) | {"target_delimiter": options.delimiter}
    files = [*map(Path, options.data.values())]
    files = files or [file for entry in entries for file in local_files(definition(entry))]
    with loading(name, entries, files):
        with text_as_written():
            built = manager._factory.build(
                manager.task_index[spec], overrides=overrides, registry=manager.task_index
            )
        group = built if isinstance(built, Group) else None
        tasks = built.get_all_tasks() if group else built if isinstance(built, list) else [built]
        for task in tasks:
            check_programs(task, options.allow_code)
        leaves = [prepared(task, options, chat) for task in tasks]
    if files:
        for leaf in leaves:
            leaf.check_complete()
    return HarnessTask(name, leaves, group, options.outcome)


def prepared(task: HarnessLeaf, options: TaskOptions, chat: ChatTemplate | None) -> Leaf:
    """One task set up as the options and its YAML's `metadata` say, with its requests."""
    metadata = task.get_config("metadata") or {}
    if options.fewshot is not None or task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=options.fewshot or 0)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)
    chatting = options.chat_template or metadata.get("chat_template")
    return Leaf(task, options.metric, chat if chatting else None)


@contextmanager
def loading(name: str, entries: Sequence[Entry], files: Sequence[Path]) -> Iterator[None]:
    """Turn the many ways in which loading data fails into one sentence; `files` are the user's."""
    try:
        yield
    except CaplocError:
        raise
    except UndefinedError as error:
        raise BadData(
            f"The data of task {name} lacks a column that its definition reads ({error}); "
            "compare the file's columns with the task's YAML."
        ) from error
    except ImportError as error:
        raise BadData(
            f"The Python code that task {name} names could not be loaded ({error}); it lies beside "
            "the YAML, and is named as !function module.function."
        ) from error
    except Exception as error:
        reason = error.__cause__ or error  # of `datasets`, which says what without why
        said = (str(reason).strip() or type(reason).__name__).splitlines()[0]
        if files:
            raise BadData(
                f"The data of task {name} could not be read ({said}); "
                f"{', '.join(map(str, files))} must hold examples: JSON (an object a line) or CSV "
                "in UTF-8, or Parquet."
            ) from error
        raise BadData(
            f"The data of task {name} could not be loaded ({type(reason).__name__}: {said}). "
            f"Check the network, or {remedy_of(entries)}."
        ) from error
