# %% [markdown]
# # Your own task, from a file of questions and answers
#
# All that is needed is a JSONL file with a line for each example and a few lines of YAML that say
# how to ask. Here: counting in steps, asked of SmolLM2, which
# `caploc models fetch smollm2` gets.

# %%
import json
from pathlib import Path

import caploc

folder = Path("runs/own-task")
folder.mkdir(parents=True, exist_ok=True)
starts = [(first, step) for first in range(10, 60) for step in (2, 3, 5, 10)]
counts = [tuple(range(first, first + 5 * step, step)) for first, step in starts]
lines = [
    json.dumps({"question": "{}, {}, {}, {},".format(*c), "answer": str(c[4])}) for c in counts
]
(folder / "count.jsonl").write_text("\n".join(lines) + "\n")
print(len(lines), "examples, such as", lines[0])

# %% [markdown]
# The YAML is lm-eval's: where the data lie, what is asked, what would be right, when an answer
# ends, and how it scores. Anything that lm-eval can express can be a task.

# %%
(folder / "count.yaml").write_text(f"""
task: count
dataset_path: json
dataset_kwargs:
  data_files: {{test: {(folder / "count.jsonl").absolute()}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: [",", "\\n"], max_gen_toks: 8, do_sample: false}}
filter_list:
  - {{name: word, filter: [{{function: remove_whitespace}}, {{function: take_first}}]}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}}
metadata: {{version: 1}}
""")
own = str(folder / "count.yaml")

# %% [markdown]
# First look at what the model makes of it. A task at which it is no better than chance cannot lose
# anything.

# %%
scored = caploc.evaluate(
    caploc.Evaluation(caploc.ModelOptions("smollm2"), heads=(), tasks=(own,), limit=60),
    folder=folder / "intact",
)
scored.tasks[0].intact

# %%
settings = {"budget": 1500, "limit": 60, "controls": 5}  # small, for a first look
found = caploc.locate("smollm2", own, **settings, out=folder / "run")
found

# %% [markdown]
# A mistake is a sentence, before the model is loaded: a line that is not JSON, a column that is
# missing, a task that does not exist.

# %%
try:
    caploc.locate("smollm2", str(folder / "cuont.yaml"))
except caploc.CaplocError as error:
    print(error)
