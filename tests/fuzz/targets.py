"""What reads text or files that others wrote, each as a function of bytes.

A target may raise a `CaplocError`, which is a sentence for the user, and nothing else. Where random
bytes would not come past the first brace, the bytes choose how a sound file is spoilt instead.
"""

import copy
import json
import os
import shutil
import sqlite3
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import hostile_folders

from caploc.cache import Cache
from caploc.cli.options import numbers, parse_families
from caploc.comparison import compare
from caploc.contents import FORMS, Answers, read_contents, read_file
from caploc.doctor import examine_folder, repair
from caploc.engine.neurons import ErasureMode
from caploc.errors import CaplocError
from caploc.files import is_regular
from caploc.finished import FinishedRun
from caploc.folder import claim, read_json
from caploc.heads import Head, HeadGrid, read_heads
from caploc.models.neurons import Neuron
from caploc.models.placement import parse_placement
from caploc.models.projections import find_projections
from caploc.naming import default_folder, folder_name, placed
from caploc.report.headtable import head_map, head_table
from caploc.report.method import facts as method_facts
from caploc.report.method import method_paragraphs
from caploc.report.page import answer_rows
from caploc.report.scores import comparisons
from caploc.report.sentence import headline, second_sentence
from caploc.report.sureness import questions
from caploc.report.wording import called, inline, outcome_unit, visible
from caploc.reproduce import read_preset
from caploc.reproduce.cnl_preset import read_cnl_preset
from caploc.result import Result
from caploc.rowfiles import write_rows
from caploc.store import Store
from caploc.store.repair import check_store, salvage
from caploc.studies import read_studies
from caploc.studies.running import rewrite_report
from caploc.tasks.catalog import load_task, parse_data
from caploc.tasks.datafiles import find_fault
from caploc.tasks.facts import FORMS as FACT_FORMS
from caploc.tasks.facts import read_facts
from caploc.tasks.paper.profanity import file_lexicon
from caploc.tasks.taskfiles import code_in, open_family, permit_code
from caploc.workbench import Allowed
from caploc.workers.ray_backend import Workers

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "mistakes"))  # whose finished run is spoilt
GRID = HeadGrid((16,) * 6)
TARGETS: dict[str, Callable[[bytes], None]] = {}
ODD: list[Any] = [
    None, True, 0, -1, 2**63, 2**200, 1e308, -0.5, "", "L0H0", "L99H99", "x" * 300, "\ud800",
    "\x00", "<b>", [], [1], {}, {"a": {"b": []}}, [[[[]]]], "NaN", float("nan"), float("inf"),
]  # fmt: skip


class Choices:
    """Bytes as a sequence of choices; zero once they have run out."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def number(self, below: int) -> int:
        wide = self.data[self.place : self.place + 2]
        self.place += 2
        return int.from_bytes(wide, "big") % below if below > 0 else 0

    def rest(self) -> str:
        return self.data[self.place :].decode(errors="replace")


def target(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Enter a function as a target."""
    TARGETS[check.__name__] = check
    return check


def one(data: bytes) -> None:
    """One execution: the first byte chooses the target."""
    names = sorted(TARGETS)
    if data:
        tried(names[data[0] % len(names)], data[1:])


def tried(name: str, data: bytes) -> None:
    """Give a target its bytes; a sentence for the user is what it may raise."""
    try:
        TARGETS[name](data)
    except CaplocError as error:
        assert str(error).strip(), f"{name} refused without a word"


@cache
def folder() -> Path:
    """Where files are written; in memory where that can be."""
    shared = Path("/dev/shm")
    return Path(mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))


def written(data: bytes, name: str = "file") -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


