"""From a task's name to a task: lm-eval's own, YAML files, and the demo's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2.exceptions import UndefinedError
from lm_eval.api.group import Group
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind
from lm_eval.tasks._yaml_loader import load_yaml

from caploc.errors import BadData, BadOption, UnknownName, UserError
from caploc.lookup import unknown
from caploc.tasks.harness import HarnessTask
from caploc.tasks.leaf import ChatTemplate, Leaf

DEMO = Path(__file__).parent / "demo"
DEMO_CAPABILITIES = (
    "addition subtraction sorting code rhyming cursing capitals elements recall".split()
)
FORMATS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
OUTCOMES = ("metric", "logprob")
UNSAFE = (
    "Task {} executes the code that the model writes, with your rights; caploc does not run "
    "model-written code outside a sandbox. Choose another task."
)
FEWSHOT_SEED = 1234  # lm-eval's own default, so that few-shot examples agree


@dataclass(frozen=True)
class TaskOptions:
    """How a task is to be asked; the defaults are the task's own."""

    metric: str | None = None
    outcome: str = "metric"
    fewshot: int | None = None
    chat_template: bool = False
    data: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> "TaskOptions":
        """The options that carry over to other tasks: how the model is spoken to, no more."""
        return TaskOptions(chat_template=self.chat_template)

    def check(self) -> None:
        """Refuse what can be refused without loading anything.

        Raises:
            BadOption: for an unknown outcome or a negative number of examples.
            BadData: for a file that is missing, empty or of an unknown format.
        """
        if self.outcome not in OUTCOMES:
            raise BadOption(
                f"--outcome must be one of {', '.join(OUTCOMES)}; got {self.outcome!r}."
            )
        if self.fewshot is not None and self.fewshot < 0:
            raise BadOption(f"--fewshot must be 0 or more; got {self.fewshot}.")
        for split, file in self.data.items():
            check_file(split, Path(file))
        if len({data_format(Path(file)) for file in self.data.values()}) > 1:
            raise BadOption("All --data files of one run must be of one format.")


def parse_data(texts: list[str]) -> dict[str, str]:
    """Read `test=FILE` options; paths become absolute.

    Raises:
        BadOption: if one is not of that form.
    """
    files = {}
    for text in texts:
        split, equals, file = text.partition("=")
        if not (split and equals and file):
            raise BadOption(
                f"--data takes SPLIT=FILE, such as test=gsm8k_test.jsonl; got {text!r}."
            )
        files[split] = str(Path(file).expanduser().absolute())
    return files


def data_format(file: Path) -> str:
    """The reader for a data file, by its ending.

    Raises:
        BadOption: for an ending without a reader.
    """
    if file.suffix not in FORMATS:
        raise BadOption(f"--data files end in {', '.join(FORMATS)}; got {file.name!r}.")
    return FORMATS[file.suffix]


def check_file(split: str, file: Path) -> None:
    """Refuse a data file that is not there or holds nothing."""
    data_format(file)
    if not file.is_file():
        raise BadData(f"--data {split}={file}: there is no such file.")
    if file.stat().st_size == 0:
        raise BadData(f"--data {split}={file}: the file is empty.")


def task_names() -> list[str]:
    """Every task, group and tag that can be named, the demo's first."""
    return [*demo_manager().all_tasks, *harness_manager().all_tasks]


def check_task_name(name: str) -> None:
    """Refuse a task that does not exist, or that would run model-written code here.

    Raises:
        UnknownName: naming the nearest task there is.
        BadOption: if the task executes what the model writes.
    """
    manager, spec = find(name)
    for entry in leaf_entries(manager, spec):
        if entry.yaml_path and load_yaml(entry.yaml_path, resolve_func=False).get("unsafe_code"):
            raise BadOption(UNSAFE.format(entry.name))


def load_task(
    name: str, options: TaskOptions | None = None, chat: ChatTemplate | None = None
) -> HarnessTask:
    """Load a task and build its requests.

    `chat` renders messages with the model's chat template; it is used only if the options say so.

    Raises:
        UserError: for every mistake in the name, the options or the data, in one sentence.
    """
    options = options or TaskOptions()
    options.check()
    check_task_name(name)
    manager, spec = find(name)
    overrides = data_overrides(manager, spec, options)
    with loading(name):
        built = manager._factory.build(
            manager.task_index[spec], overrides=overrides, registry=manager.task_index
        )
    group = built if isinstance(built, Group) else None
    tasks = built.get_all_tasks() if group else built if isinstance(built, list) else [built]
    renderer = chat if options.chat_template else None
    refuse_unsafe(tasks)
    with loading(name):
        for task in tasks:
            if options.fewshot is not None or task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=options.fewshot or 0)
            task.set_fewshot_seed(seed=FEWSHOT_SEED)
        leaves = [Leaf(task, options.metric, renderer) for task in tasks]
    return HarnessTask(name, leaves, group, options.outcome)


def refuse_unsafe(tasks: list[Any]) -> None:
    """Refuse tasks that only turn out to execute model-written code once they are built."""
    for task in tasks:
        if getattr(task, "UNSAFE_CODE", False) or task.get_config("unsafe_code"):
            raise BadOption(UNSAFE.format(task.task_name))


