"""Every text begins with one start token, however it is worded."""

import pytest
from tokenizers.processors import TemplateProcessing

from caploc.engine.encoding import RequestEncoder, chat_template
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import word_tokenizer, words
from worlds.tiny import GROUPED, build

START = 3
TEMPLATE = (
    "{{ bos_token }} {% for message in messages %}{{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}w09{% endif %}"
)
OPTIONS = options_json({"until": [], "max_gen_toks": 4})


def encoder(model_type, *, adds):
    """Of a model whose tokenizer knows a start token, and adds it to every text or leaves that."""
    tokenizer = word_tokenizer()
    tokenizer.bos_token = words([START])
    tokenizer.chat_template = TEMPLATE
    if adds:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{words([START])} $A", special_tokens=[(words([START]), START)]
        )
    config = GROUPED | {"bos_token_id": START}
    config |= {"head_dim": 12} if model_type.startswith("gemma") else {}
    return RequestEncoder(build(model_type, config), tokenizer)


def begins(each, text):
    """Start tokens of a prompt, and of what stands before an answer that is scored."""
    prompt = each.prompt(Generate(text, OPTIONS)).tokens
    context, _ = each.pair(LogLikelihood(text, " w20"))
    return [list(tokens).count(START) for tokens in (prompt, context)]


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_chats_text_begins_with_one_start_token(model_type, adds):
    """Elsewhere the template and the tokenizer both add one, and points are lost.

    https://github.com/lang-uk/ukrainian-llm-leaderboard/issues/5 and
    https://github.com/EleutherAI/lm-evaluation-harness/issues/2797
    """
    each = encoder(model_type, adds=adds)
    text = chat_template(each.tokenizer)([{"role": "user", "content": "w10 w11"}])
    assert begins(each, text) == [1, 1]
    assert each.prompt(Generate(text, OPTIONS)).tokens == (START, 10, 11, 9)


def test_a_gemma_reads_its_start_token_once_before_every_plain_text():
    """Elsewhere a Gemma without it writes nonsense.

    https://github.com/EleutherAI/lm-evaluation-harness/pull/1465
    """
    assert begins(encoder("gemma3_text", adds=True), "w10 w11") == [1, 1]
