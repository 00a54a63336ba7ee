# %% [markdown]
# # Your own PyTorch model
#
# Models of transformers are found and proved by `caploc.load_model`. For a module of your own, name
# its attention output projections and say how many heads each reads; the rest is the same. Here we
# train a small one, so that we know what it should have learnt. A penalty on whole heads makes them
# scarce; without it this model spreads both skills over all sixteen, and no head matters alone.

# %%
import numpy as np
import torch
from torch import nn

from caploc import designs
from caploc.components import Heads
from caploc.models.cutting import knocked_out
from caploc.recovery import Measurements, fit_paper_lasso

torch.manual_seed(0)
LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH = 2, 8, 64, 12, 10


class Block(nn.Module):
    """Attention, then a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)  # the output projection: all heads end here
        self.forward_layer = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.mixed(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(-2))
        return x + self.forward_layer(self.norms[1](x))


class Tiny(nn.Module):
    """Answers with one of the numbers before the question mark."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.answer = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.answer(x[:, -1])


# %% [markdown]
# Two skills: the last token asks for the first number (token 10) or for the fifth (token 11).

# %%
FIRST, FIFTH = 10, 11


def draw(count: int, question: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of numbers that end in a question, and their answers."""
    ids = torch.randint(0, 10, (count, LENGTH))
    ids[:, -1] = question
    return ids, ids[:, 0 if question == FIRST else 4]


model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(600):
    pairs = [draw(64, question) for question in (FIRST, FIFTH)]
    ids, gold = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    wrong = nn.functional.cross_entropy(model(ids), gold)
    per_head = [
        block.out.weight.unflatten(1, (HEADS, -1)).norm(dim=(0, 2)) for block in model.blocks
    ]
    loss = wrong + 0.03 * torch.stack(per_head).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
print(f"loss after training: {wrong:.3f}")

# %% [markdown]
# ## Knock out heads
#
# `knocked_out` takes the projections, a grid that says how many heads each reads, and a mask for
# each row of the batch: 2,000 different masks run in one forward pass.

# %%
projections = [block.out for block in model.blocks]
grid = Heads((HEADS,) * LAYERS)


def right(masks: np.ndarray, question: int) -> np.ndarray:
    """1 where a fresh question is still answered rightly under the row's mask."""
    ids, gold = draw(len(masks), question)
    with torch.no_grad(), knocked_out(projections, grid, torch.as_tensor(masks)):
        return (model(ids).argmax(-1) == gold).double().numpy()


none = np.zeros((1000, grid.size), dtype=bool)
print("intact:", right(none, FIRST).mean(), right(none, FIFTH).mean())

# %% [markdown]
# ## Find the heads of each skill
#
# An estimator takes measured rows (here each has a mask and an example of its own) and the outcome
# of each example with nothing knocked out.

# %%
masks = designs.bernoulli(grid.size, 2000, rate=0.1, seed=0)
rows = np.arange(len(masks))
found = {}
for name, question in (("first", FIRST), ("fifth", FIFTH)):
    intact = dict(enumerate(right(np.zeros_like(masks), question)))
    seen = Measurements(masks, rows, rows, right(masks, question))
    found[name] = fit = fit_paper_lasso(seen, intact)
    for column in fit.needed(3):
        print(f"{name}: {grid.components[column]} {fit.effect[column]:+.2f}")

# %% [markdown]
# ## Check it on what the fit has not seen

# %%
for name, fit in found.items():
    chosen = none.copy()
    chosen[:, fit.needed(2)] = True
    print(
        f"without the two heads of {name!r}: first {right(chosen, FIRST).mean():.2f},",
        f"fifth {right(chosen, FIFTH).mean():.2f}",
    )

# %% [markdown]
# If your model is one that transformers can load, name its attention `self_attn` and the output
# projection `o_proj`. Then everything else (tasks, the engine, the report) works as for any other.