def text_of(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


@cache
def sound(name: str) -> Any:
    """A file of a finished run, as one was written."""
    return json.loads((HERE / "sound" / name).read_text())


def spoilt(content: Any, choices: Choices) -> Any:
    """A copy with one to four values replaced, taken out or doubled, wherever the choices lead."""
    content = copy.deepcopy(content)
    for _ in range(1 + choices.number(4)):
        parent, key, here = None, None, content
        while isinstance(here, dict | list) and here and (parent is None or choices.number(8)):
            parent = here
            keys = list(here) if isinstance(here, dict) else range(len(here))
            key = keys[choices.number(len(keys))]
            here = here[key]
        if parent is None:
            return ODD[choices.number(len(ODD))]
        act = choices.number(5)
        if act == 0:
            del parent[key]
        elif act == 1 and isinstance(parent, list):
            parent.append(copy.deepcopy(here))
        elif act == 2:
            parent[key] = choices.rest()[:50]
        else:
            parent[key] = copy.deepcopy(ODD[choices.number(len(ODD))])
    return content


@target
def heads(data: bytes) -> None:
    GRID.mask(Head.parse_all(text_of(data)))
    Neuron.parse_all(text_of(data))


@target
def number_lists(data: bytes) -> None:
    numbers(text_of(data), int)
    numbers(text_of(data), float)


@target
def options(data: bytes) -> None:
    text = text_of(data)
    for read in (
        parse_placement,
        ErasureMode.parse,
        lambda t: parse_families([t]),
        lambda t: parse_data([t]),
    ):
        try:
            read(text)
        except CaplocError:
            continue
    Workers.parse(text, None, None, None)


@target
def names(data: bytes) -> None:
    text = text_of(data)
    placed(text)
    for name in (default_folder(text), Path(folder_name(text))):
        assert ".." not in name.parts and not name.is_absolute() and "\0" not in str(name)
    shown = called(text) + inline(text) + visible(text)
    assert "\x1b" not in shown
    shown.encode()  # no lone surrogate is left


@target
def study_files(data: bytes) -> None:
    read_studies(written(data, "studies.toml"))


@target
def presets(data: bytes) -> None:
    file = written(data, "preset.toml")
    for read in (read_preset, read_cnl_preset):
        try:
            read(str(file))
        except CaplocError:
            continue


@target
def task_files(data: bytes) -> None:
    open_family(written(data, "task.yaml"))


FAMILY_NAMES = ("z", "a", "b", "c", "d")
FAMILY_KEYS = (
    "task tag group include doc_to_text doc_to_target description process_docs process_results "
    "metric_list filter_list dataset_path dataset_kwargs class custom_dataset fewshot_config "
    "use_prompt doc_to_choice metadata output_type repeats num_fewshot"
).split()


def family_value(key: str, choices: Choices) -> str:
    """A value of a key of a task's YAML: what belongs there, a name of the family, or code."""
    name = FAMILY_NAMES[choices.number(5)]
    other = FAMILY_NAMES[choices.number(5)]
    evil = "!function canary.f"
    fitting = {
        "task": [
            name,
            f"[{name}, {other}]",
            f"[{{task: {name}, process_docs: {evil}}}]",
            f"[{{group: {other}, task: [{name}]}}]",
            f"[{{task: {name}, metric_list: [{{metric: canary}}]}}]",
            f"[{{task: {name}, dataset_path: json}}]",
        ],
        "group": [name],
        "tag": [name, f"[{name}, {other}]"],
        "include": [
            f"{name}.yaml",
            f"[{name}.yaml, {other}.yaml]",
            f"deep/../{name}.yaml",
            f"deep/{name}.yaml",
            "/dev/zero",
            ".",
        ],
        "doc_to_text": [
            "'{{q}}'",
            "'{{ q.__class__ }}'",
            "q",
            "'{% for i in range(9) %}{{ i }}{% endfor %}'",
            "'{{ cycler.__init__.__globals__ }}'",
            "'{% include q %}'",
        ],
        "metric_list": [
            "[{metric: exact_match}]",
            "[{metric: canary}]",
            "[{metric: exact_match, hf_evaluate: true}]",
            f"[{{metric: {evil}}}]",
        ],
        "filter_list": [
            "[{name: n, filter: [{function: take_first}]}]",
            f"[{{name: n, filter: [{{function: {evil}}}]}}]",
        ],
        "dataset_path": ["json", "pandas", "../x", "deep", "webdataset"],
        "dataset_kwargs": [
            "{data_files: {test: DATA}}",
            "{storage_options: {fo: x}}",
            "{data_files: '/dev/zero'}",
            "{data_files: 'reference://::x'}",
        ],
        "metadata": ["{mixture: true}", "{version: 1}"],
        "use_prompt": ["canary.yaml:x", "a:b"],
        "output_type": ["generate_until", "multiple_choice"],
        "repeats": ["1", "1000000000"],
        "num_fewshot": ["0", "1", "1000000000"],
    }.get(key, [name])
    fitting += ["!function canary.f", "!function deep.canary.f", "&x [*x]", "null", "!!set {a}"]
    return fitting[choices.number(len(fitting) if choices.number(3) else 1)]


def write_family(choices: Choices) -> Path:
    """Two to five YAML files that name each other; those that are tasks have what tasks need."""
    place = folder() / "family"
    shutil.rmtree(place, ignore_errors=True)
    (place / "deep").mkdir(parents=True)
    data = place / "data.jsonl"
    data.write_text('{"q": "1+1=", "a": "2"}\n')
    for canary in (place, place / "deep"):
        (canary / "canary.py").write_text(
            f"open({str(place / 'RAN')!r}, 'w').close()\ndef f(*a, **k): return a[0]\n"
        )
    for name in FAMILY_NAMES[: 2 + choices.number(4)]:
        said = {"dataset_path": "json", "dataset_kwargs": f"{{data_files: {{test: {data}}}}}",
                "test_split": "test", "output_type": "generate_until", "doc_to_text": "'{{q}}'",
                "doc_to_target": "a", "metric_list": "[{metric: exact_match}]"}  # fmt: skip
        said = said if choices.number(4) else {}
        said["task" if choices.number(4) else "group"] = name
        for _ in range(choices.number(5)):
            key = FAMILY_KEYS[choices.number(len(FAMILY_KEYS))]
            said[key] = family_value(key, choices).replace("DATA", str(data))
        where = place / "deep" if not choices.number(6) and name != "z" else place
        lines = "".join(f"{key}: {value}\n" for key, value in said.items())
        (where / f"{name}.yaml").write_text(lines)
    return place


@target
def task_families(data: bytes) -> None:
    """What a task's file of someone else leads to runs no Python, in whatever way it is named."""
    place = write_family(Choices(data))
    file = str(place / "z.yaml")
    try:
        code = code_in(file)
        Allowed().check_task("run.json", file)
        assert code is None
        load_task(file)
    finally:
        permit_code(file, True)
        assert not (place / "RAN").exists(), "code ran that nobody allowed"


@target
def json_files(data: bytes) -> None:
    for name in FORMS:
        try:
            read_contents(written(data, name))
        except CaplocError:
            continue


@target
def results(data: bytes) -> None:
    """A result that passes as one can be shown, whatever else it holds."""
    choices = Choices(data)
    content = spoilt(sound("result.json"), choices)
    result = read_file(written(json.dumps(content).encode(), "result.json"), Result)
    unit = outcome_unit(result)
    for show in (headline, second_sentence, questions, comparisons, head_map, method_facts):
        show(result)
    head_table(result)
    method_paragraphs(result)
    answers = written(json.dumps(sound("answers.json")).encode(), "answers.json")
    answer_rows(read_file(answers, Answers).root, unit)


@target
def answers(data: bytes) -> None:
    content = spoilt(sound("answers.json"), Choices(data))
    rows = read_file(written(json.dumps(content).encode(), "answers.json"), Answers)
    sound_result = written(json.dumps(sound("result.json")).encode(), "result.json")
    answer_rows(rows.root, outcome_unit(read_file(sound_result, Result)))


@target
def finished_runs(data: bytes) -> None:
    written(json.dumps(sound("result.json")).encode(), "result.json")
    content = spoilt(sound("run.json"), Choices(data))
    written(json.dumps(content).encode(), "run.json")
    FinishedRun.read(folder())


@target
def head_files(data: bytes) -> None:
    read_heads(written(data, "heads.json"))
    content = spoilt(sound("heads.json"), Choices(data))
    read_heads(written(json.dumps(content).encode(), "heads.json"))


@target
def spoilt_head_files(data: bytes) -> None:
    content = spoilt(sound("heads.json"), Choices(data))
    read_heads(written(json.dumps(content).encode(), "heads.json"))


@target
def data_files(data: bytes) -> None:
    for ending in (".jsonl", ".csv", ".parquet"):
        find_fault(written(data, f"data{ending}"))


@target
def fact_files(data: bytes) -> None:
    for form in FACT_FORMS:
        try:
            read_facts(written(data, "facts"), form)
        except CaplocError:
            continue


@target
def spoilt_facts(data: bytes) -> None:
    content = spoilt(sound("facts.json"), Choices(data))
    read_facts(written(json.dumps(content).encode(), "facts"), "lines")


@target
def word_lists(data: bytes) -> None:
    for ending in (".txt", ".csv"):
        try:
            file_lexicon(written(data, f"words{ending}")).count(text_of(data))
        except CaplocError:
            continue


@target
def ledgers(data: bytes) -> None:
    Cache(written(data, "ledger.jsonl"))


@cache
def empty_model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    with torch.device("meta"):
        return LlamaForCausalLM(config)


@target
def projection_patterns(data: bytes) -> None:
    find_projections(empty_model(), text_of(data) or None)


@cache
def rows_file() -> bytes:
    """A store with rows."""
    from caploc.store import Question, Row

    path = folder() / "sound" / "rows.sqlite"
    path.parent.mkdir()
    with Store(path) as store:
        question = store.question_id(Question("f", "float32", "t", "1", "metric"))
        rows = [
            Row(bytes([n]), f"e{n}", number=n, outcome=n / 2, item=n,
                responses='[{"text": "a", "tokens": 1}]', tokens=1.0, plain_tokens=2, seconds=0.1)
            for n in range(20)
        ]  # fmt: skip
        store.add(question, rows)
    database = sqlite3.connect(path)
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path.read_bytes()


@target
def stores(data: bytes) -> None:
    """A database with some bytes changed: checked, and what is sound is saved from it."""
    choices, content = Choices(data), bytearray(rows_file())
    for _ in range(1 + choices.number(12)):
        content[choices.number(len(content))] = choices.number(256)
    place = folder() / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "rows.sqlite").write_bytes(bytes(content)[: len(content) - choices.number(3) * 2000])
    if not check_store(place / "rows.sqlite").sound:
        salvage(place / "rows.sqlite")
        left = check_store(place / "rows.sqlite").faults
        assert all("question" in fault for fault in left), left  # which the same command mends


