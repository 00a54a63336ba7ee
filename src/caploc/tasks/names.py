"""Which names tasks have, by the YAML files of caploc and lm-eval. Imports neither of them."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from caploc.errors import BadOption, UnknownName
from caploc.lookup import unknown
from caploc.naming import at_home, is_file

NAMED = re.compile(
    r"""^["']?(?:task|group|tag)["']?:[ \t]*["']?([^\s"'#\[|>]+)["']?[ \t]*$""", re.M
)
TAGGED = re.compile(r"^[\"']?tag[\"']?:[ \t]*((?:\n[ \t]*-[ \t]*\S+[ \t]*)+|\S+[ \t]*$)", re.M)
DATA = (".jsonl", ".json", ".csv", ".parquet")
OURS = ("demo/", "words/")  # how names begin that lm-eval has none of


def check_listed(names: Iterable[str]) -> None:
    """Refuse names that no task has, without reading what lm-eval registers.

    Whether a file is a task, and what it may do, is seen where tasks are read. Raises UnknownName,
    naming the nearest task there is, or BadOption for a file of examples.
    """
    for name in names:
        if is_file(at_home(name)) and name.endswith(DATA):
            raise BadOption(
                f"{name} holds examples, and a task also says how they are asked: name a YAML that "
                "reads them (docs/tasks.md), or call caploc.locate(model, tokenizer, pairs) with "
                "its pairs of (prompt, answer)."
            )
        if name == "none" or name.endswith((".yaml", ".yml")) or is_file(at_home(name)):
            continue
        if name in own_tasks() or not name.startswith(OURS) and name in harness_tasks():
            continue
        raise unknown_task(name)


def unknown_task(name: str) -> UnknownName:
    """Build the error for a name that no task has, from the tasks that it could have meant."""
    if name.startswith(OURS):
        folder = name.partition("/")[0]
        return unknown([one for one in own_tasks() if one.startswith(f"{folder}/")], name, "task")
    where = "`caploc tasks` lists them all; a path to a YAML works too."
    return unknown([*own_tasks(), *harness_tasks()], name, "task", where)


@cache
def own_tasks() -> list[str]:
    """Names of the tasks that caploc brings."""
    return list(named_in(Path(__file__).parent))


def harness_tasks() -> set[str]:
    """Names that lm-eval registers, from a file that is written at the first time."""
    kept = cache_file()
    with suppress(OSError, UnicodeDecodeError):
        return set(kept.read_text(encoding="utf-8").split())
    spec = find_spec("lm_eval")
    assert spec and spec.origin
    names = set(named_in(Path(spec.origin).with_name("tasks")))
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text("\n".join(sorted(names)), encoding="utf-8")
        part.replace(kept)
    return names


def cache_file() -> Path:
    """Where the names of the installed lm-eval are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "caploc" / f"lm-eval-{version('lm_eval')}-names.txt"


def named_in(folder: Path) -> Iterator[str]:
    """Every name that a YAML file below the folder gives to a task, group or tag."""
    for place, _, files in os.walk(folder):
        for file in files:
            named = file.endswith((".yaml", ".yml"))
            if not named and "." in file:  # what YAML files include has no ending, and tags only
                continue
            text = Path(place, file).read_text(encoding="utf-8", errors="replace")
            yield from NAMED.findall(text) if named else ()
            for block in TAGGED.findall(text):
                yield from (name.strip("\"'") for name in block.split() if name != "-")
