"""What commands and notebooks fill in where nothing was said: folders, whole paths, other tasks."""

import os
from hashlib import blake2b
from pathlib import Path

from caploc.errors import UnknownName
from caploc.pretrained import DEMO, PRETRAINED, hint

LONGEST = 200  # bytes of a folder's name; disks take 255
# What ends the name of a task in other words, with other examples in its prompt or with none.
TWIN, ZERO_SHOT = "_twin", "_zero_shot"
# What packaged tasks are held against where no other task is named, by the folder that is theirs.
GENERAL = {"demo": "demo/sentences", "words": "words/copy"}


def default_others(task: str) -> list[str]:
    """Name the general task that goes with a packaged one; others are named by the user."""
    general = GENERAL.get(task.partition("/")[0])
    return [general] if general and not are_twins(task, general) else []


def are_twins(one: str, other: str) -> bool:
    """Tell whether two of the packaged tasks are one in other words, as `words/past_twin` is."""
    return capability(one) == capability(other)


def capability(task: str) -> str:
    """Return what a packaged task and its twins ask for: the name that all of them begin with."""
    return task.removesuffix(TWIN).removesuffix(ZERO_SHOT)


def placed(name: str, start: Path = Path()) -> str:
    """A model or task given as a path, seen from `start`, as an absolute one; others as they are.

    A run is then continued from anywhere. `demo` and the name of a model of `caploc fetch` mean
    that, whatever folder of the name lies here.
    """
    if name == DEMO or name in PRETRAINED:
        return name
    path = start / at_home(name)
    return str(path.absolute()) if name.strip() and (is_folder(path) or is_file(path)) else name


def check_model_name(name: str) -> str:
    """Return a model's name; one that is nearly in `caploc models` is refused, and no Hub asked.

    There all but a few old models have their owner's name and a slash before their own. Raises
    UnknownName.
    """
    known = name == DEMO or name in PRETRAINED or "/" in name
    path = at_home(name)
    if not (known or is_folder(path) or is_file(path)) and (near := hint(name)):
        raise UnknownName(f"There is no model {name!r}.{near} `caploc models` lists those by name.")
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
    """Turn a study's name into that of a folder.

    One that is too long for a disk is cut, and ends in a digest of the whole.
    """
    text = keep_plain(name) or "unnamed"
    if len(text.encode()) <= LONGEST:
        return text
    cut = text.encode()[: LONGEST - 9].decode(errors="ignore")
    return f"{cut}-{blake2b(name.encode(errors='replace'), digest_size=4).hexdigest()}"


def keep_plain(text: str) -> str:
    """Keep letters, digits and what separates them; anything else becomes a dash."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-.")