@cache
def demo_manager() -> TaskManager:
    """The tasks of the model inside the package."""
    return TaskManager(include_path=DEMO, include_defaults=False)


@cache
def harness_manager() -> TaskManager:
    """Everything lm-eval registers; reading it takes seconds."""
    return TaskManager()


@cache
def folder_manager(folder: Path) -> TaskManager:
    """The YAML files beside a task file, which it may include or group."""
    return TaskManager(include_path=folder, include_defaults=False)


def find(name: str) -> tuple[TaskManager, str]:
    """Which manager knows the task, and by what name.

    Raises:
        UnknownName: naming the nearest task there is.
    """
    if name in demo_manager().task_index:
        return demo_manager(), name
    if name.startswith("demo/"):
        raise unknown(demo_manager().all_tasks, name, "task")
    if name.endswith((".yaml", ".yml")):
        return find_file(Path(name).expanduser())
    if name not in harness_manager().task_index:
        raise unknown(
            task_names(), name, "task", "`caploc tasks` lists them all; a path to a YAML works too."
        )
    return harness_manager(), name


def find_file(path: Path) -> tuple[TaskManager, str]:
    """The manager of a task file, and the task's name in it."""
    if not path.is_file():
        raise UnknownName(f"There is no task file {str(path)!r}; give the path of an lm-eval YAML.")
    try:
        config = load_yaml(path, resolve_func=False)
    except Exception as error:
        raise BadData(f"{path} is not a task YAML: {str(error).splitlines()[0]}") from error
    name = config.get("task") if isinstance(config.get("task"), str) else config.get("group")
    if not name:
        raise BadData(f"{path} names neither a task nor a group (`task: my_task`).")
    return folder_manager(path.parent.absolute()), name


def leaf_entries(manager: TaskManager, name: str) -> Iterator[Entry]:
    """The tasks behind a name: itself, or the members of a group or tag, however deep."""
    entry = manager.task_index.get(name)
    if entry is None:
        return
    config = load_yaml(entry.yaml_path, resolve_func=False) if entry.yaml_path else entry.cfg or {}
    members = sorted(entry.tags) if entry.kind is Kind.TAG else config.get("task")
    if not isinstance(members, list):
        yield entry
        return
    yield from member_entries(manager, members)


def member_entries(manager: TaskManager, members: list[Any]) -> Iterator[Entry]:
    """The tasks behind the members of a group, which may be groups defined in place."""
    for member in members:
        if isinstance(member, str):
            yield from leaf_entries(manager, member)
        elif isinstance(member.get("task"), list):
            yield from member_entries(manager, member["task"])
        else:
            yield from leaf_entries(manager, member.get("task") or member.get("group"))


def data_overrides(manager: TaskManager, name: str, options: TaskOptions) -> dict[str, Any] | None:
    """The changes to a task's definition that make it read the given files.

    Raises:
        BadOption: if the name is a group.
        BadData: if a split that the task needs is not given.
    """
    if not options.data:
        return None
    entries = list(leaf_entries(manager, name))
    if len(entries) != 1 or entries[0].yaml_path is None:
        raise BadOption(
            f"--data replaces the data of one task, and {name} is a group of {len(entries)}; "
            f"name one of them, such as {entries[0].name if entries else name}."
        )
    config = load_yaml(entries[0].yaml_path, resolve_func=False)
    splits = ("training_split", "validation_split", "test_split", "fewshot_split")
    evaluated = config.get("test_split") or config.get("validation_split")
    shots = options.fewshot if options.fewshot is not None else config.get("num_fewshot") or 0
    wanted = [evaluated, shots_split(config) if shots else None]
    needed = {str(split) for split in wanted if split}
    if missing := sorted(needed - set(options.data)):
        raise BadData(
            f"Task {name} also reads split {missing[0]!r}"
            f"{f' for its {shots} examples in the prompt' if missing[0] != evaluated else ''}; "
            f"add --data {missing[0]}=FILE{'' if missing[0] == evaluated else ' or --fewshot 0'}."
        )
    formats = {data_format(Path(file)) for file in options.data.values()}
    return {
        "dataset_path": formats.pop(),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": dict(options.data)},
        "custom_dataset": None,
    } | {
        split: config.get(split) if config.get(split) in options.data else None for split in splits
    }


def shots_split(config: dict[str, Any]) -> str | None:
    """The split that examples in the prompt come from, in lm-eval's order; None: from the YAML."""
    fewshot = config.get("fewshot_config") or {}
    if fewshot.get("samples") is not None:
        return None
    splits = [fewshot.get("split"), config.get("fewshot_split"), config.get("training_split")]
    splits += [config.get("validation_split"), config.get("test_split")]
    return next((str(split) for split in splits if split), None)


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Turn the many ways in which loading data fails into one sentence."""
    try:
        yield
    except UserError:
        raise
    except UndefinedError as error:
        raise BadData(
            f"The data of task {name} lacks a column that its definition reads ({error}); "
            "compare the file's columns with the task's YAML."
        ) from error
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadData(
            f"The data of task {name} could not be loaded ({type(error).__name__}: {said}). "
            "Check the network, or pass the files: --data test=FILE."
        ) from error
