"""Fuzz everything that reads what others wrote, guided by coverage: `make fuzz`.

    python bench/fuzz.py --seconds 660 --out build/fuzz
    python bench/fuzz.py --seconds 3600 --target run_folders

One process runs all targets of tests/fuzz/targets.py; the first byte of an input chooses which.
What is no sentence for the user is kept, once for each place it comes from, and does not end the
run. At the end stand the executions, and the coverage that libFuzzer counts.
"""

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

import atheris

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
with atheris.instrument_imports(include=["caploc"], enable_loader_override=False):
    import targets

TOML = ("studies", "reproduce/presets", "reproduce/cnl/presets")


def seeds(folder: Path) -> None:
    """Write an input for every target: sound files, or a few choices."""
    folder.mkdir(parents=True, exist_ok=True)
    sound = sorted((ROOT / "tests" / "fuzz" / "sound").iterdir())
    sources = sorted((ROOT / "src").rglob("*.toml")) + sorted((ROOT / "src").rglob("*.yaml"))
    short = b"L0H1,L5H15", b"0.1,0.2", b"spread:cuda:0=70GiB,cpu=200GiB", b"scale=0.5", b"a=b,c"
    pieces = [path.read_bytes()[:20_000] for path in [*sound, *sources]] + list(short)
    pieces.append(b'models = ["demo"]\ntasks = ["demo/addition"]\nseeds = [0]\n')
    pieces.append(b"model.layers.{layer}.self_attn.*")
    for number, name in enumerate(sorted(targets.TARGETS)):
        for place, piece in enumerate(pieces):
            (folder / f"{name}-{place}").write_bytes(bytes([number]) + piece)


class Finds:
    """Failures that no sentence foresaw, one of each place."""

    def __init__(self, folder: Path) -> None:
        """Keep them in the folder."""
        self.folder, self.count, self.runs = folder, {}, dict.fromkeys(sorted(targets.TARGETS), 0)
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, data: bytes) -> None:
        """One execution."""
        names = list(self.runs)
        if data:
            self.runs[names[data[0] % len(names)]] += 1
        try:
            targets.one(data)
        except Exception as error:
            self.keep(error, data)

    def keep(self, error: Exception, data: bytes) -> None:
        """Write down what failed where, and the bytes that make it fail again."""
        last = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "caploc" in frame.filename
        ]
        where = f"{Path(last[-1].filename).name}:{last[-1].lineno}" if last else "outside"
        place = f"{type(error).__name__} {where}"
        self.count[place] = self.count.get(place, 0) + 1
        if self.count[place] == 1:
            name = place.replace(" ", "-").replace(":", "-")
            (self.folder / f"{name}.input").write_bytes(data)
            (self.folder / f"{name}.txt").write_text(traceback.format_exc())
            sys.stderr.write(f"found: {place}: {str(error)[:200]}\n")


def main() -> None:
    """Fuzz for so many seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=660)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--target", choices=sorted(targets.TARGETS), help="this one alone")
    asked = parser.parse_args()
    seeds(asked.out / "seeds")
    first = sorted(targets.TARGETS).index(asked.target) if asked.target else None
    (asked.out / "corpus").mkdir(exist_ok=True)
    finds = Finds(asked.out / "found")

    def count(data: bytes) -> None:
        finds.run(data if first is None else bytes([first]) + data)
        if sum(finds.runs.values()) % 500 == 0:
            told = {"executions": finds.runs, "found": finds.count}
            (asked.out / "counts.json").write_text(json.dumps(told, indent=1))

    # What a target prepares once may take longer than an input may.
    for name in [asked.target] if asked.target else sorted(targets.TARGETS):
        targets.tried(name, b"")
    atheris.Setup(
        [sys.argv[0], str(asked.out / "corpus"), str(asked.out / "seeds"),
         f"-max_total_time={asked.seconds}", "-timeout=60", "-rss_limit_mb=6000",
         "-max_len=20000", "-print_final_stats=1"],
        count,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