@cache
def sound_run() -> Path:
    """A finished run of a tiny planted model, with a log as a killed process leaves it."""
    from mistaking import Kept

    run = Kept(folder() / "kept").run
    database = sqlite3.connect(run / "rows.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("UPDATE questions SET question = question || ' '")
    database.execute("UPDATE questions SET question = trim(question)")
    for name in ("rows.sqlite", "rows.sqlite-wal"):
        (run / f"{name}.kept").write_bytes((run / name).read_bytes())
    database.close()
    for name in ("rows.sqlite", "rows.sqlite-wal"):
        (run / f"{name}.kept").replace(run / name)
    return run


def is_small(path: Path) -> bool:
    """Whether this is a file that can be read here: none that an earlier choice made endless."""
    return is_regular(path) and 0 < path.stat().st_size < 2**24


def flip(path: Path, choices: Choices) -> None:
    """Change some bytes of a file, in its first page as often as elsewhere, or cut it off."""
    if not is_small(path):
        return
    content = bytearray(path.read_bytes())
    for _ in range(1 + choices.number(6)):
        within = min(len(content), 4096) if choices.number(2) else len(content)
        content[choices.number(within)] = choices.number(256)
    if not choices.number(4):
        del content[choices.number(len(content)) :]
    path.write_bytes(bytes(content))


def replace_file(run: Path, victim: Path, choices: Choices) -> None:
    """Put something else in a file's place."""
    kinds, files = list(hostile_folders.KINDS.values()), hostile_folders.FILES
    kinds[choices.number(len(kinds))](run / files[choices.number(len(files))], victim)


def spoil_database(run: Path, victim: Path, choices: Choices) -> None:
    """Change the database, or what SQLite finds beside it."""
    databases = list(hostile_folders.DATABASES.values())
    chosen = databases[choices.number(len(databases))]
    if is_small(run / "rows.sqlite"):
        chosen(run / "rows.sqlite", victim)


def spoil_field(run: Path, victim: Path, choices: Choices) -> None:
    """Ask for too much in a JSON file."""
    contents = list(hostile_folders.CONTENTS.values())
    name, *change = contents[choices.number(len(contents))]
    if is_small(run / name):
        hostile_folders.put(run, name, *change)


def spoil_values(run: Path, victim: Path, choices: Choices) -> None:
    """Change values of a JSON file anywhere."""
    path = run / ("run.json", "result.json", "answers.json")[choices.number(3)]
    if is_small(path):
        path.write_text(json.dumps(spoilt(json.loads(path.read_text()), choices)))


def flip_bytes(run: Path, victim: Path, choices: Choices) -> None:
    """Change bytes of the database or of what lies beside it."""
    flip(run / ("rows.sqlite", *hostile_folders.SIDECARS)[choices.number(4)], choices)


def change_log(run: Path, victim: Path, choices: Choices) -> None:
    """Change bytes of the log so that SQLite believes it."""
    log = run / "rows.sqlite-wal"
    flip(log, choices)
    if is_small(log):
        raw = bytearray(log.read_bytes())
        hostile_folders.reseal(raw)
        log.write_bytes(bytes(raw))


SPOILT_BEFORE = (
    OSError, ValueError, LookupError, TypeError, MemoryError, struct.error, sqlite3.Error,
)  # fmt: skip
ACTS = (replace_file, spoil_database, spoil_field, spoil_values, flip_bytes, change_log)


def spoil_folder(run: Path, victim: Path, choices: Choices) -> None:
    """Make a sound folder hostile in one to four ways, all of its files among them."""
    for _ in range(1 + choices.number(4)):
        try:
            ACTS[choices.number(len(ACTS))](run, victim, choices)
        except SPOILT_BEFORE:
            continue  # what was to be spoilt is already something else


def read_folder(run: Path, looks: Sequence[Callable[[Path], Any]]) -> None:
    """Open a run folder in ways in which commands do."""
    for look in looks:
        try:
            look(run)
        except CaplocError as error:
            assert str(error).strip()
        except OSError as error:  # which the command line makes a sentence of
            assert str(run) in str(error.filename), error


def read_runs_of(run: Path) -> None:
    compare([run], run.parent / "compared")


def all_rows(run: Path) -> None:
    write_rows(run, run.parent / "out.csv")


def resumed(run: Path) -> None:
    study = read_json(run / "run.json")
    study = study.get("study") if isinstance(study, dict) else None
    with claim(run, study if isinstance(study, dict) else {}, "caploc locate") as store:
        with store.guarded():
            found = store.database.execute("SELECT id FROM questions LIMIT 3").fetchall()
        for (number,) in found:
            store.load(number)


def mended(run: Path) -> None:
    repair(examine_folder(run))


@target
def run_folders(data: bytes) -> None:
    """A whole folder, spoilt: nothing outside of it changes, and nothing hangs."""
    place = folder() / "attacked"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sound_run(), place / "run")
    victim = hostile_folders.make_victim(place / "victim")
    spoil_folder(place / "run", victim, Choices(data))
    before = hostile_folders.snapshot(victim)
    looks = [examine_folder, FinishedRun.read, all_rows, resumed, mended]
    if not data or not sum(data) % 8:  # drawing takes ten times as long as all the others
        looks += [rewrite_report, read_runs_of]
    read_folder(place / "run", looks)
    assert hostile_folders.snapshot(victim) == before, "a file outside of the folder was changed"
    made = {path.name for path in place.iterdir()}
    assert made <= {"run", "victim", "out.csv", "compared"}, made
