# %% [markdown]
# # Your own task, from a file of questions and answers
#
# All that is needed is a JSONL file with a line for each example and a few lines of YAML that say
# how to ask. Here: sums in which nothing is carried, which the model inside the package may do with
# fewer heads than others.

# %%
import json
from pathlib import Path

import caploc

folder = Path("runs/own-task")
folder.mkdir(parents=True, exist_ok=True)
pairs = [(a, b) for a in range(10, 90, 3) for b in range(10, 90, 7) if a % 10 + b % 10 < 10]
sums = [(a, b) for a, b in pairs if a + b < 100]
lines = [json.dumps({"question": f"{a}+{b}=", "answer": str(a + b)}) for a, b in sums]
(folder / "easy.jsonl").write_text("\n".join(lines) + "\n")
print(len(lines), "examples, such as", lines[0])

# %% [markdown]
# The YAML is lm-eval's: where the data lie, what is asked, what would be right, when an answer
# ends, and how it scores. Anything that lm-eval can express can be a task.

# %%
(folder / "easy.yaml").write_text(f"""
task: easy
dataset_path: json
dataset_kwargs:
  data_files: {{test: {(folder / "easy.jsonl").absolute()}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, do_sample: false}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}}
metadata: {{version: 1}}
""")
own = str(folder / "easy.yaml")

# %% [markdown]
# First look at what the model makes of it. A task at which it is no better than chance cannot lose
# anything.

# %%
scored = caploc.evaluate(
    caploc.Evaluation(caploc.ModelOptions("demo"), heads=(), tasks=(own,), limit=60),
    folder=folder / "intact",
)
scored.tasks[0].intact

# %%
found = caploc.locate("demo", own, budget=1500, limit=60, out=folder / "run")
found

# %% [markdown]
# A mistake is a sentence, before the model is loaded: a line that is not JSON, a column that is
# missing, a task that does not exist.

# %%
try:
    caploc.locate("demo", str(folder / "eazy.yaml"))
except caploc.CaplocError as error:
    print(error)
