"""How stable the heads are that studies name: a line for each finished run below a folder.

    python bench/stability.py build/results          after caploc run studies/real.toml

It writes docs/results/stability.csv: what a run's card says, and the mean Jaccard index of its
named heads with those that its resampled examples name. Lines of runs that are not below the folder
stay.
"""

import argparse
import json
from pathlib import Path

import pandas as pd

OUT = Path(__file__).parents[1] / "docs" / "results" / "stability.csv"
KEY = ["model", "dtype", "task", "goal"]


def line(file: Path) -> dict[str, object]:
    """What is kept of a run."""
    result = json.loads(file.read_text())
    card, search = result["card"], result["search"]
    stability = search.get("stability")
    return {
        "model": result["model"]["name"],
        "dtype": result["model"]["dtype"],
        "task": result["task"]["name"],
        "goal": result["method"]["goal"],
        "verdict": card["verdict"],
        "heads": " ".join(card["heads"]),
        "rows": search["rows"],
        "jaccard": None if stability is None else round(stability, 2),
        "unstable": card["unstable"],
    }


def main() -> None:
    """Read the runs, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    files = sorted(parser.parse_args().folder.rglob("result.json"))
    table = pd.DataFrame([line(file) for file in files])
    if OUT.is_file():
        table = pd.concat([pd.read_csv(OUT), table]).drop_duplicates(KEY, keep="last")
    table.sort_values(KEY).to_csv(OUT, index=False)
    told = table.dropna(subset="jaccard").groupby("model")["jaccard"]
    print(table.sort_values(KEY).to_string(index=False))
    print(told.describe()[["count", "min", "50%", "mean", "max"]].round(2).to_string())


if __name__ == "__main__":
    main()
