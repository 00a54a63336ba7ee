"""What the page lays out before anything is asked: the model, its heads, runs and tasks."""

from typing import Any

from caploc.evaluation import order
from caploc.finished import FinishedRun
from caploc.playground.playground import Playground
from caploc.playground.setting import DEMO
from caploc.report.headmap import HeadMap, head_map
from caploc.report.reading import called, inline
from caploc.report.sentence import headline

# A prompt to begin with. The demo model was trained on lines, each a text of its own.
FIRST = {DEMO: {"prompt": "47+38=", "stops": ["\n"], "new_tokens": 16}}
ELSEWHERE = {"prompt": "", "stops": [], "new_tokens": 64}


def board(playground: Playground) -> dict[str, Any]:
    """Everything the page needs to draw itself."""
    loaded, setting = playground.loaded, playground.setting
    grid = loaded.grid
    return {
        "model": {
            "name": inline(loaded.name),
            "called": called(loaded.name),
            "dtype": loaded.dtype,
            "device": str(loaded.device),
            "window": playground.window,
            "chat": loaded.tokenizer.chat_template is not None,
        },
        "layers": list(grid.heads_per_layer),
        "group_sizes": list(grid.group_sizes),
        "runs": [laid_out(run) for run in setting.runs],
        "tasks": list(setting.tasks),
        "first": FIRST.get(setting.model.name, ELSEWHERE),
    }


def laid_out(run: FinishedRun) -> dict[str, Any]:
    """A run's map, and its heads in the order in which they are knocked out one after another."""
    drawn = head_map(run.result)
    return {
        "name": inline(run.folder.name),
        "task": run.study.task,
        "sentence": headline(run.result),
        "order": order(run.result),
        "top": len(run.result["top"]),
        "cells": cells(drawn),
        "legend": {"needed": drawn.needed_end, "helped": drawn.helped_end},
    }


def cells(drawn: HeadMap) -> list[list[dict[str, str]]]:
    """Each head's colour, effect and note, layer by layer."""
    return [
        [{"shade": cell.shade, "text": cell.text, "note": cell.note} for cell in layer]
        for layer in drawn.layers
    ]
