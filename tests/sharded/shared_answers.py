"""A program for torchrun: answer many asks with one model in several processes.

Arguments: the model's folder, and where the process that leads writes the answers. Without torchrun
it answers with one process.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from caploc.engine import Ask, BatchEngine
from caploc.models.loading import load_model
from caploc.models.placement import join_team
from caploc.process import launched
from caploc.tasks.task import Generate, LogLikelihood, Rolling, options_json
from caploc.workers import LeadingEngine, is_leader

SHARED = "w05 w06 w07 w08 w09 w10 w11 w12 w13 w14 w15 w16"  # a prefix that rows have in common
OPTIONS = options_json({"until": [], "max_gen_toks": 8})


def asks(grid):
    """Requests of every kind, under masks with heads of one process, of the other, and of both."""
    drawn = np.random.default_rng(0).random((12, grid.size)) < 0.2
    drawn[0] = False
    for row, columns in enumerate(grid.layer_slices, start=1):
        drawn[row] = False
        drawn[row, columns.start if row % 2 else columns.stop - 1] = True
    requests = [
        Generate(f"{SHARED} w20 w21", OPTIONS),
        Generate(f"{SHARED} w22", OPTIONS),
        Generate("w30 w31 w32", OPTIONS),
        LogLikelihood(SHARED, " w40 w41 w42"),
        LogLikelihood(SHARED, " w43"),
        Rolling("w50 w51 w52 w53"),
    ]
    pairs = [(mask, request) for mask in drawn for request in requests]
    return [Ask((number, 0), request, mask) for number, (mask, request) in enumerate(pairs)]


def answered(engine, plain):
    """Every answer by the number of its ask."""
    if plain:
        engine.generation.packed = engine.likelihood.packed = None
    found = [answer for batch in engine.answer(asks(engine.grid)) for answer in batch]
    return {str(answer.key[0]): asdict(answer.response) for answer in found}


def write(target, results):
    """Keep the results."""
    Path(target).write_text(json.dumps(results))


def alone(folder):
    """Packed and plain answers of one process."""
    engine = BatchEngine(load_model(folder, device="cpu"))
    assert engine.packed is not None
    return {"packed": answered(engine, False), "plain": answered(engine, True)}


def together(folder, target):
    """The same by processes that share the model: the leader tells, the others follow."""
    with is_leader() as leads:
        if leads:
            engine = LeadingEngine({"name": folder, "device": "shard"}, None)
            assert engine.packed is not None
            held = [site.inside for site in engine.loaded.projections]
            results = {"held": [[each.start, each.stop] for each in held]}
            results["packed"] = answered(engine, False)
            results["again"] = answered(
                LeadingEngine({"name": folder, "device": "shard"}, 3), False
            )
            write(target, results)


def plainly(folder, target):
    """Every process loads and answers for itself, the plain way."""
    engine = BatchEngine(load_model(folder, device="shard"))
    results = {"plain": answered(engine, True)}
    if join_team().leads:
        write(target, results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    way, folder, target = sys.argv[1:]
    assert launched()
    {"together": together, "plainly": plainly}[way](folder, target)
