"""Write the JSON Schema of result.json into docs/, from the records that make it.

python scripts/schema.py
"""

import json
from pathlib import Path

from caploc.verdict import WrittenResult

FILE = Path(__file__).parents[1] / "docs" / "result.schema.json"


def schema_text() -> str:
    """Return the schema as the file holds it."""
    return json.dumps(WrittenResult.model_json_schema(mode="serialization"), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(schema_text(), encoding="utf-8")
