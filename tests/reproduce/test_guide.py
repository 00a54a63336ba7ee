"""The guide is true of the code: items, keys and the example."""

import re
import tomllib
from pathlib import Path

import pytest

from caploc.reproduce import EXHIBITS
from caploc.reproduce.preset import Benchmark, Preset, PresetModel, SearchSpec

GUIDE = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of the table that begins with a heading."""
    lines = GUIDE[GUIDE.index(f"| {heading} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_item_is_in_the_guide():
    named = [name for row in table("item") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted([*EXHIBITS, "all"])


@pytest.mark.parametrize("kind", [Preset, PresetModel, SearchSpec, Benchmark])
def test_every_key_of_a_preset_is_in_the_guide(kind):
    keys = [field.alias or name for name, field in kind.model_fields.items()]
    for key in keys:
        assert re.search(
            rf"`{key}`|^    {key} = |\[\[{key}\]\]|^\| `{key}`", GUIDE, re.MULTILINE
        ), key


def test_the_example_is_a_preset():
    first = GUIDE.index('    name = "mine"')
    example = GUIDE[first : GUIDE.index("| table | keys |")]
    preset = Preset.model_validate(tomllib.loads(re.sub("^    ", "", example, flags=re.MULTILINE)))
    assert preset.localized[0].label == "GSM8K" and preset.general[0].label == "BoolQ"
