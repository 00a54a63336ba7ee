"""The prompts of the heads paper's own tasks, as the rows that their YAML files read.

Of the neurons paper's data sets the rows are the Hub's; see the YAML files.

The paper's words and prompts stand in its code, which has no licence; these were written for
caploc. Prompts of one's own are read by `--data test=FILE`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets

HERE = Path(__file__).parent
EASY = (HERE / "easy.txt").read_text().split()
HARD = (HERE / "hard.txt").read_text().split()
SWEARING = (HERE / "prompts.txt").read_text().splitlines()
IDENTIFY = 6  # of the swearing prompts, to find heads on


def load_column(column: str, values: Sequence[str]) -> Callable[..., dict[str, datasets.Dataset]]:
    """Return what lm-eval calls for a `custom_dataset`: one split of one column."""

    def load(**_: Any) -> dict[str, datasets.Dataset]:
        return {"test": datasets.Dataset.from_dict({column: list(values)})}

    return load


load_rhyming = load_column("word", [*EASY, *HARD])
load_easy = load_column("word", EASY)
load_swearing = load_column("prompt", SWEARING)
load_identify = load_column("prompt", SWEARING[:IDENTIFY])


def shuffle_rows(docs: datasets.Dataset) -> datasets.Dataset:
    """Deal rows anew, always alike: those of one label stand together in the data set's files."""
    return docs.shuffle(seed=0)
