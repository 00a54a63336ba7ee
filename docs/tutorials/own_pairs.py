# %% [markdown]
# # A model that you loaded, and a list of prompts and answers
#
# No task file, no folder: a model of transformers (or peft) as it stands in your notebook, its
# tokenizer, and a list. Here SmolLM2, a model of 135 million parameters with 270 attention heads,
# and the past tense of verbs.

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer

import caploc
from caploc.models.fetching import fetch_model

place = fetch_model("smollm2")  # once; any Hugging Face id or folder will do here
model = AutoModelForCausalLM.from_pretrained(place)
tokenizer = AutoTokenizer.from_pretrained(place)

# %%
verbs = """walk walked, play played, jump jumped, open opened, clean cleaned, cook cooked, help
helped, look looked, talk talked, start started, paint painted, climb climbed, laugh laughed, wash
washed, visit visited, answer answered, move moved, live lived, close closed, dance danced, smile
smiled, hope hoped, use used, arrive arrived, go went, see saw, take took, come came, give gave,
find found, think thought, tell told, feel felt, leave left, keep kept, begin began, bring brought,
write wrote, sit sat, stand stood, lose lost, pay paid, meet met, speak spoke, lead led, grow grew,
win won, buy bought, send sent, build built, fall fell, sell sold, drive drove, wear wore"""
forms = [pair.split() for pair in verbs.split(",")]
shown = "call -> called\nsing -> sang\nask -> asked\n"
pairs = [(f"{shown}{now} ->", f" {then}") for now, then in forms]
pairs[0]

# %% [markdown]
# An example is right if the answer is what the model would say next, letter by letter: mind the
# space before it.

# %%
found = caploc.locate(model, tokenizer, pairs, controls=0, also=[], out="runs/past")
print(found)

# %% [markdown]
# Every head, most needed first, with its effect and 95 % interval. The report has their map.

# %%
for head in found.heads[:3]:
    print(f"{head.head}: {head.effect:+.2f} [{head.low:+.2f}, {head.high:+.2f}], q = {head.q:.2f}")

# %% [markdown]
# ## The same model, without a head
#
# Inside the block the heads are silent: in `generate`, in an evaluation, in your own loop.


# %%
def say(prompt: str) -> str:
    """The next four tokens."""
    tokens = tokenizer(prompt, return_tensors="pt")
    said = model.generate(**tokens, max_new_tokens=4, do_sample=False)[0]
    return tokenizer.decode(said[tokens["input_ids"].shape[1] :]).strip().split("\n")[0]


most_needed = [head.head for head in found.heads[:3]]
for prompt, answer in pairs[:6]:
    with found.knockout(heads=most_needed):
        without = say(prompt)
    print(f"{answer.strip()}: intact {say(prompt)!r}, without {', '.join(most_needed)} {without!r}")
