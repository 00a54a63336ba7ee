"""What to hand on, in which form, and where: checked, written, held against the knockout, kept."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import errors as hub
from huggingface_hub import snapshot_download
from transformers import AutoConfig

from caploc.errors import BadOption, ModelRefused
from caploc.export.adapter import Size, check_peft, write_adapter
from caploc.export.card import Story, licence_of, write_card
from caploc.export.evidence import evidence_of, prompts_of
from caploc.export.hub import check_push, push
from caploc.export.staging import check_free, check_space, staged
from caploc.export.verification import PROMPTS, Agreement, Reference, plainly_loaded
from caploc.export.weights import (
    CODE,
    COMPANIONS,
    checkpoint_bytes,
    copy_companions,
    cut_projections,
    write_weights,
)
from caploc.finished import FinishedRun
from caploc.folder import write_json
from caploc.headfile import NAME, HeadFile, write_heads
from caploc.heads import Head, HeadGrid, Mask
from caploc.models.loading import LoadedModel, convert, load_model
from caploc.models.sources import WEIGHTS, Source
from caploc.progress import Progress, Silent
from caploc.report.reading import at, called
from caploc.workbench import ModelOptions

try:
    import peft
except ImportError:  # an extra, of which only adapters have need
    peft = None  # type: ignore[assignment]

KINDS = ("checkpoint", "lora", "heads")
QUANTIZED = "quantization_config"  # the key under which a config says so
CARD, CHECKED = "README.md", "export.json"
ADAPTER_DTYPES = ("float32", "bfloat16")  # in which the error of an adapter is measured


@dataclass(frozen=True)
class Exported:
    """What was written, and how it was checked; `address` is where it was uploaded to."""

    folder: Path
    kind: str
    heads: tuple[Head, ...]
    agreements: tuple[Agreement, ...]
    address: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "folder": str(self.folder),
            "kind": self.kind,
            "heads": [str(head) for head in self.heads],
            "checks": [agreement.as_dict() for agreement in self.agreements],
            "address": self.address,
        }


@dataclass(frozen=True)
class Export:
    """Heads of a model to be handed on; `run` is what found them, None if they are named by hand.

    `kind` is `checkpoint` (the model with the heads' columns at zero), `lora` (an adapter that
    does the same) or `heads` (their names alone). `repository` uploads it, too.
    """

    model: ModelOptions
    heads: tuple[Head, ...]
    kind: str
    target: Path
    run: FinishedRun | None = None
    repository: str | None = None
    private: bool = False
    command: str = ""

    def check(self) -> tuple[Source, HeadGrid]:
        """Refuse every mistake that can be seen before weights are loaded.

        Raises:
            CaplocError: in one sentence.
        """
        if self.kind not in KINDS:
            raise BadOption(f"--as {self.kind!r} is none of {', '.join(KINDS)}.")
        if self.private and not self.repository:
            raise BadOption("--private says how to upload; name a repository with --push-to-hub.")
        if not self.heads:
            raise BadOption("There is no head to export; name some with --heads L0H5,L1H3.")
        check_free(self.target)
        if self.kind == "lora":
            check_peft()
        grid = self.model.check()
        grid.mask(self.heads)
        source = self.model.source()
        self._check_source(source)
        if self.kind != "heads":
            self._check_weights(source)
        if self.repository:
            check_push(self.repository)
        return source, grid

    def _check_source(self, source: Source) -> None:
        if "adapter_config.json" in source.files:
            raise ModelRefused(
                f"{source.name} holds an adapter beside its weights, which transformers would add "
                "to what is exported; merge it (merge_and_unload) and export the merged model."
            )
        if self.run and at(self.run.result, "model", "fingerprint") != source.fingerprint():
            raise ModelRefused(
                f"The model {source.name} has changed since the run in {self.run.folder}; run "
                "`caploc locate` into a new folder."
            )

    def _check_weights(self, source: Source) -> None:
        if self.model.device.startswith("shard"):
            raise BadOption("An export is written by one process; use --device spread instead.")
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
        """Write the export, hold it against the knockout, keep it, and upload it if asked.

        Raises:
            UserError: for a mistake, before the model is loaded where possible.
            RunFailed: if the disk or the Hub refuses; a folder is left whole or not at all.
        """
        progress = progress or Silent()
        source, grid = self.check()
        with local_copy(source, self.kind) as folder, staged(self.target) as stage:
            if self.kind == "checkpoint":
                check_space(self.target, checkpoint_bytes(folder))
            writing = Writing(self, source, folder, grid, stage, progress)
            agreements = writing.write()
        address = None
        if self.repository:
            progress.start("uploading", 1)
            address = push(self.target, self.repository, private=self.private)
        return Exported(self.target, self.kind, self.heads, tuple(agreements), address)


@dataclass
class Writing:
    """One export under way, in a folder that nobody sees yet."""

    export: Export
    source: Source
    folder: Path  # the base model's files on this machine
    grid: HeadGrid
    stage: Path
    progress: Progress
    rewritten: Sequence[str] = ()
    size: Size | None = None

    def write(self) -> list[Agreement]:
        """Weights or adapter, the file of heads, and the card; how the weights were checked."""
        kind = self.export.kind
        if kind == "checkpoint":
            agreements = self.checkpoint()
        else:
            agreements = self.adapter() if kind == "lora" else []
        self.describe(agreements)
        return agreements

    def checkpoint(self) -> list[Agreement]:
        """The base model's files with the heads' columns at zero, loaded again and compared."""
        options = self.export.model
        self.progress.start("exporting", 3)
        loaded = load_model(**options.loading())
        mask = self.mask(loaded)
        projections = cut_projections(loaded, mask)
        self.rewritten = write_weights(self.folder, self.stage, projections)
        copy_companions(self.folder, self.stage, code=options.trust_remote_code)
        self.progress.advance(1, 0)
        reference = Reference.take(loaded, mask, self.prompts())
        del loaded, projections  # two models at a time may not fit
        self.progress.advance(1, 0)
        model = plainly_loaded(
            self.stage,
            dtype=reference.dtype,
            device=None if options.device.startswith("spread") else reference.device,
            trust_remote_code=options.trust_remote_code,
        )
        agreement = reference.agreement(model, "AutoModelForCausalLM")
        agreement.hold()
        self.progress.advance(1, 0)
        return [agreement]

    def adapter(self) -> list[Agreement]:
        """An adapter, put on the model and merged into it, compared in several dtypes."""
        agreements = []
        stored = load_model(**self.export.model.loading())
        own, dtypes = stored.dtype, dict.fromkeys((*ADAPTER_DTYPES, stored.dtype))
        self.progress.start("exporting", 1 + len(dtypes))
        projections = cut_projections(stored, self.mask(stored))
        self.size = write_adapter(self.stage, projections, self.source.name)
        copy_companions_of_adapter(self.folder, self.stage)
        del stored, projections
        self.progress.advance(1, 0)
        for dtype in dtypes:
            loaded = load_model(**replace(self.export.model, dtype=dtype).loading())
            reference = Reference.take(loaded, self.mask(loaded), self.prompts())
            adapted: Any = peft.PeftModel.from_pretrained(loaded.model, str(self.stage))
            plain = adapted.get_base_model()
            agreements.append(reference.agreement(plain, "adapter on the base model"))
            merged = adapted.merge_and_unload()
            agreements.append(reference.agreement(merged, "adapter merged"))
            if dtype == own:  # in another, its numbers are not those that it is to cancel
                agreements[-1].hold()
            self.progress.advance(1, 0)
        return agreements

    def mask(self, loaded: LoadedModel) -> Mask:
        """The heads, as the loaded model counts them."""
        return loaded.grid.mask(self.export.heads)

    def prompts(self) -> list[str]:
        """Text of the run's task."""
        return prompts_of(self.export.run) if self.export.run else []

    def describe(self, agreements: Sequence[Agreement]) -> None:
        """The file of heads, the card, and the figures of the card for programs."""
        run, export = self.export.run, self.export
        evidence = evidence_of(run, export.heads) if run else {}
        name = called(self.source.name)
        file = HeadFile(export.heads, self.grid, name, self.source.fingerprint(), evidence)
        write_heads(self.stage / NAME, file)
        checks = [agreement.as_dict() for agreement in agreements]
        told = {"schema": 1, "kind": export.kind, "heads": file.names, "checks": checks}
        write_json(self.stage / CHECKED, told | {"rewritten": list(self.rewritten)})
        story = Story(
            kind=export.kind,
            title=title(name, export.heads, export.kind),
            source=self.source,
            file=file,
            result=run.result if run else None,
            licence=licence(self.folder),
            agreements=agreements,
            prompts=len(self.prompts()[:PROMPTS]),
            rewritten=self.rewritten,
            size=self.size,
            command=export.command,
        )
        (self.stage / CARD).write_text(write_card(story), encoding="utf-8")


