"""What several tests hand to the code, and a reader of the pages that it writes."""

import json
import math
import sqlite3
from contextlib import closing
from html.parser import HTMLParser

from caploc.declaration import ModelOptions, Study
from caploc.options import Settings
from caploc.progress import Silent
from caploc.result import Score
from caploc.tasks.task import Example, Generate, Metric
from worlds import DEMO

QUICKEST = Study(
    ModelOptions(DEMO), "demo/recall", "css", settings=Settings(masks=4, rate=0.05, top=2),
    examples=5, controls=0, limit=5,
)  # fmt: skip


class Watcher(Silent):
    """Progress that notes all it is told; it stops a run as Ctrl-C would.

    `most` counts measured rows, those that were not stored before; `stages` those that may begin.
    """

    def __init__(self, most=None, stages=None):
        self.most, self.most_stages = most, stages
        self.rows = self.measured = 0
        self.expected, self.stages, self.told = [], [], []

    def expect(self, rows):
        self.expected.append((self.rows, rows))

    def start(self, what, rows):
        if len(self.stages) == self.most_stages:
            raise KeyboardInterrupt
        self.stages.append(what)

    def advance(self, rows, tokens):
        self.rows += rows
        self.measured += rows if tokens else 0
        if self.most is not None and self.measured >= self.most:
            raise KeyboardInterrupt

    def tell(self, text):
        self.told.append(text)


class NumberTask:
    """A task whose examples are numbers; an answer is its outcome, and NaN is none."""

    name, version, size, metric = "numbers", "1", 1000, Metric("acc")

    def in_metric(self):
        return self

    def example(self, example):
        return Example(str(example))

    def without(self, examples):
        return self

    def key(self, example):
        return str(example)

    def requests(self, example):
        return [Generate(str(example), "{}")]

    def item(self, example, responses):
        number = float(responses[0].text)
        return None if math.isnan(number) else number

    def outcome(self, item):
        return math.nan if item is None else item

    def score(self, examples, items):
        values = [item for item in items if item is not None]
        return Score.of(sum(values) / len(values) if values else None, None, len(values))

    def first(self, limit):
        return list(range(limit or self.size))


class Page(HTMLParser):
    """A page as a browser takes it apart: elements, scripts, and the texts that a reader sees."""

    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.source = path.read_text(encoding="utf-8")
        self.elements, self.scripts, self.texts, self.inside = [], [], [], None
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.scripts += [""] if tag == "script" else []
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.texts.append(data)

    @property
    def text(self):
        """All texts, blanks collapsed."""
        return " ".join(" ".join(self.texts).split())

    def having(self, tag, **wanted):
        """The attributes of all elements of that tag with these attributes."""
        return [own for name, own in self.elements if name == tag and wanted.items() <= own.items()]


METRIC = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
WRITTEN = {"until": ["\n"], "max_gen_toks": 4, "do_sample": False}


def write_lines(path, rows):
    """Write JSON lines; return the path."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_task_file(folder, rows, name="mine", **changes):
    """Write a task that asks `q` and wants `a`, and its rows; return the path of the YAML.

    `changes` are lines of the YAML, of which those that are None are left out.
    """
    data = write_lines(folder / f"{name}.jsonl", rows)
    lines = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{q}}",
        "doc_to_target": "{{a}}",
        "generation_kwargs": None if "output_type" in changes else WRITTEN,
        "metric_list": [METRIC],
    } | changes
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({key: line for key, line in lines.items() if line is not None}))
    return path  # JSON is YAML


def least_result(name="demo/addition", /, **parts):
    """Return the least that result.json may hold, with these parts in place of it."""
    return {
        "schema": 1,
        "model": {"name": "demo"},
        "task": {"name": name},
        "method": {"name": "css"},
        "grid": {"layers": 1, "heads": [2]},
        "estimand": {"heads": "alone", "top": "alone"},
        "heads": [],
        "top": [],
        "validation": {"task": {"name": name}},
    } | parts


def planted_study(folder, *others, task="planted", **options):
    """Make a study of the planted model in a folder, with others of its tasks beside the one."""
    asked, *beside = (str(folder / f"{name}.yaml") for name in (task, *others))
    model = ModelOptions(str(folder), device="cpu")
    return Study(model, asked, other_tasks=tuple(beside), **options)


def steady(result):
    """Return a result's content without its command, and without what hangs on batches."""
    content = {name: part for name, part in result.as_dict().items() if name != "command"}
    cost = dict(content["cost"])
    del cost["seconds"], cost["forward_tokens"]
    return content | {"cost": cost}


def count_rows(folder):
    """Count the rows that a run has stored, whoever writes them; 0 before there are any."""
    place = f"file:{folder / 'rows.sqlite'}?mode=ro"
    try:
        with closing(sqlite3.connect(place, uri=True)) as database:
            return database.execute("SELECT count(*) FROM rows").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
