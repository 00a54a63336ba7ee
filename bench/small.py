"""Three small models that always do one thing right: additions, choices, copies.

    python bench/small.py                  train what is missing, minutes of one CPU thread each
    python bench/small.py --tasks choice
    python bench/census.py --models build/small-addition    what each of its heads does

They are tests of a search that was not tuned on them: where a model is sure of every answer,
hardly a likelihood moves. Each is written to build/small-TASK with the task as a YAML beside it.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END, PAD = "<|end|>", "<|pad|>"
BATCH, STEPS, SPEED = 256, 4000, 3e-3
EVERY, TESTED, ENOUGH = 200, 500, 0.998  # steps between looks; examples of one; share of them right
EXAMPLES = 600  # of each task
LAYERS = {"addition": 4, "choice": 4, "copying": 2}  # of four no copying head is needed alone
SEED = 11

Text = tuple[str, str, list[str]]  # prompt, right answer, what else may be chosen


def addition(draw: random.Random) -> Text:
    """`047+385=` and the sum's four digits, the last one first: carries go with the text."""
    first, second = draw.randrange(1000), draw.randrange(1000)
    return f"{first:03d}+{second:03d}=", f"{first + second:04d}"[::-1], []


def choice(draw: random.Random) -> Text:
    """`4 1 8 5 most=` and the largest of the four digits."""
    digits = draw.sample("0123456789", 4)
    return f"{' '.join(digits)} most=", max(digits), sorted(digits)[:3]


def copying(draw: random.Random) -> Text:
    """`qwxab>` and the five letters again."""
    letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=5))
    return f"{letters}>", letters, []


TASKS: dict[str, Callable[[random.Random], Text]] = {
    "addition": addition,
    "choice": choice,
    "copying": copying,
}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and two more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {token: index for index, token in enumerate([END, PAD, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=PAD
    )


def build_model(words: int, layers: int) -> LlamaForCausalLM:
    """Layers of eight heads each, 0.1 million parameters a layer."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
    )
    return LlamaForCausalLM(config)


def batch(
    task: str, tokenizer: PreTrainedTokenizerFast, draw: random.Random, rows: int
) -> tuple[torch.Tensor, int]:
    """Texts of one length, as tokens; how many of the last are the answer and its stop."""
    texts = [TASKS[task](draw) for _ in range(rows)]
    ids = tokenizer([f"{prompt}{answer}\n" for prompt, answer, _ in texts])["input_ids"]
    return torch.tensor(ids), len(texts[0][1]) + 1


def train(task: str, folder: Path) -> None:
    """Train until nearly every fresh answer is right; write model, tokenizer and task."""
    tokenizer, draw, test = build_tokenizer(), random.Random(SEED), random.Random(SEED + 1)
    model, begun = build_model(len(tokenizer), LAYERS[task]), time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.05)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = SPEED * min(1, (step + 1) / 100, 2 * (1 - step / STEPS))
        ids, answer = batch(task, tokenizer, draw, BATCH)
        logits = model(ids[:, :-1], use_cache=False).logits[:, -answer:]
        cross_entropy(logits.flatten(0, 1), ids[:, -answer:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % EVERY == EVERY - 1:
            right = share_right(model, *batch(task, tokenizer, test, TESTED))
            print(f"{task}: {step + 1} steps, {time.monotonic() - begun:.0f} s, {right:.3f} right")
            if right >= ENOUGH:
                break
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_task(task, folder)


@torch.inference_mode()
def share_right(model: LlamaForCausalLM, ids: torch.Tensor, answer: int) -> float:
    """The share of texts whose answer is the likeliest, token by token."""
    said = model(ids[:, :-1], use_cache=False).logits[:, -answer:].argmax(-1)
    return float((said == ids[:, -answer:]).all(dim=1).float().mean())


def write_task(task: str, folder: Path) -> None:
    """Write the task's YAML and its examples, all different."""
    draw, lines = random.Random(SEED + 2), dict[str, dict[str, object]]()
    while len(lines) < EXAMPLES:
        prompt, answer, others = TASKS[task](draw)
        choices = draw.sample([answer, *others], 1 + len(others))
        gold = {"choices": choices, "gold": choices.index(answer)} if others else {}
        lines[prompt] = {"prompt": prompt, "answer": answer} | gold
    data = folder.resolve() / f"{task}.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    yaml = {
        "task": f"small_{task}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "target_delimiter": "",
    }
    yaml |= WRITTEN if "choices" not in next(iter(lines.values())) else CHOSEN
    (folder / f"{task}.yaml").write_text(json.dumps(yaml, indent=1) + "\n")  # JSON is YAML


WRITTEN = {
    "output_type": "generate_until",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
CHOSEN = {
    "output_type": "multiple_choice",
    "doc_to_choice": "choices",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def main() -> None:
    """Train what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=[*TASKS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for task in arguments.tasks:
        folder = Path(f"build/small-{task}")
        if not (folder / f"{task}.yaml").is_file():
            train(task, folder)


if __name__ == "__main__":
    main()
