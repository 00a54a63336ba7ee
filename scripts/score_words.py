"""Score the `words/...` tasks on three pretrained models, and write the tables of docs/words.md.

    python scripts/score_words.py                  # score what is missing, then write
    python scripts/score_words.py --tables         # write the tables from docs/words.json
    python scripts/score_words.py --out runs/words # where the rows are stored (default)

Every score is `caploc evaluate`'s, from a run folder that keeps each answer; a run that stopped
goes on where it was. Qwen takes an hour or more on two cores, so it answers 100 examples a task.
"""

import argparse
import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from caploc.naming import capability
from caploc.tasks.catalog import own_manager
from caploc.tasks.datafiles import definition

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "src/caploc/tasks/words"
SCORES = ROOT / "docs/words.json"
PAGE = ROOT / "docs/words.md"
BEGIN, END = "<!-- {} begin: made by scripts/score_words.py -->", "<!-- {} end -->"

# Examples that each model answers, None for all; and that it answers in its chat format.
LIMITS: dict[str, int | None] = {"smollm2": None, "gemma3-270m": 50, "qwen2.5-coder-1.5b": 100}
CHAT = {"smollm2": 50}

# By model, then by way of asking (plain, chat), then by task: score, stderr, examples.
Scores = dict[str, dict[str, dict[str, dict[str, float]]]]

MEASURES = {
    "past": "past tense of a verb",
    "plural": "plural of a noun",
    "singular": "singular of a plural",
    "comparative": "comparative of an adjective",
    "third_person": "form of a verb after he or she",
    "gerund": "-ing form of a verb",
    "capital": "capital of a country",
    "country": "country of a capital",
    "nationality": "adjective of a country",
    "antonym": "opposite of a word",
    "french": "English word to French",
    "spanish": "English word to Spanish",
    "next": "next item of a sequence",
    "upper": "first letter in upper case",
    "copy": "the word itself, a control",
    "number_word": "number in words",
    "digits": "number words to digits",
    "ordinal": "number to ordinal",
    "sentiment": "praise or blame",
    "odd_one_out": "which of four things differs",
    "category": "what a thing is",
    "addition": "sum of two-digit numbers",
    "subtraction": "difference of two-digit numbers",
}
CHANCE = {"sentiment": 0.5, "sentiment_twin": 0.5, "odd_one_out": 0.25}


def short(task: str) -> str:
    """Name a task without the folder that all share."""
    return task.removeprefix("words/")


def rows(task: str) -> list[dict[str, str]]:
    """Read the examples of a task."""
    table = definition(own_manager("words").task_index[task])["dataset_kwargs"]["table"]
    return list(csv.DictReader((TABLES / f"{table}.csv").read_text().splitlines()))


def order(task: str) -> tuple[int, str]:
    """Sort tasks as `MEASURES` lists them, a twin behind its task."""
    return list(MEASURES).index(short(capability(task))), task


def measure(model: str, limit: int | None, folder: Path, chat: bool) -> dict[str, object]:
    """Score every task with `caploc evaluate`, and return the scores by task."""
    tasks = ",".join(sorted(own_manager("words").all_tasks, key=order))
    command = [sys.executable, "-m", "caploc", "evaluate", model, "--task", tasks]
    command += ["--out", str(folder)] + (["--limit", str(limit)] if limit else [])
    subprocess.run(command + (["--chat-template"] if chat else []), check=True)
    return read_scores(folder)


def read_scores(folder: Path) -> dict[str, object]:
    """Read the scores of an evaluation, rounded to what they are worth."""
    evaluation = json.loads((folder / "evaluation.json").read_text())
    return {
        task["name"]: {
            "score": round(task["intact"]["score"], 4),
            "stderr": round(task["intact"]["stderr"], 4),
            "examples": task["intact"]["examples"],
        }
        for task in evaluation["tasks"]
    }


def show_score(found: dict[str, float] | None) -> str:
    """Write a score with its standard error, as `.91 ± .02`."""
    if found is None:
        return "not scored"
    score, error = (f"{found[key]:.2f}".removeprefix("0") for key in ("score", "stderr"))
    return f"{score} ± {error}"


