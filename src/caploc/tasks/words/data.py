"""Read the examples of the `words/...` tasks from the tables beside this file."""

from pathlib import Path
from typing import Any

import datasets
import pandas as pd

HERE = Path(__file__).parent


def load(table: str, **_: Any) -> dict[str, datasets.Dataset]:
    """Load a table as the test split: what is asked, the answer, and the answer's kind.

    lm-eval calls it with a task's `dataset_kwargs` (here the table's name) and `metadata`.
    """
    rows = pd.read_csv(HERE / f"{table}.csv", dtype=str, keep_default_na=False)
    return {"test": datasets.Dataset.from_dict(rows.to_dict("list"))}
