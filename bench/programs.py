"""Judge the reference solutions of HumanEval and MBPP: how many pass, and how many a second.

    python bench/programs.py --humaneval humaneval_test.jsonl --mbpp mbpp_test.jsonl

The files are the data sets' test splits with a JSON object on each line. Of MBPP's 500 one fails:
the tests of problem 367 use names of its set-up code, which lm-eval's task leaves out.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from caploc.sandbox import Program, Sandbox


def read_rows(path: Path) -> list[dict]:
    """Return the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def humaneval(path: Path) -> list[Program]:
    """Return each problem's solution, with its tests as lm-eval runs them."""
    return [
        Program(
            row["prompt"] + row["canonical_solution"],
            f"{row['test']}\ncheck({row['entry_point']})",
        )
        for row in read_rows(path)
    ]


def mbpp(path: Path) -> list[Program]:
    """Return each problem's solution, with its tests as lm-eval runs them."""
    return [Program(row["code"], "\n".join(row["test_list"])) for row in read_rows(path)]


def main() -> None:
    """Judge what the command line names, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--humaneval", type=Path)
    parser.add_argument("--mbpp", type=Path)
    given = parser.parse_args()
    for read in (humaneval, mbpp):
        path = getattr(given, read.__name__)
        if path is None:
            continue
        programs = read(path)
        sandbox = Sandbox()
        sandbox.judge([Program("", "")])  # what starts once is started
        start = time.perf_counter()
        verdicts = sandbox.judge(programs)
        seconds = time.perf_counter() - start
        passed = sum(verdict.passed for verdict in verdicts)
        rate = len(programs) / seconds
        print(f"{read.__name__}: {passed} of {len(programs)} pass, {rate:.1f} a second")
        print("  ", dict(Counter(verdict.reason for verdict in verdicts)))
        for number, verdict in enumerate(verdicts):
            if not verdict.passed:
                print(f"   row {number}: {verdict.reason}: {verdict.detail}")


if __name__ == "__main__":
    main()
