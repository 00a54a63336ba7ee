# %% [markdown]
# # From a model to its heads
#
# The model inside the package has 96 attention heads and answers small questions: sums, words to
# sort, rhymes, capitals. Which few of its heads does addition depend on?

# %%
import caploc
from caploc.tasks.catalog import load_task

found = caploc.locate(
    "demo", "demo/addition", rate=0.05, limit=100, budget=2000, out="runs/tutorial"
)
found

# %% [markdown]
# `locate` knocked out random groups of heads, measured what the model could still do, and solved
# for each head's effect. The answer is a sentence; what it rests on is a table, a map and a page
# (`found.report`, to be opened in a browser).

# %%
found.to_frame().head(8)

# %% [markdown]
# An `effect` of -0.30 says: with that head alone knocked out, 30 of 100 answers are lost. `low` and
# `high` are its 95 % interval, and `q` the share of false discoveries to expect among the heads
# named up to this one.

# %%
found.heatmap()

# %% [markdown]
# ## How many heads does it take?
#
# The chosen heads one after another, and then the next most needed. The second line is the model's
# score on ordinary sentences: if it fell too, the heads would matter for everything.

# %%
found.curve(6, limit=100)

# %% [markdown]
# ## See it for yourself
#
# Inside the block the heads are silent, in every forward pass.

# %%
loaded = caploc.load_model("demo")


def answer(question: str) -> str:
    """What the model says, greedily, up to the end of the line."""
    prompt = loaded.tokenizer(question, return_tensors="pt")
    said = loaded.model.generate(**prompt, max_new_tokens=8, do_sample=False)
    return loaded.tokenizer.decode(said[0, prompt["input_ids"].shape[1] :]).split("\n")[0]


task = load_task("demo/addition")
for example in range(3):
    prompt = task.requests(example)[0].prompt
    intact = answer(prompt)
    with caploc.knockout(loaded, found.top):
        print(repr(prompt[-12:]), "intact:", intact, " knocked out:", answer(prompt))

# %% [markdown]
# ## What else breaks?

# %%
import pandas as pd

heads = tuple(caploc.Head.parse(name) for name in found.top)
others = ("demo/addition", "demo/subtraction", "demo/rhyming", "demo/capitals")
scored = caploc.evaluate(
    caploc.Evaluation(caploc.ModelOptions("demo"), heads, others, limit=100),
    folder=found.folder.parent / "tutorial-others",
)
pd.DataFrame(
    {
        row.name: {"intact": row.intact.score, "knocked out": row.knocked_out.score}
        for row in scored.tasks
    }
).T

# %% [markdown]
# ## What to do next
#
# - The report says how sure the finding is, and whether more rows would change it.
# - `caploc locate MODEL --task TASK` does the same from the command line, for any decoder of
#   Hugging Face's and any task of lm-eval's.
# - The same call again measures nothing: rows lie in the folder, and a stopped run goes on.
