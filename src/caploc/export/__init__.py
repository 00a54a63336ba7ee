"""Hand a finding on: a checkpoint or a file of heads, with a card that says why.

A checkpoint is written, loaded as anyone loads it, compared with the knockout, and kept in a folder
that is there whole or not at all.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import errors as hub
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM

from caploc.components import (
    NAME,
    Component,
    HeadFile,
    Heads,
    parse_component,
    parse_components,
    write_heads,
)
from caploc.declaration import Allowed, ModelOptions
from caploc.errors import BadOption, ModelRefused, pick
from caploc.export.card import CardContent, prompts_of, read_licence, write_card
from caploc.export.weights import (
    CODE,
    COMPANIONS,
    KnockoutLogits,
    LogitAgreement,
    copy_companions,
    zero_columns,
)
from caploc.files import whole_folder
from caploc.finished import FinishedRun
from caploc.folder import RESULT, RUN, check_new, check_source
from caploc.models.devices import SPREAD
from caploc.models.loading import load_model
from caploc.models.sources import ModelSource
from caploc.options import ZERO
from caploc.progress import Progress, Silent
from caploc.wording import called

__all__ = ["KINDS", "Export", "Exported"]

KINDS = ("checkpoint", "heads")
QUANTIZED = "quantization_config"  # the key under which a config says so
CARD = "README.md"


@dataclass(frozen=True)
class Exported:
    """What was written; `agreement` is a checkpoint's."""

    folder: Path
    kind: str
    heads: tuple[Component, ...]
    agreement: LogitAgreement | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "heads": [str(head) for head in self.heads],
            "check": self.agreement and self.agreement.as_dict(),
        }


