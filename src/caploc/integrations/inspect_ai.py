"""inspect_ai with heads knocked out: `inspect eval task.py --model caploc/smollm2`.

inspect_ai imports this module by its entry point; what needs PyTorch is imported with a model.
"""

from concurrent.futures import Future
from typing import Any

import anyio
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from caploc.components import read_heads
from caploc.errors import BadOption, CaplocError
from caploc.tasks.task import Generate, Generated, options_json

NEW_TOKENS = 256  # where a task sets no limit
CONNECTIONS = 256  # samples asked at a time: each waits for nothing but its place in a batch
GATHERING = 0.02  # seconds in which requests that are made together come together
# Settings of inspect_ai that would be ignored, and the values that ask for nothing.
GREEDY = {
    "temperature": (0,),
    "top_p": (1,),
    "top_k": (1,),
    "num_choices": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": (),
    "logprobs": (False,),
    "prompt_logprobs": (0,),
    "response_schema": (),
}
# A request that waits, and what will be its answer.
Waiting = tuple[Generate, "Future[Generated]"]


@modelapi(name="caploc")
class KnockedOutAPI(ModelAPI):
    """A Hugging Face decoder with heads knocked out, as inspect_ai asks models.

    Samples that wait at the same time are answered in one batch, greedily.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  (as inspect_ai declares it)
        knockout: str | None = None,
        batch_size: int | None = None,
        **loading: Any,
    ) -> None:
        """Load the model and knock out the heads of the file `knockout` (none without a file).

        `loading` is as `caploc.load_model` has it; `batch_size` caps the rows that run at a time.

        Raises:
            PrerequisiteError: in one sentence, if the model or the file cannot be used.
        """
        from caploc.engine.batch import BatchEngine
        from caploc.engine.encoding import chat_template
        from caploc.models.loading import load_model

        super().__init__(model_name, base_url, api_key, [], config)
        try:
            file = read_heads(knockout) if knockout else None
            loaded = load_model(model_name, **loading)
            if file:
                file.check(loaded.grid)
        except CaplocError as error:
            # inspect_ai shows this one alone without a traceback
            raise PrerequisiteError(str(error)) from None
        self.engine = BatchEngine(loaded, batch_size)
        self.mask = loaded.grid.mask(file.heads if file else ())
        tokenizer = loaded.tokenizer
        self.chat = chat_template(tokenizer) if tokenizer.chat_template is not None else None
        self.waiting: list[Waiting] = []
        self.turn = anyio.Lock()

    def max_connections(self) -> int:
        return CONNECTIONS

    def max_tokens(self) -> int:
        return NEW_TOKENS

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Answer a conversation; raises BadOption if asked for more than greedy decoding has."""
        refuse_others(tools, config)
        most = config.max_tokens or NEW_TOKENS
        options = {"until": config.stop_seqs or [], "max_gen_toks": most, "do_sample": False}
        request = Generate(self.prompt(input), options_json(options))
        answer = await self.wait_for_answer(request)
        message = ChatMessageAssistant(
            content=answer.text, model=self.model_name, source="generate"
        )
        read = len(self.engine.encoder.prompt(request).tokens)
        return ModelOutput(
            model=self.model_name,
            choices=[
                ChatCompletionChoice(
                    message=message,
                    stop_reason="max_tokens" if answer.end is None else "stop",
                )
            ],
            usage=ModelUsage(
                input_tokens=read,
                output_tokens=len(answer.said),
                total_tokens=read + len(answer.said),
            ),
        )

    def prompt(self, messages: list[ChatMessage]) -> str:
        """Write a conversation as the model reads it: by its chat template, else as plain texts."""
        for message in messages:
            if not isinstance(message.content, str) and any(
                part.type != "text" for part in message.content
            ):
                raise BadOption("caploc asks text only; a message holds images, sound or files.")
        if self.chat is None:
            return "\n\n".join(message.text for message in messages)
        return self.chat([{"role": each.role, "content": each.text} for each in messages])

    async def wait_for_answer(self, request: Generate) -> Generated:
        """Wait for a turn; whoever has it answers everything that waits."""
        mine: Future[Generated] = Future()
        self.waiting.append((request, mine))
        await anyio.sleep(GATHERING)
        async with self.turn:
            if not mine.done():
                batch, self.waiting = self.waiting, []
                # not abandoned on cancellation: the model's hooks are the thread's
                await anyio.to_thread.run_sync(self.answer, batch)
        return mine.result(timeout=0)

    def answer(self, batch: list[Waiting]) -> None:
        """Answer a batch with the engine; an error is everyone's that has no answer yet."""
        from caploc.engine.api import Ask

        try:
            asks = [Ask((row, 0), request, self.mask) for row, (request, _) in enumerate(batch)]
            for done in self.engine.answer(asks):
                for one in done:
                    assert isinstance(one.response, Generated)
                    batch[one.key[0]][1].set_result(one.response)
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)


def refuse_others(tools: list[ToolInfo], config: GenerateConfig) -> None:
    """Refuse what would change answers and cannot be done; raises BadOption naming it."""
    if tools:
        raise BadOption("caploc calls no tools; use a task without them.")
    for name, harmless in GREEDY.items():
        value: Any = getattr(config, name)
        if value is not None and value not in harmless:
            raise BadOption(
                f"caploc decodes greedily, one answer a sample, and cannot do {name}={value!r}; "
                "leave it out."
            )
