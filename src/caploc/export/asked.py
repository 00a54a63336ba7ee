"""What a caller asks for, before it is known whether a run or a model is meant."""

from dataclasses import dataclass, replace
from pathlib import Path

from caploc.errors import BadOption
from caploc.export.evidence import chosen_heads
from caploc.export.export import Export
from caploc.finished import FinishedRun
from caploc.folder import RESULT, RUN
from caploc.heads import Head
from caploc.workbench import Allowed, ModelOptions


@dataclass(frozen=True)
class Asked:
    """`source` is a finished run's folder or a model; `heads` are names between commas.

    `model` says how to load a model; of a run, what it says beyond the defaults overrides how the
    run loaded its own.
    """

    source: str
    target: Path
    top: int | None
    heads: str | None
    kind: str
    repository: str | None
    private: bool
    model: ModelOptions
    command: str = ""

    def export(self) -> Export:
        """The export meant.

        Raises:
            UserError: if options contradict each other, or the run cannot be read or names no head.
        """
        if self.top is not None and self.top < 1:
            raise BadOption(f"--top must be 1 or more; got {self.top}.")
        if self.top is not None and self.heads is not None:
            raise BadOption("--top takes a run's heads and --heads names others; give one of both.")
        folder = Path(self.source)
        if (folder / RESULT).is_file() or (folder / RUN).is_file():
            # no task is asked, so that no program is run
            allowed = Allowed(code=True, remote_code=self.model.trust_remote_code)
            return self._of_run(FinishedRun.read(folder, allowed))
        return self._of_model()

    def _of_run(self, run: FinishedRun) -> Export:
        heads = self._named() if self.heads is not None else chosen_heads(run, self.top)
        given, default = self.model, ModelOptions("")
        changed = {
            name: getattr(given, name)
            for name in ("device", "dtype", "trust_remote_code")
            if getattr(given, name) != getattr(default, name)
        }
        for name in ("revision", "projections", "gguf"):
            if getattr(given, name) is not None:
                raise BadOption(f"--{name} is the run's own, in {self.source}; leave it out.")
        # weights are exported as they are stored, however the run held them in memory
        model = replace(run.study.model, quantize=None, **changed)
        return self._export(model, heads, run)

    def _of_model(self) -> Export:
        if self.heads is None:
            raise BadOption(
                f"{self.source} is no finished run; name the folder of one, or a model with the "
                "heads to cut: --heads L0H5,L1H3."
            )
        return self._export(replace(self.model, name=self.source), self._named(), None)

    def _named(self) -> tuple[Head, ...]:
        return tuple(Head.parse_all(self.heads or ""))

    def _export(
        self, model: ModelOptions, heads: tuple[Head, ...], run: FinishedRun | None
    ) -> Export:
        return Export(
            model,
            heads,
            self.kind,
            self.target,
            run=run,
            repository=self.repository,
            private=self.private,
            command=self.command,
        )