@contextmanager
def local_copy(source: Source, kind: str) -> Iterator[Path]:
    """The folder of a model's files on this machine; for a checkpoint, GGUF as safetensors.

    Raises:
        ModelRefused: if they cannot be fetched.
    """
    if source.gguf is None or kind != "checkpoint":
        yield fetched(source)
        return
    with TemporaryDirectory(prefix="caploc-gguf-") as folder:
        convert(source, Path(folder), "float32")
        yield Path(folder)


def fetched(source: Source) -> Path:
    """The same of a model that is no GGUF file, fetched from the Hub if need be."""
    if Path(source.place).is_dir():
        return Path(source.place)
    wanted = [*WEIGHTS, "*.safetensors.index.json", CARD, CODE, *COMPANIONS]
    try:
        folder = snapshot_download(
            source.place, revision=source.revision, allow_patterns=[*wanted, "*/*.jinja"]
        )
    except (hub.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        raise ModelRefused(
            f"The files of {source.name} could not be fetched from the Hugging Face Hub "
            f"({type(error).__name__}); check the network, or give a local folder."
        ) from error
    return Path(folder)


def copy_companions_of_adapter(source: Path, target: Path) -> None:
    """The licence alone: config and tokenizer are the base model's."""
    for path in sorted(source.glob("LICENSE*")):
        (target / path.name).write_bytes(path.read_bytes())


def licence(folder: Path) -> dict[str, str]:
    """The licence that the base model's card states."""
    card = folder / CARD
    return licence_of(card.read_text(encoding="utf-8", errors="replace")) if card.exists() else {}


def title(model: str, heads: Sequence[Any], kind: str) -> str:
    """The card's title."""
    count = f"{len(heads)} attention head{'' if len(heads) == 1 else 's'}"
    if kind == "heads":
        return f"{count} of {model}"
    return f"{model} without {count}"
