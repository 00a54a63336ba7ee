"""Files of pairs: what is read of them, what is said of mistakes, and a run on one."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from caploc.cli import app
from caploc.errors import BadData
from caploc.pairs import name_examples, read_pairs
from worlds import DEMO

PAIRS = [(f"{a}+{b}=", str(a + b)) for a in range(12, 52, 7) for b in range(13, 53, 5)]
WRONG = [
    ("a.csv", "prompt,answer\n", "a.csv is empty"),
    ("a.jsonl", '["a", "b"]\n', "a.jsonl, line 1 is no pair; write it as"),
    (
        "a.jsonl",
        '{"prompt": "a", "reply": "b"}\n',
        "line 1 has no 'answer'",
    ),
    ("a.csv", "prompt,answer\na\n", "a.csv, line 2 has no 'answer'"),
    ("a.csv", 'prompt,answer\n"a,b\n', "a.csv, line 2 is no CSV"),
    ("a.jsonl", '{"prompt": "a", "answer": ""}\n', "line 1: its answer is '', and must be a text"),
    ("a.jsonl", '{"prompt": "a", "answer": 3}\n', "line 1: its answer is 3, and must be a text"),
    (
        "a.jsonl",
        '{"prompt": " ", "answer": "b"}\n',
        "line 1: its prompt is ' ', and must be a text",
    ),
    (
        "a.csv",
        "prompt,answer\nIn France, it is, b\n",
        "line 2 has more fields than the header: ' b'",
    ),
]


@pytest.mark.parametrize(("name", "text", "said"), WRONG)
def test_a_mistake_is_named_by_file_and_line(tmp_path, monkeypatch, name, text, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(BadData) as refused:
        read_pairs(name)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_texts_stay_as_they_are_written(tmp_path):
    pairs = [("a, b ", " 01"), ('say "no"\u2028', "é")]
    lines = [json.dumps(dict(zip(("prompt", "answer"), pair, strict=True))) for pair in pairs]
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n\n".join(lines), encoding="utf-8")
    assert read_pairs(str(tmp_path / "a.jsonl")) == pairs
    (tmp_path / "a.csv").write_text('answer,more,prompt\n 01,x,"a, b "\né,,"say ""no"""\n')
    assert read_pairs(str(tmp_path / "a.csv")) == [pairs[0], ('say "no"', "é")]
    lines = '{"prompt": "a\u2028\x85b", "answer": "c"}\r\n'
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8", newline="")
    assert read_pairs(str(tmp_path / "a.jsonl")) == [("a\u2028\x85b", "c")]
    (tmp_path / "a.csv").write_text('prompt,answer\r\n"a\u2028\fb\nc",d\r\n', newline="")
    assert read_pairs(str(tmp_path / "a.csv")) == [("a\u2028\fb\nc", "d")]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_file_of_pairs_is_a_task_as_pairs_in_python_are(tmp_path, ending):
    lines = {
        "jsonl": [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in PAIRS],
        "csv": ["prompt,answer", *(f"{prompt},{answer}" for prompt, answer in PAIRS)],
    }
    (tmp_path / f"sums.{ending}").write_text("\n".join(lines[ending]))
    words = ["locate", DEMO, "--task", str(tmp_path / f"sums.{ending}"), "--method", "css"]
    words += "--masks 12 --rate 0.05 --examples 8 --limit 8 --controls 0 --device cpu".split()
    ended = CliRunner().invoke(app, [*words, "--json", "--out", str(tmp_path / "run")])
    assert ended.exit_code == 0, (ended.output, ended.exception)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    made = name_examples(PAIRS, "sums")
    assert run["study"]["task"] == str(tmp_path / "run" / made / "sums.yaml")
    result = json.loads(ended.stdout)
    assert result["intact"]["examples"] == 8 and result["validation"]["held_out"]["fresh"]
    (tmp_path / f"sums.{ending}").write_text("\n".join(lines[ending][:-1]))
    changed = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert "(task 'sums' with other examples)" in str(changed.exception)
    (tmp_path / f"sums.{ending}").write_text("\n".join(lines[ending]))
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "moved")])
    assert "was moved or renamed since its examples were written" in str(moved.exception)
    (tmp_path / "moved").rename(tmp_path / "run")  # and nothing in it was changed
    assert CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")]).exit_code == 0


def test_the_same_pairs_in_other_words_and_other_pairs_are_scored_beside_them(tmp_path):
    for name in ("sums", "sums_twin", "others"):
        lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in PAIRS]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    words = ["locate", DEMO, "--task", str(tmp_path / "sums.jsonl"), "--method", "css"]
    words += ["--also", f"{tmp_path / 'sums_twin.jsonl'},{tmp_path / 'others.jsonl'}"]
    words += "--masks 12 --rate 0.05 --examples 8 --limit 8 --controls 0 --device cpu".split()
    ended = CliRunner().invoke(app, [*words, "--json", "--out", str(tmp_path / "run")])
    assert ended.exit_code == 0, (ended.output, ended.exception)
    others = json.loads(ended.stdout)["validation"]["other_tasks"]
    assert [(Path(one["name"]).stem, one["twin"]) for one in others] == [
        ("sums_twin", True),
        ("others", False),
        ("copy", False),
    ]
