"""Who answers: what the driver, which holds no weights, knows of the model in its workers."""

from dataclasses import dataclass

from caploc.errors import ModelRefused
from caploc.heads import HeadGrid


@dataclass(frozen=True)
class Identity:
    """A model that a worker has loaded and proved, without its weights.

    `release` is the version of caploc that the worker runs.
    """

    name: str
    fingerprint: str
    dtype: str
    device: str
    grid: HeadGrid
    release: str

    def check_same(self, first: "Identity", node: str) -> None:
        """Refuse a worker whose answers would be another model's.

        Raises:
            ModelRefused: if weights, config, dtype, heads or the version of caploc differ.
        """
        for what in ("fingerprint", "dtype", "grid", "release"):
            own, other = getattr(self, what), getattr(first, what)
            if own != other:
                said = "" if what == "grid" else f": {own}, not {other}"
                what = {"release": "version of caploc"}.get(what, what)
                raise ModelRefused(
                    f"The worker on {node} has another {what} of {self.name} than the first one"
                    f"{said}; every node needs the same files, the same versions and one --dtype."
                )
