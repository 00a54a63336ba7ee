"""Task files of strangers: families of YAML, templates, loaders. One sentence, or no harm; no code.

Every file is named by a run folder, so no Python is allowed. `evil.py` beside the files, in `deep`
and on `sys.path` leaves a mark when it is imported; the pickle leaves one when it is opened.
"""

import io
import os
import pickletools  # only named: pickles here are written by hand
from pathlib import Path
from time import monotonic

import lm_eval
import pytest

from caploc.errors import CaplocError
from caploc.tasks.catalog import load_task
from caploc.tasks.taskfiles import permit_code
from caploc.workbench import Allowed

pytestmark = pytest.mark.attacks
SECONDS = 60  # that a refusal may take on a busy machine
EVIL = "!function evil.f"
OWN = Path(lm_eval.__file__).parent / "tasks"
BODY = """\
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/data.jsonl}}
test_split: test
output_type: generate_until
doc_to_target: a
metric_list: [{metric: exact_match}]
generation_kwargs: {until: ["x"], do_sample: false}
"""
TASK = BODY + "doc_to_text: q\n"


def plus(line, name="mine"):
    """A sound task with one key replaced or added: YAML's later key wins."""
    return f"task: {name}\n{TASK}{line}\n"


CLEAN, CODE = plus(""), plus(f"doc_to_text: {EVIL}")
CODE_KEYS = (
    "doc_to_text doc_to_target doc_to_choice process_docs process_results custom_dataset class "
    "description gen_prefix use_prompt dataset_path test_split output_type task tag include "
    "metadata repeats num_fewshot fewshot_config filter_list metric_list generation_kwargs anything"
).split()
NESTED = [
    f"metric_list: [{{metric: {EVIL}}}]",
    f"metric_list: [{{metric: exact_match, aggregation: {EVIL}}}]",
    "metric_list: [{metric: ./evil.py}]",
    "metric_list: [{metric: FOLDER/evil}]",
    "metric_list: [{metric: someone/evil}]",
    "metric_list: [{metric: exact_match, hf_evaluate: true}]",
    "metric_list: [{metric: evil, hf_evaluate: yes}]",
    f"filter_list: [{{name: n, filter: [{{function: {EVIL}}}]}}]",
    f"fewshot_config: {{sampler: {EVIL}}}",
    f"fewshot_config: {{samples: {EVIL}}}",
    f"fewshot_config: {{doc_to_text: {EVIL}}}",
    f"fewshot_config: {{process_docs: {EVIL}}}",
    f"metadata: {{a: [{{b: {EVIL}}}]}}",
    f"? {EVIL}\n: 1",
    f"a: !!set {{{EVIL}}}",
    f"a: !!omap [b: {EVIL}]",
    f"a: !!pairs [b: {EVIL}]",
    f"a: &x {EVIL}\nprocess_docs: *x",
    f"a: &x {{process_docs: {EVIL}}}\n<<: *x",
    "process_docs: !<!function> evil.f",
    "process_docs: !function deep.evil.f",
    "process_docs: !function ../evil.f",
    "process_docs: !function os.system",
    "process_docs: !function FOLDER/evil.f",
    "process_docs: !!python/name:os.system",
    "process_docs: !!python/object/apply:os.system ['true']",
    "process_docs: !!python/object/new:evil.f []",
    "process_docs: !!python/module:evil",
    "use_prompt: FOLDER/prompts.yaml:one",
    "use_prompt: promptsource:one",
    "use_prompt: prompts.yaml:one:two",
    "class: evil.f",
]
# What lies in the folder; `z.yaml` is the file that is named.
FAMILIES = {
    "same task": {"z": CLEAN, "a": CODE},
    "same tag": {"z": CLEAN, "a": CODE.replace("task: mine", "task: other\ntag: mine")},
    "same tags": {"z": CLEAN, "a": CODE.replace("task: mine", "task: other\ntag: [mine, b]")},
    "same group": {"z": CLEAN, "a": f"group: mine\ntask: [{{task: b, process_docs: {EVIL}}}]\n"},
    "group over": {"z": CLEAN, "a": "group: mine\ntask: [b]\n", "b": CODE.replace("mine", "b")},
    "class": {"z": CLEAN, "a": f"class: {EVIL}\ntask: mine\n"},
    "deep": {"z": CLEAN, "deep/a": CODE},
    "own tag": {"z": plus("tag: mine"), "a": CODE.replace("task: mine", "task: b\ntag: mine")},
    "tag of another": {"z": plus("tag: b"), "a": CODE.replace("mine", "b")},
    "included": {"z": plus("include: a.yaml"), "a": CODE},
    "included list": {"z": plus("include: [b.yaml, a.yaml]"), "a": CODE, "b": "x: 1\n"},
    "included twice": {"z": plus("include: b.yaml"), "b": "include: a.yaml\n", "a": CODE},
    "included deep": {"z": plus("include: deep/a.yaml"), "deep/a": CODE},
    "included up": {"z": plus("include: deep/../a.yaml"), "a": CODE, "deep/b": CLEAN},
    "included by path": {"z": plus("include: FOLDER/a.yaml"), "a": CODE},
    "included itself": {"z": plus("include: z.yaml")},
    "included in a circle": {"z": plus("include: a.yaml"), "a": "include: z.yaml\n"},
    "included task list": {"z": plus("include: a.yaml"), "a": f"task_list: [{EVIL}]\n"},
    "included folder": {"z": plus("include: deep"), "deep/a": CODE},
    "included nothing": {"z": plus("include: absent.yaml")},
    "included number": {"z": plus("include: 7")},
    "included mapping": {"z": plus("include: {a: b}")},
    "included device": {"z": plus("include: /dev/zero")},
    "included random": {"z": plus("include: /dev/urandom")},
    "included pipe": {"z": plus("include: PIPE")},
    "included memory": {"z": plus("include: /proc/self/mem")},
    "included terminal": {"z": plus("include: /dev/tty")},
    "included password": {"z": plus("include: /etc/passwd")},
    "included NUL": {"z": plus('include: "a\\0b"')},
    "included long": {"z": plus(f"include: {'a' * 5000}")},
    "included home": {"z": plus("include: ~nobody/x.yaml")},
    "fan of includes": {
        "z": plus("include: [a.yaml, a.yaml, a.yaml, a.yaml, a.yaml, a.yaml, a.yaml, a.yaml]"),
        "a": "include: [b.yaml, b.yaml, b.yaml, b.yaml, b.yaml, b.yaml, b.yaml, b.yaml]\n",
        "b": "include: [c.yaml, c.yaml, c.yaml, c.yaml, c.yaml, c.yaml, c.yaml, c.yaml]\n",
        "c": "include: [d.yaml, d.yaml, d.yaml, d.yaml, d.yaml, d.yaml, d.yaml, d.yaml]\n",
        "d": "x: 1\n",
    },
    "group": {"z": "group: g\ntask: [mine]\n", "a": CODE},
    "group of groups": {"z": "group: g\ntask: [h]\n", "b": "group: h\ntask: [mine]\n", "a": CODE},
    "group of a tag": {"z": "group: g\ntask: [t]\n", "a": plus(f"tag: t\nprocess_docs: {EVIL}")},
    "group of itself": {"z": "group: g\ntask: [g]\n"},
    "groups of each other": {"z": "group: g\ntask: [h]\n", "a": "group: h\ntask: [g]\n"},
    "group of nothing": {"z": "group: g\ntask: []\n"},
    "group of a word": {"z": "group: g\ntask: mine\n", "a": CODE},
    "group of numbers": {"z": "group: g\ntask: [1, 2.5, null, true]\n"},
    "group of the absent": {"z": "group: g\ntask: [nobody]\n"},
    "group of a path": {"z": "group: g\ntask: [FOLDER/a.yaml]\n", "a": CODE},
    "group twice": {"z": "group: g\ntask: [mine]\n", "a": CLEAN, "b": CODE},
    "group overrides": {"z": f"group: g\ntask: [mine]\nprocess_docs: {EVIL}\n", "a": CLEAN},
    "group's metric": {"z": "group: g\ntask: [mine]\nmetric_list: [{metric: e/e}]\n", "a": CLEAN},
    "group's data": {"z": "group: g\ntask: [mine]\ndataset_path: pandas\n", "a": CLEAN},
    "group's aggregate": {
        "z": "group: g\ntask: [mine]\naggregate_metric_list:\n"
        f"  - {{metric: x, aggregation: {EVIL}}}\n",
        "a": CLEAN,
    },
    "inline": {"z": f"group: g\ntask: [{{task: mine, process_docs: {EVIL}}}]\n", "a": CLEAN},
    "inline alone": {"z": f"group: g\ntask: [{{task: new, process_docs: {EVIL}}}]\n"},
    "inline group": {"z": f"group: g\ntask: [{{group: h, task: [mine], x: {EVIL}}}]\n", "a": CLEAN},
    "inline to code": {"z": "group: g\ntask: [{group: h, task: [mine]}]\n", "a": CODE},
    "inline names a group": {
        "z": "group: g\ntask: [{group: h}]\n",
        "b": "group: h\ntask: [mine]\n",
        "a": CODE,
    },
    "inline loader": {"z": "group: g\ntask: [{task: new, dataset_path: pandas}]\n"},
    "inline without files": {"z": "group: g\ntask: [{task: new, dataset_path: json}]\n"},
    "inline include": {"z": "group: g\ntask: [{task: new, include: a.yaml}]\n", "a": CODE},
    "mixture": {"z": "group: g\ntask: [mine, b]\nmetadata: {mixture: true}\n", "a": CODE,
                "b": CLEAN.replace("mine", "b")},
    "mixture of paths": {
        "z": "group: g\ntask: [FOLDER/deep/a.yaml, b]\nmetadata: {mixture: true}\n",
        "deep/a": CODE,
        "b": CLEAN.replace("mine", "b"),
    },
    "mixture of itself": {"z": "group: g\ntask: [g, g]\nmetadata: {mixture: true}\n"},
    "mixture of nobody": {"z": "group: g\ntask: [nobody, b]\nmetadata: {mixture: true}\n"},
    "both": {"z": f"group: g\ntask: mine\nprocess_docs: {EVIL}\n"},
    "class and group": {"z": f"class: {EVIL}\ngroup: g\n"},
    "lm-eval's class": {"z": f"include: {OWN}/unitxt/20_newsgroups.yaml\nrecipe: x\ntask: mine\n"},
    "lm-eval's loader": {
        "z": f"include: {OWN}/ruler/niah_single_1.yaml\ntask: mine\n"
        "metadata: {pretrained: FOLDER}\n"
    },
    "lm-eval's path with dots": {"z": f"include: {OWN}/../tasks/ruler/cwe.yaml\ntask: mine\n"},
    "unknown shape": {"z": "dataset_path: json\n"},
    "two documents": {"z": CLEAN + "---\n" + CODE},
    "no mapping": {"z": f"- {EVIL}\n"},
    "empty": {"z": ""},
    "null": {"z": "null\n"},
    "binary": {"z": "\x00\x01\x02"},
    "not YAML": {"z": "task: [\n"},
    "lists in lists": {"z": "task: " + "[" * 50_000},
    "mappings in mappings": {"z": "task: mine\nx: " + "{a: " * 5_000},
    "questions": {"z": "? " * 50_000},
    "dashes": {"z": "- " * 50_000},
    "anchors": {"z": "".join(f"&a{n} x{n}: 1\n" for n in range(5000))},
    "laughs": {
        "z": plus("a: &a [x, x, x, x, x, x, x, x, x]")
        + "".join(f"{b}: &{b} [{', '.join(f'*{a}' for _ in range(9))}]\n"
                  for a, b in zip("abcdefgh", "bcdefghi", strict=True))
    },
    "circle of aliases": {"z": plus("a: &a [*a]")},
    "key of lists": {"z": plus("? [a, b]\n: 1")},
    "merge of nothing": {"z": plus("<<: 7")},
    "long": {"z": CLEAN + "#" * 2_000_000},
    "name of a list": {"z": f"task: [[mine]]\n{TASK}"},
    "name of a number": {"z": f"task: 7\n{TASK}"},
    "empty name": {"z": f"task: ''\n{TASK}"},
    "name of a path": {"z": plus("", "../../etc/passwd")},
    "name of HTML": {"z": plus("", "'<script>alert(1)</script>'")},
    "name of codes": {"z": plus("", '"\\e[31mred"')},
    "repeats": {"z": plus("repeats: 1000000000")},
    "few shots": {"z": plus("num_fewshot: 1000000000\nfewshot_split: test")},
    "few below zero": {"z": plus("num_fewshot: -1")},
    "unknown output": {"z": plus("output_type: image")},
    "unknown filter": {"z": plus("filter_list: [{name: n, filter: [{function: os.system}]}]")},
    "filter of nothing": {"z": plus("filter_list: [7]")},
    "metric of nothing": {"z": plus("metric_list: [{}]")},
    "metrics of text": {"z": plus("metric_list: exact_match")},
    "unknown aggregation": {"z": plus("metric_list: [{metric: acc, aggregation: os.system}]")},
    "unknown sampler": {"z": plus("fewshot_config: {sampler: os.system}")},
    "a word for a function": {"z": plus("custom_dataset: evil.f")},
    "unsafe": {"z": plus("unsafe_code: true")},
}  # fmt: skip
TEMPLATES = [
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ lipsum.__globals__['os'].popen('touch MARK').read() }}",
    "{{ self._TemplateReference__context }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ (''|attr('__class__'))|attr('__mro__') }}",
    "{{ q['__init__'] }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(q) }}",
    "{{ '{0.__class__}'.format_map({'0': q}) }}",
    "{{ ('%s' % q.__class__) }}",
    "{{ range.__self__ }}",
    "{{ dict.__subclasshook__ }}",
    "{{ q.upper.__self__.__class__ }}",
    "{{ (q|map).gi_frame.f_globals }}",
    "{{ (q|map('upper')).gi_code }}",
    "{{ [].append(1) }}",
    "{% import 'evil.py' as e %}{{ e.f() }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{% from 'os' import system %}",
    "{{ url_for.__globals__ }}",
    "{{ config }}",
    "{{ request.application }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{{ range(99999)|map('string')|join(range(99999)|join) }}",
    "{{ range(10**9) }}",
    "{{ 'a' * 10**10 }}",
    "{{ 'a' * 10**12 }}",
    "{{ [0] * 10**11 }}",
    "{{ 9**9**9 }}",
    "{{ 2 ** 10**9 }}",
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a'|center(10**10) }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:>99999999999}'.format(1) }}",
    "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
    "{{ ('\\n' * 1000000)|indent(1000000) }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% for x in [[[]]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    "{{ ('a' * 40)|regex_replace('(a+)+b', '') }}",
    "{{ ('a' * 40)|regex_replace('(a|aa)+$b', '') }}",
    "{{ q|regex_replace('(', '') }}",
    "{{ lipsum(n=10**8) }}",
    "{{ range(99999)|batch(1)|sum(start=[]) }}",
    "{{ range(99999)|batch(99999999999, 'x')|list }}",
    "{{ {}|tojson(indent=10**10) }}",
    "{{ range(99999)|tojson(indent=1000000) }}",
    "{{ range(99999)|list|pprint }}",
    "{{ 1/0 }}",
    "{{ q.nothing.at.all }}",
    "{{ nothing }}",
    "{% if %}",
    "{{",
    "{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "{{ " + "not " * 20000 + "q }}",
    "{{ " + "-" * 20000 + "1 }}",
    "{{ " + "[" * 500 + "]" * 500 + " }}",
    "{% if q %}" * 500 + "{% endif %}" * 500,
    "x" * 300_000,
    "\ud83d",
    "[" * 100_000,
    "{{ '[' * 100000 }}",
    "{{ '-' * 1000000 }}",
]
LOADERS = [
    "dataset_path: pandas",
    "dataset_path: pandas\ndataset_kwargs: {data_files: {test: FOLDER/evil.pkl}}",
    "dataset_path: webdataset\ndataset_kwargs: {data_files: {test: FOLDER/evil.tar}}",
    "dataset_path: sql\ndataset_kwargs: {sql: 'select 1', con: 'sqlite:////tmp/x'}",
    *(f"dataset_path: {name}" for name in (
        "arrow cache generator spark imagefolder audiofolder videofolder pdffolder xml hdf5 lance "
        "iceberg vortex eval harbor tsfile niftifolder conll").split()),
    "dataset_path: json\ndataset_kwargs: null",
    "dataset_path: json\ndataset_kwargs: 7",
    "dataset_path: json\ndataset_kwargs: {data_dir: /}",
    "dataset_path: json\ndataset_kwargs: {data_dir: 7}",
    "dataset_path: FOLDER/pickles",
    "dataset_path: FOLDER/script",
    "dataset_path: FOLDER/evil.py",
    "dataset_path: ./evil",
    "dataset_path: /",
    "dataset_path: /dev",
    "dataset_path: ..",
    "dataset_path: ../x",
    "dataset_path: a/b/c",
    "dataset_path: 7",
    "dataset_path: [json]",
    "dataset_path: {json: 1}",
    "dataset_path: ''",
    "dataset_path: 'hf://buckets/a/b'",
    "dataset_path: 's3://a/b'",
    "dataset_path: 'https://example.com/x.py'",
    *(f"dataset_kwargs: {{data_files: {{test: {place!r}}}}}" for place in (
        "/dev/zero", "/dev/urandom", "/dev/stdin", "PIPE", "/proc/self/mem", "FOLDER/*.fifo",
        "zip://x::/tmp/x.zip", "reference://x::FOLDER/refs.json", "file:///dev/zero",
        "simplecache::https://example.com", "ftp://example.com/x", "s3://x/y", "memory://x",
        "github://a:b@/x", "filecache::x", "local:///dev/zero", "FOLDER", "a\x01b", "[::1]://",
        "FOLDER/evil.pkl", "")),
    "dataset_kwargs: {data_files: [7]}",
    "dataset_kwargs: {data_files: {test: {a: [b, /dev/zero]}}}",
    *(f"dataset_kwargs: {{{key}: x}}" for key in (
        "storage_options download_config token features cache_dir download_mode num_proc "
        "builder_cls path save_infos filters dialect engine converters").split()),
]  # fmt: skip


