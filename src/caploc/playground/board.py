"""What the playground's page needs to draw itself."""

from typing import Any

from caploc.finished import FinishedRun
from caploc.options import ZERO
from caploc.playground.answers import ZEROED
from caploc.playground.playground import Playground
from caploc.report.card import cells, label, list_remarks
from caploc.report.headtable import head_map
from caploc.verdict import make_card
from caploc.wording import called, called_apart, inline


def lay_out(playground: Playground) -> dict[str, Any]:
    """Describe a playground: its model, tasks and run."""
    loaded, tasks = playground.loaded, list(playground.options)
    return {
        "model": {
            "name": inline(loaded.name),
            "called": called(loaded.name),
            "dtype": loaded.dtype,
            "device": str(loaded.device),
            "window": playground.window,
            "chat": loaded.tokenizer.chat_template is not None,
        },
        "layers": list(loaded.grid.heads_per_layer),
        "group_sizes": list(loaded.grid.group_sizes),
        "run": lay_out_run(playground.run) if playground.run else None,
        "tasks": tasks,
        "titles": called_apart(tasks),
    }


def lay_out_run(run: FinishedRun) -> dict[str, Any]:
    """Return a run's map, and its heads in the order in which they are knocked out."""
    drawn, shape, card = head_map(run.result), run.result.grid, make_card(run.result)
    heads, grid = shape.model_heads(), shape.grid()
    lost = run.result.validation.task.lost
    samples = lost.samples if lost and run.result.top else []
    squares = [
        {"shade": cell.shade, "text": cell.text, "note": cell.note}
        for layer in drawn.layers
        for cell in layer
    ]
    return {
        "task": run.study.task,
        "label": label(card),
        "heading": card.heading,
        "rows": [list(cells(row)) for row in card.rows],
        "remarks": [*list_remarks(card), *([ZEROED] if run.result.method.mode != ZERO else [])],
        "order": [str(head) for head in heads.named_in(run.result.ranking())],
        "lost": samples[0].example if samples else None,  # what the page opens on
        "top": len(heads.named_in(run.result.top)),
        # each head's colour, effect and note, layer by layer; those of its group or layer
        "cells": [
            [squares[owner] for owner in grid.owners[columns]] for columns in heads.layer_slices
        ],
        "legend": {"needed": drawn.needed_end, "helped": drawn.helped_end},
    }