def show_shares(task: str) -> str:
    """Write the kinds of answer and their shares, most first."""
    found = rows(task)
    kinds = Counter(row["kind"] for row in found)
    if len(kinds) < 2:
        return ""
    if len(kinds) > 8:
        return f"{len(kinds)} kinds"
    return "; ".join(f"{kind} {round(100 * n / len(found))} %" for kind, n in kinds.most_common())


def describe(task: str) -> str:
    """Write a row of the table of what is asked."""
    config = definition(own_manager("words").task_index[task])
    example = rows(task)[0]
    last = config["doc_to_text"].replace("{{question}}", example["question"]).replace("\n", " ⏎ ")
    chance = f"{CHANCE.get(short(task), 0):g}"
    meaning = MEASURES[short(capability(task))]
    cells = [f"`{task}`", meaning, f"`{last}` → `{example['answer']}`", str(len(rows(task)))]
    return f"| {' | '.join([*cells, chance, show_shares(task)])} |"


def write_tables(scores: Scores) -> str:
    """Return the page with its tables made anew."""
    tasks = sorted(own_manager("words").all_tasks, key=order)
    asked = [
        "| task | what it measures | a prompt's last line, and the answer | examples | chance "
        "| kinds of answer |",
        "|---|---|---|---|---|---|",
        *map(describe, tasks),
    ]
    head = [f"{model} ({asked_of(scores, model, 'plain')})" for model in LIMITS]
    scored = [f"| task | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for task in tasks:
        found = [show_score(scores.get(model, {}).get("plain", {}).get(task)) for model in LIMITS]
        scored.append(f"| `{task}` | {' | '.join(found)} |")
    return fill("tasks", asked, fill("scores", scored, fill("chat", show_chat(scores))))


def asked_of(scores: Scores, model: str, way: str) -> str:
    """Say how many examples of each task a model was asked: all, or the first so many."""
    found = scores.get(model, {}).get(way, {})
    counts = [int(score["examples"]) for score in found.values()]
    if all(score["examples"] == len(rows(task)) for task, score in found.items()):
        return "all"
    return str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def show_chat(scores: Scores) -> list[str]:
    """Write the table of scores in the models' chat format, beside the plain ones."""
    found = {model: scores.get(model, {}).get("chat", {}) for model in CHAT}
    head = [f"{model}, chat ({asked_of(scores, model, 'chat')}) | change" for model in CHAT]
    lines = [f"| task | {' | '.join(head)} |", "|---" * (2 * len(CHAT) + 1) + "|"]
    for task in sorted(own_manager("words").all_tasks, key=order):
        if not any(task in chat for chat in found.values()):
            continue
        cells = []
        for model, chat in found.items():
            plain = scores[model]["plain"].get(task)
            change = f"{chat[task]['score'] - plain['score']:+.2f}" if task in chat else ""
            cells += [show_score(chat.get(task)), change]
        lines.append(f"| `{task}` | {' | '.join(cells)} |")
    return lines


def fill(name: str, lines: list[str], page: str | None = None) -> str:
    """Put lines between the marks of a table in the page."""
    page = PAGE.read_text() if page is None else page
    before, rest = page.split(BEGIN.format(name))
    _, after = rest.split(END.format(name))
    table = "\n".join(lines)
    return f"{before}{BEGIN.format(name)}\n\n{table}\n\n{END.format(name)}{after}"


def main() -> None:
    """Score, store the figures, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs/words", help="run folders")
    parser.add_argument("--tables", action="store_true", help="only write the page's tables")
    given = parser.parse_args()
    scores = json.loads(SCORES.read_text()) if SCORES.exists() else {}
    if not given.tables:
        for chat, limits in ((False, LIMITS), (True, CHAT)):
            for model, limit in limits.items():
                way = "chat" if chat else "plain"
                found = measure(model, limit, given.out / f"{model}-{way}", chat)
                scores.setdefault(model, {})[way] = found
                SCORES.write_text(json.dumps(scores, indent=1) + "\n")
    PAGE.write_text(write_tables(scores))


if __name__ == "__main__":
    main()