def write(folder, files):
    """The files of a family, with what else a stranger may have put beside them."""
    mark = folder / "MARK"
    (folder / "deep").mkdir(exist_ok=True)
    code = f"open({str(mark)!r}, 'w').close()\ndef f(*a, **k): return a[0]\n"
    for name in ("evil.py", "deep/evil.py", "evil/evil.py", "script/script.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    pickled = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
    (folder / "pickles").mkdir()
    for name in ("evil.pkl", "pickles/test.pkl"):
        (folder / name).write_bytes(pickled)
    (folder / "refs.json").write_text('{"version": 1, "templates": {"u": "{{ 7 }}"}}')
    (folder / "prompts.yaml").write_text("prompts: {one: {doc_to_text: !!python/name:os.system}}\n")
    (folder / "data.jsonl").write_text('{"q": "1+1=", "a": "2"}\n')
    os.mkfifo(folder / "PIPE")
    os.mkfifo(folder / "x.fifo")
    for name, text in files.items():
        said = text.replace("FOLDER", str(folder)).replace("PIPE", str(folder / "PIPE"))
        said = said.replace("MARK", str(mark))
        (folder / f"{name}.yaml").write_text(said, encoding="utf-8", errors="surrogatepass")
    return mark


def attack(folder, monkeypatch, files):
    """Load the family as a run folder's; the sentence, or None where it did no harm."""
    mark = write(folder, files)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    start, file = monotonic(), str(folder / "z.yaml")
    said = None
    try:
        Allowed().check_task("run.json", file)
        load_task(file)
    except CaplocError as error:
        said = str(error)
        assert said.strip() and len(said) < 3000 and "Traceback" not in said
    finally:
        permit_code(file, True)
    assert monotonic() - start < SECONDS
    assert not mark.exists(), "code ran"
    return said


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_runs_nothing(tmp_path, monkeypatch, name):
    attack(tmp_path, monkeypatch, FAMILIES[name])


@pytest.mark.parametrize("line", [*(f"{key}: {EVIL}" for key in CODE_KEYS), *NESTED])
def test_code_in_a_task_is_refused(tmp_path, monkeypatch, line):
    assert attack(tmp_path, monkeypatch, {"z": plus(line)})


@pytest.mark.parametrize("line", [*(f"{key}: {EVIL}" for key in CODE_KEYS), *NESTED])
def test_code_in_what_a_task_includes_is_refused(tmp_path, monkeypatch, line):
    files = {"z": "include: deep/base.yaml\ntask: mine\n", "deep/base": TASK + line + "\n"}
    assert attack(tmp_path, monkeypatch, files)


@pytest.mark.parametrize("key", ["doc_to_text", "description"])
@pytest.mark.parametrize("number", range(len(TEMPLATES)))
def test_a_template_reaches_nothing_and_ends(tmp_path, monkeypatch, key, number):
    text = TEMPLATES[number].encode("unicode_escape").decode().replace('"', '\\"')
    attack(tmp_path, monkeypatch, {"z": plus(f'{key}: "{text}"')})


@pytest.mark.parametrize("line", LOADERS)
def test_a_loader_unpickles_nothing_and_ends(tmp_path, monkeypatch, line):
    said = attack(tmp_path, monkeypatch, {"z": plus(line)})
    assert said or line == "dataset_path: arrow"


@pytest.mark.parametrize("kind", ["task", "member", "included"])
def test_links_lead_to_no_code(tmp_path, monkeypatch, kind):
    """A link is read where it leads to, functions and all."""
    far = tmp_path / "far"
    far.mkdir()
    (far / "evil.yaml").write_text(CODE.replace("FOLDER", str(tmp_path)))
    if kind == "task":
        os.symlink(far / "evil.yaml", tmp_path / "z.yaml")
        files = {}
    else:
        os.symlink(far / "evil.yaml", tmp_path / "a.yaml")
        files = {"z": "group: g\ntask: [mine]\n" if kind == "member" else plus("include: a.yaml")}
    assert attack(tmp_path, monkeypatch, files)


def test_the_pickle_would_leave_a_mark(tmp_path):
    """The attack is one: its opcodes call a program."""
    mark = write(tmp_path, {})
    listing = io.StringIO()
    pickletools.dis((tmp_path / "evil.pkl").read_bytes(), out=listing)
    assert "posix system" in listing.getvalue() and str(mark) in listing.getvalue()
