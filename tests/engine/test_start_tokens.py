"""Every text begins with one start token, whoever adds it."""

import pytest
from tokenizers.processors import TemplateProcessing

from caploc.engine.encoding import RequestEncoder, chat_template
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import word_tokenizer, words
from worlds.tiny import GROUPED, build

START, OPTIONS = 3, options_json({"until": [], "max_gen_toks": 4})
TEMPLATE = (
    "{{ bos_token }} {% for message in messages %}{{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w09{% endif %}"
)


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_text_begins_with_one_start_token(model_type, adds):
    """Elsewhere a chat has two, of template and tokenizer, or a Gemma none and writes nonsense.

    EleutherAI/lm-evaluation-harness 1465 and 2797, lang-uk/ukrainian-llm-leaderboard 5
    """
    tokenizer, start = word_tokenizer(), words([START])
    tokenizer.bos_token, tokenizer.chat_template = start, TEMPLATE
    if adds:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, START)]
        )
    model = build(model_type, GROUPED | {"bos_token_id": START, "head_dim": 12})
    encoder = RequestEncoder(model, tokenizer)
    chat = chat_template(tokenizer)([{"role": "user", "content": "w10 w11"}])
    read = {chat: [START, 10, 11, 9]} | ({"w10 w11": [START, 10, 11]} if adds else {})
    for text, tokens in read.items():
        assert [*encoder.prompt(Generate(text, OPTIONS)).tokens] == tokens
        context, _ = encoder.pair(LogLikelihood(text, " w20"))
        assert [*context] == tokens
