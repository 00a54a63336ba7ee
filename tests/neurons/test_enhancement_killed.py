"""A real `caploc neurons enhance` killed between two arms: what it stored is not tuned again."""

import json
import subprocess
import sys
import time
from shutil import copytree

import pytest
from small_runs import located

pytestmark = pytest.mark.slow  # two processes that tune
PATIENCE = 240  # seconds for the first arms


def enhance(folder):
    """Start the command in a process of its own."""
    asked = "--task demo/addition --steps 3 --rates 1e-2 --limit 2 --draws 5 --quiet"
    arms = "--arm located --arm random"
    command = [sys.executable, "-m", "caploc", "neurons", "enhance", str(folder)]
    return subprocess.Popen(
        [*command, *asked.split(), *arms.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def stored(folder):
    """Every arm in the ledger as (name, draw), in the order in which it was measured."""
    path = folder / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [json.loads(line)["asked"] for line in lines if line.endswith("\n")]
    return [(each["arm"], each.get("draw")) for each in whole if "enhanced" in each]


def test_enhancement_killed_between_arms_and_run_again_repeats_none(tmp_path_factory, tmp_path):
    folder = copytree(located(tmp_path_factory), tmp_path / "run")
    ledger = folder / "ledger.jsonl"
    begun, first = time.monotonic(), enhance(folder)
    while len(stored(folder)) < 3:  # the model as it was, the located arm, and one draw
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() - begun < PATIENCE, "no arm was stored"
        time.sleep(0.02)
    first.kill()
    first.communicate()
    assert first.returncode == -9 and not (folder / "enhancement.json").exists()
    kept, before = stored(folder), ledger.read_bytes()
    assert kept[:2] == [(None, None), ("located", None)] and len(kept) < 7

    second = enhance(folder)
    said = second.communicate(timeout=PATIENCE)[0]
    assert second.returncode == 0, said
    # an arm that is measured is written down, so that a second line would be a second tuning
    everything = [(None, None), ("located", None), *(("random", n) for n in range(5))]
    assert stored(folder) == everything
    assert ledger.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    result = json.loads((folder / "enhancement.json").read_text())
    arms = result["tasks"]["demo/addition"]["arms"]
    assert [(arm["arm"], arm["draw"]) for arm in arms] == everything[1:]
