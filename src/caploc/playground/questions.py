"""What the page may ask, checked before anything is done about it."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from caploc.errors import BadOption

MOST_TOKENS = 2048  # of one answer
MOST_CHARACTERS = 1_000_000  # of a prompt; the model's window is far below


class PageRequest(BaseModel):
    """Anything the page asks; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ExampleRequest(PageRequest):
    """An example of a task by its number, or any."""

    task: str
    number: int | None = None


class PageQuestion(PageRequest):
    """A prompt, or an example of a task, and the heads to knock out.

    With `example` the prompt, its stops and its length are the task's own.
    """

    heads: list[str] = Field(max_length=1_000_000)
    prompt: str = Field(default="", max_length=MOST_CHARACTERS)
    example: ExampleRequest | None = None
    new_tokens: int = Field(default=64, ge=1, le=MOST_TOKENS)
    stops: list[str] = Field(default=[], max_length=16)
    chat: bool = False


class AttentionRequest(PageRequest):
    """One head's attention over a question's prompt and what was said so far."""

    question: PageQuestion
    said: list[int] = Field(max_length=MOST_TOKENS)
    head: str
    knocked_out: bool = False
    choice: int = Field(default=0, ge=0)


class HeadsRequest(PageRequest):
    """Heads to save, and the run whose ranking they were taken from."""

    heads: list[str]
    run: int | None = None


A = TypeVar("A", bound=PageRequest)


def parse_request(kind: type[A], body: bytes) -> A:
    """Read what the page sent; raises BadOption naming the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        raise BadOption(f"{where}: {first['msg']}.") from None
