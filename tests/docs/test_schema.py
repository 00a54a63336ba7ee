"""The schema in the documentation is that of the records, and the page tells every part."""

import re
import sys
from pathlib import Path

from caploc.result import Result, Validation

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

import schema  # noqa: E402


def test_the_schema_is_up_to_date():
    assert schema.FILE.read_text(encoding="utf-8") == schema.schema_text(), (
        "run python scripts/schema.py"
    )


def test_the_page_tells_every_part_of_a_result():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    section = page.partition("## The fields of `result.json`")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(\w+)`", section))
    fields = {name.rstrip("_") for name in Result.model_fields}
    assert fields | set(Validation.model_fields) <= told  # of a head's fields the schema tells
