"""What a task asks of a model, and what comes back. Text in, numbers out: no model, no mask."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue `prompt`; `options` is the JSON of lm-eval's generation arguments."""

    prompt: str
    options: str


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    """How likely is `continuation` after `context`, and is it what greedy decoding would say?"""

    context: str
    continuation: str


@dataclass(frozen=True, slots=True)
class Rolling:
    """How likely is the whole text, window by window?"""

    text: str


Request = Generate | LogLikelihood | Rolling


@dataclass(frozen=True, slots=True)
class Generated:
    """The text up to the first stop string, and the number of tokens decoded."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Scored:
    """Summed log-probability, in nats, of `tokens` tokens; `greedy`: each was the likeliest."""

    logprob: float
    greedy: bool
    tokens: int


Response = Generated | Scored


def options_json(options: dict[str, Any]) -> str:
    """Generation arguments in their one canonical form."""
    return json.dumps(options, sort_keys=True)


def responses_json(responses: tuple[Response, ...]) -> str:
    """Responses as the store keeps them."""
    return json.dumps([asdict(response) for response in responses])


def responses_from_json(text: str) -> tuple[Response, ...]:
    """Read what `responses_json` wrote."""
    return tuple(
        Generated(**fields) if "text" in fields else Scored(**fields) for fields in json.loads(text)
    )
