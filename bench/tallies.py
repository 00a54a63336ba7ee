"""The results of the recovery benchmark: a JSON file that a later run updates in part."""

import json
from pathlib import Path
from typing import Any

import capabilities
import curves
import pages
from fixtures import KINDS
from gradients import ATTRIBUTION, GATES
from simulator import IDLE, NAMES
from table import setting

Entry = dict[str, Any]
METHODS = ("adaptive", *NAMES, ATTRIBUTION, GATES)
KIND_ORDER = (*KINDS, *(kind + IDLE for kind in KINDS))
PARTS = {
    "simulator": KIND_ORDER.index,
    "planted": int,
    "demo": capabilities.NAMES.index,
}  # and what each sorts its entries by


class Results:
    """The entries of every part; page and picture are made of all."""

    def __init__(self, folder: Path) -> None:
        """Go on from what the folder has."""
        self.file = folder / "recovery.json"
        kept = json.loads(self.file.read_text()) if self.file.is_file() else {}
        self.parts: dict[str, dict[str, Entry]] = {part: kept.get(part, {}) for part in PARTS}

    def put(self, part: str, name: str, found: Entry) -> None:
        """Take in an entry, whose cells join those of earlier runs, and write everything."""
        place = setting(1)
        before = self.parts[part].get(name, {})
        cells = {key: cell | {"date": place["date"]} for key, cell in found["cells"].items()}
        merged = sorted((before.get("cells", {}) | cells).items(), key=place_of)
        self.parts[part][name] = before | found | {"cells": dict(merged), "setting": place}
        order = sorted(self.parts[part], key=PARTS[part])
        self.parts[part] = {each: self.parts[part][each] for each in order}
        self.save()

    def save(self) -> None:
        """Write the JSON, the picture and the page."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.parts, indent=1) + "\n")
        curves.draw(self.parts["simulator"], self.file.with_suffix(".png"))
        self.file.with_suffix(".md").write_text(pages.page(self.parts, self.file.stem))


def place_of(pair: tuple[str, Entry]) -> tuple[int, float]:
    """Cells stand by method, then by rows."""
    _, cell = pair
    return METHODS.index(cell["method"]), cell["scores"]["rows"]["mean"]
