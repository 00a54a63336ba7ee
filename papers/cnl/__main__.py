"""Every experiment of CNL on a model: `python -m papers.cnl --preset real --model gemma3-270m`."""

import argparse
import shlex
import sys
from pathlib import Path

from caploc import console
from caploc.errors import CaplocError
from caploc.naming import placed
from papers.cnl.preset import read_preset
from papers.cnl.reproduction import reproduce_cnl


def main(arguments: list[str]) -> None:
    """Run a preset into a folder; what was measured there is not measured again."""
    parser = argparse.ArgumentParser("python -m papers.cnl", description=__doc__)
    parser.add_argument("--preset", default="real", help="real, paper, or a TOML file like them")
    parser.add_argument("--model", help="in place of the preset's")
    parser.add_argument("--out", type=Path, help="folder; resumes what lies there")
    parser.add_argument("--quiet", action="store_true")
    asked = parser.parse_args(arguments)
    preset, name = read_preset(asked.preset), f"cnl-{Path(asked.preset).stem}"
    if asked.model:
        preset = preset.model_copy(update={"model": placed(asked.model)})
        name = f"{name}-{Path(asked.model).name}"
    folder = asked.out or Path("runs") / name
    command = shlex.join(["python", "-m", "papers.cnl", *arguments])
    with console.progress(asked.quiet) as progress:
        reproduce_cnl(preset, folder, progress, command=command)
    console.say(f"Written: {folder / 'index.md'}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except CaplocError as error:
        sys.exit(str(error))
