"""Which names tasks have, by the YAML files of caploc and lm-eval. Imports neither of them."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from caploc.errors import BadOption
from caploc.lookup import unknown
from caploc.naming import at_home, is_file

NAMED = re.compile(
    r"""^["']?(?:task|group|tag)["']?:[ \t]*["']?([^\s"'#\[|>]+)["']?[ \t]*$""", re.M
)
TAGGED = re.compile(r"^[\"']?tag[\"']?:[ \t]*((?:\n[ \t]*-[ \t]*\S+[ \t]*)+|\S+[ \t]*$)", re.M)
DATA = (".jsonl", ".json", ".csv", ".parquet")


def check_listed(names: Iterable[str]) -> None:
    """Refuse names that no task has, without reading what lm-eval registers.

    Whether a file is a task, and what it may do, is seen where tasks are read. Raises UnknownName,
    naming the nearest task there is, or BadOption for a file of examples.
    """
    own: list[str] = []
    for name in names:
        if is_file(at_home(name)) and name.endswith(DATA):
            raise BadOption(
                f"{name} holds examples, and a task also says how they are asked: name a YAML that "
                "reads them (docs/tasks.md), or call caploc.locate(model, tokenizer, pairs) with "
                "its pairs of (prompt, answer)."
            )
        if name == "none" or name.endswith((".yaml", ".yml")) or is_file(at_home(name)):
            continue
        own = own or own_tasks()
        kind = next((one for one in ("demo/", "words/") if name.startswith(one)), "")
        if name in own or not kind and name in (others := harness_tasks()):
            continue
        if kind:
            raise unknown([one for one in own if one.startswith(kind)], name, "task")
        where = "`caploc tasks` lists them all; a path to a YAML works too."
        raise unknown([*own, *others], name, "task", where)


def own_tasks() -> list[str]:
    """Names of the tasks that caploc brings."""
    return list(named_in(Path(__file__).parent))


def harness_tasks() -> set[str]:
    """Names that lm-eval registers, from a file that is written at the first time."""
    spec = find_spec("lm_eval")
    places = spec.submodule_search_locations if spec else None
    if not places:
        return set()
    kept = cache_file()
    with suppress(OSError, UnicodeDecodeError):
        return set(kept.read_text(encoding="utf-8").split())
    names = set(named_in(Path(places[0]) / "tasks"))
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text("\n".join(sorted(names)), encoding="utf-8")
        part.replace(kept)
    return names


def cache_file() -> Path:
    """Where the names of the installed lm-eval are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    release = "none"
    with suppress(PackageNotFoundError):
        release = version("lm_eval")
    return Path(base) / "caploc" / f"lm-eval-{release}-names.txt"


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
