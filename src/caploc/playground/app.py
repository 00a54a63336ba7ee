"""The playground's addresses: its page, what the page asks, and who may ask it."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from caploc.components import NAME
from caploc.finished import FinishedRun
from caploc.playground.answers import Event
from caploc.playground.playground import Playground
from caploc.playground.serving import (
    JSON,
    Handler,
    Turns,
    build_site,
    read_request,
    report_errors,
    show_playground,
)
from caploc.playground.setting import (
    AttentionRequest,
    ExampleRequest,
    HeadsRequest,
    PageQuestion,
    ScoreRequest,
)
from caploc.report.card import cells, label, list_remarks
from caploc.report.headtable import head_map
from caploc.verdict import list_lost, make_card
from caploc.wording import called, called_apart, inline


class Site:
    """What each address of the playground answers."""

    def __init__(self, playground: Playground, turns: Turns | None = None) -> None:
        self.playground, self.turns = playground, turns or Turns()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/board", report_errors(self.board)),
            *(
                Route(f"/{name}", report_errors(act), methods=["POST"])
                for name, act in self.actions().items()
            ),
        ]

    def actions(self) -> dict[str, Handler]:
        return {
            "example": self.example,
            "answers": self.answers,
            "scores": self.scores,
            "attention": self.attention,
            "heads": self.heads,
        }

    async def lay_out(self) -> dict[str, Any]:
        return await self.turns.call(lay_out, self.playground)

    async def board(self, request: Request) -> Response:
        return JSONResponse(await self.lay_out())

    async def example(self, request: Request) -> Response:
        asked = await read_request(ExampleRequest, request)
        # described on the thread that loads tasks
        return JSONResponse(
            await self.turns.call(lambda: self.playground.example(asked).describe())
        )

    async def answers(self, request: Request) -> Response:
        """Both answers, token by token."""
        return self.stream(self.playground.answers(await read_request(PageQuestion, request)))

    async def scores(self, request: Request) -> Response:
        """How far the scoring is, and at its end both scores."""
        return self.stream(self.playground.scores(await read_request(ScoreRequest, request)))

    async def attention(self, request: Request) -> Response:
        """A head's pattern; the weights are float32, row by row, in base64."""
        asked = await read_request(AttentionRequest, request)
        found = await self.turns.call(self.playground.attention, asked)
        weights = base64.b64encode(found["weights"].tobytes()).decode()
        return JSONResponse(found | {"weights": weights})

    async def heads(self, request: Request) -> Response:
        asked = await read_request(HeadsRequest, request)
        saved = await self.turns.call(self.playground.save_heads, asked)
        as_file = {"content-disposition": f'attachment; filename="{NAME}"'}
        return Response(saved, media_type=JSON, headers=as_file)

    def stream(self, events: Generator[Event, None, None]) -> Response:
        """Answer with events, a line of JSON each, as they come."""
        lines = encode_events(self.turns.stream(events))
        return StreamingResponse(lines, media_type="application/x-ndjson")


def application(playground: Playground, hosts: Sequence[str]) -> Starlette:
    """Return a web application that answers under these host names and IP addresses."""
    site = Site(playground)
    return build_site([Route("/", show_playground), *site.routes()], site.turns, hosts)


async def encode_events(events: AsyncGenerator[Event, None]) -> AsyncIterator[bytes]:
    """Yield events as lines of JSON; close them when nobody listens any more."""
    async with aclosing(events):
        async for event in events:
            yield json.dumps(event, allow_nan=False).encode() + b"\n"


def lay_out(playground: Playground) -> dict[str, Any]:
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
        "runs": [lay_out_run(run) for run in setting.runs],
        "tasks": list(setting.tasks),
        "titles": called_apart(setting.tasks),
    }


def lay_out_run(run: FinishedRun) -> dict[str, Any]:
    """Return a run's map, and its heads in the order in which they are knocked out."""
    drawn, shape, card = head_map(run.result), run.result.grid, make_card(run.result)
    heads, grid = shape.model_heads(), shape.grid()
    failures, action = run.result.validation.task.failures, run.result.validation.action
    lost = list_lost(failures) if failures and run.result.top else []
    squares = [
        {"shade": cell.shade, "text": cell.text, "note": cell.note}
        for layer in drawn.layers
        for cell in layer
    ]
    return {
        "name": inline(run.folder.name),
        "task": run.study.task,
        "label": label(card),
        "heading": card.heading,
        "rows": [list(cells(row)) for row in card.rows],
        "remarks": list_remarks(card),
        "order": [str(head) for head in heads.named_in(run.result.ranking())],
        "lost": lost[0].example if lost else None,  # what the page opens on
        "promotes": [inline(word) for word in action.promotes] if action else [],
        "top": len(heads.named_in(run.result.top)),
        # each head's colour, effect and note, layer by layer; those of its group or layer
        "cells": [
            [squares[owner] for owner in grid.owners[columns]] for columns in heads.layer_slices
        ],
        "legend": {"needed": drawn.needed_end, "helped": drawn.helped_end},
    }