@dataclass(frozen=True)
class Export:
    """Heads of a model to be handed on; `run` is what found them, None if they are named by hand.

    `heads` may be groups and layers of heads too; what is written is about each of their heads.
    `kind` is `checkpoint` (the model with the heads' columns at zero) or `heads` (their names
    alone).
    """

    model: ModelOptions
    heads: tuple[Component, ...]
    kind: str
    target: Path
    run: FinishedRun | None = None
    command: str = ""

    @classmethod
    def find(
        cls, source: str, model: ModelOptions, top: int | None, heads: str | None, **how: Any
    ) -> "Export":
        """Find the export meant: `source` is a finished run's folder or a model.

        `heads` are names between commas; without them it is a run's own, `top` of them. `model`
        says how to load a model; of a run, what it says beyond the defaults overrides how the run
        loaded its own. `how` are the other fields. Raises UserError if options contradict each
        other, or the run cannot be read or names no head.
        """
        if top is not None and top < 1:
            raise BadOption(f"--top must be 1 or more; got {top}.")
        if top is not None and heads is not None:
            raise BadOption("--top takes a run's heads and --heads names others; give one of both.")
        folder, named = Path(source), tuple(parse_components(heads or ""))
        if heads is None:
            check_source(source)
        if not (folder / RESULT).is_file() and not (folder / RUN).is_file():
            return cls(replace(model, name=source), named, **how)
        # no task is asked, so that no program is run
        run = FinishedRun.read(folder, Allowed(code=True, remote_code=model.trust_remote_code))
        if heads is None:
            named = tuple(map(parse_component, run.result.top))[:top]
            if top is not None and top > len(named):
                raise BadOption(f"--top is {top}, and the run in {folder} named {len(named)}.")
        return cls(_run_model(run, model), named, run=run, **how)

    def check(self) -> tuple[ModelSource, Heads]:
        """Refuse every mistake that can be seen before weights are loaded.

        Raises CaplocError in one sentence.
        """
        pick(dict.fromkeys(KINDS), self.kind, "--as")
        if not self.heads:
            raise BadOption("There is no head to export; name some with --heads L0H5,L1H3.")
        check_new(self.target)
        grid = self.model.check()
        grid.mask(self.heads)
        source = self.model.source()
        if self.run and self.run.result.model.fingerprint != source.fingerprint():
            self.run.check_same(self.model.engine().loaded)  # it may have been handed over
        if self.kind != "heads":
            self._check_weights(source)
        return source, grid

    def _check_weights(self, source: ModelSource) -> None:
        if self.run and (mode := self.run.result.method.mode) != ZERO:
            raise BadOption(
                f"The run in {self.run.folder} was made with --mode {mode}, and weights can only "
                "have a head hand on zero; export its heads with --as heads, or run with --mode "
                f"{ZERO}."
            )
        config: Any = AutoConfig.from_pretrained(
            source.place, trust_remote_code=self.model.trust_remote_code, **source.which
        )
        if any(getattr(each, QUANTIZED, None) for each in (config, config.get_text_config())):
            raise ModelRefused(
                f"The weights of {source.name} are quantized, and a column of quantized numbers "
                "cannot be cleared without changing its neighbours; export the model that it was "
                "made from, or --as heads."
            )

    def write(self, progress: Progress | None = None) -> Exported:
        """Write the export, compare a checkpoint with the knockout, and keep the folder.

        Raises UserError for a mistake, before the model is loaded where possible; ModelRefused if
        the checkpoint does not answer as the knockout does; StoreFailed if the disk refuses.
        """
        source, grid = self.check()
        done = Exported(self.target, self.kind, self.heads)
        folder = find_files(source)
        with whole_folder(self.target) as stage:
            if self.kind == "checkpoint":
                agreement = self._write_checkpoint(folder, stage, progress or Silent())
                done = replace(done, agreement=agreement)
            self._describe(done, source, grid, folder, stage)
        return done

    def _write_checkpoint(
        self, folder: Path | None, stage: Path, progress: Progress
    ) -> LogitAgreement:
        """Write the base model with the heads' columns at zero; load and compare it."""
        progress.start("exporting", 2)
        how = self.model.loading()
        if self.model.device == SPREAD:  # weights that wait on disk cannot be changed
            how["device"] = "cpu"
        loaded = load_model(**how)
        mask = loaded.grid.mask(self.heads)
        reference = KnockoutLogits.take(loaded, mask, prompts_of(self.run) if self.run else [])
        zero_columns(loaded, mask)
        loaded.model.save_pretrained(stage)
        if folder is None:
            loaded.tokenizer.save_pretrained(stage)
        else:
            copy_companions(folder, stage, code=self.model.trust_remote_code)
        device = str(loaded.device)
        del loaded  # two models at a time may not fit
        progress.advance(1, 0)
        model = AutoModelForCausalLM.from_pretrained(
            stage,
            dtype=reference.dtype,
            trust_remote_code=self.model.trust_remote_code,
            device_map=device,
        )
        agreement = reference.agreement(model)
        agreement.hold()
        progress.advance(1, 0)
        return agreement

    def _describe(
        self, done: Exported, source: ModelSource, grid: Heads, folder: Path | None, stage: Path
    ) -> None:
        """Write the file of heads and the card."""
        heads = tuple(grid.named_in(self.heads))
        file = HeadFile(heads, grid, called(source.name), source.fingerprint())
        write_heads(stage / NAME, file)
        card = folder / CARD if folder else None
        told = card.read_text("utf-8", "replace") if card and card.exists() else ""
        content = CardContent(
            kind=self.kind,
            source=source,
            file=file,
            result=self.run.result if self.run else None,
            licence=read_licence(told),
            agreement=done.agreement,
            command=self.command,
        )
        (stage / CARD).write_text(write_card(content), encoding="utf-8")


def _run_model(run: FinishedRun, given: ModelOptions) -> ModelOptions:
    """Return how to load a run's model: as the run did, but for what is given."""
    default = ModelOptions("")
    changed = {
        name: getattr(given, name)
        for name in ("device", "dtype", "trust_remote_code")
        if getattr(given, name) != getattr(default, name)
    }
    if given.revision is not None:
        raise BadOption(f"--revision is the run's own, in {run.folder}; leave it out.")
    # weights are exported as they are stored, however the run held them in memory
    return replace(run.study.model, quantize=None, **changed)


def find_files(source: ModelSource) -> Path | None:
    """Return a folder with what lies beside a model's weights; None of a GGUF, which holds all."""
    if source.gguf is not None:
        return None
    if Path(source.place).is_dir():
        return Path(source.place)
    wanted = [CARD, CODE, *COMPANIONS, "*/*.jinja"]
    try:
        return Path(
            snapshot_download(source.place, revision=source.revision, allow_patterns=wanted)
        )
    except (hub.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        raise ModelRefused(
            f"The files of {source.name} could not be fetched from the Hugging Face Hub "
            f"({type(error).__name__}); check the network, or give a local folder."
        ) from error
