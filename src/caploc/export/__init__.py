"""Hand a finding on: a checkpoint, an adapter or a file of heads, with a card that says why.

It is checked, written, held against the knockout, and kept in a folder that is there whole or not
at all, and on the Hugging Face Hub if asked.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from huggingface_hub import HfApi, get_token, snapshot_download
from huggingface_hub import errors as hub
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from safetensors import SafetensorError
from transformers import AutoConfig

from caploc.errors import BadOption, CaplocError, ModelRefused, RunFailed, StoreFailed
from caploc.export.card import CardContent, evidence_of, prompts_of, read_licence, write_card
from caploc.export.weights import (
    CODE,
    COMPANIONS,
    PROMPTS,
    AdapterSize,
    KnockoutLogits,
    LogitAgreement,
    checkpoint_bytes,
    copy_companions,
    cut_projections,
    load_plainly,
    require_peft,
    write_adapter,
    write_weights,
)
from caploc.finished import FinishedRun
from caploc.folder import RESULT, RUN, check_new, check_source, write_json
from caploc.heads import NAME, Head, HeadFile, HeadGrid, write_heads
from caploc.models.loading import convert, load_model
from caploc.models.sources import WEIGHTS, ModelSource
from caploc.modes import ZERO
from caploc.progress import Progress, Silent
from caploc.report.wording import called
from caploc.workbench import Allowed, ModelOptions

__all__ = ["KINDS", "Export", "Exported"]

SPARE_BYTES = 16 * 2**20  # for what is small: config, tokenizer, card
GIT_FILES = {".gitattributes", "README.md"}  # what a repository holds that someone has just made


def check_space(target: Path, needed: int) -> None:
    """Refuse to begin what cannot end."""
    place = target.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed + SPARE_BYTES:
        raise StoreFailed(
            f"{target} needs {(needed + SPARE_BYTES) / 1e9:.2f} GB and the disk has "
            f"{free / 1e9:.2f} GB left; free disk space or name another place with --to."
        )


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Give a folder to write into, which takes the target's place at the end of the block.

    After an exception of any kind neither it nor the target exists. Raises StoreFailed if the disk
    refuses.
    """
    stage = None
    try:
        with writing_out(target):
            stage = Path(mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
            yield stage
            stage.chmod(0o755)  # mkdtemp keeps others out
            stage.replace(target)
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)


@contextmanager
def writing_out(target: Path) -> Iterator[None]:
    """Make the folder around a target, and turn what the disk says meanwhile into StoreFailed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise StoreFailed(
            f"{target} could not be written ({said}); nothing was kept there. Free disk space or "
            "name another place with --to."
        ) from error


def check_push(repository: str) -> None:
    """Refuse, before anything is written, what the Hub would refuse after it."""
    try:
        validate_repo_id(repository)
    except hub.HFValidationError as error:
        raise BadOption(
            f"--push-to-hub {repository!r} is no repository: {_short(error)}."
        ) from None
    if get_token() is None:
        raise BadOption(
            "--push-to-hub needs a token of the Hugging Face Hub; run `hf auth login` once, or set "
            "HF_TOKEN."
        )
    with _hub_errors(repository, "Nothing was written."):
        api = HfApi()
        api.whoami()
        held = set()
        if api.repo_exists(repository):
            held = set(api.list_repo_files(repository)) - GIT_FILES
        if held:
            raise BadOption(
                f"{repository} exists on the Hugging Face Hub and holds {sorted(held)[0]!r}; "
                "name a new repository with --push-to-hub."
            )


def push(folder: Path, repository: str, *, private: bool) -> str:
    """Upload a folder as a model repository, made if it is not there; return its address."""
    kept = f"{folder} is kept: `hf upload {repository} {folder}` sends it."
    with _hub_errors(repository, kept):
        api = HfApi()
        made = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=folder, commit_message="Export by caploc"
        )
    return str(made)


@contextmanager
def _hub_errors(repository: str, state: str) -> Iterator[None]:
    """Turn what the Hub's client raises into one sentence."""
    try:
        yield
    except CaplocError:  # some of which are a ValueError, too
        raise
    # what the Hub's client raises without a network is another from release to release
    except (hub.HTTPError, OSError, ValueError) as error:  # type: ignore[attr-defined]
        raise RunFailed(
            f"{repository} could not be put on the Hugging Face Hub ({type(error).__name__}: "
            f"{_short(error)}); check the network and the rights of your token. {state}"
        ) from error


def _short(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:200]


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
    agreements: tuple[LogitAgreement, ...]
    address: str | None = None

    def as_dict(self) -> dict[str, Any]:
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
        folder, named = Path(source), tuple(Head.parse_all(heads or ""))
        if heads is None:
            check_source(source)
        if not (folder / RESULT).is_file() and not (folder / RUN).is_file():
            return cls(replace(model, name=source), named, **how)
        # no task is asked, so that no program is run
        run = FinishedRun.read(folder, Allowed(code=True, remote_code=model.trust_remote_code))
        if heads is None:
            named = tuple(map(Head.parse, run.result.top))[:top]
            if top is not None and top > len(named):
                raise BadOption(f"--top is {top}, and the run in {folder} named {len(named)}.")
        return cls(_run_model(run, model), named, run=run, **how)

    def check(self) -> tuple[ModelSource, HeadGrid]:
        """Refuse every mistake that can be seen before weights are loaded.

        Raises CaplocError in one sentence.
        """
        if self.kind not in KINDS:
            raise BadOption(f"--as {self.kind!r} is none of {', '.join(KINDS)}.")
        if self.private and not self.repository:
            raise BadOption("--private says how to upload; name a repository with --push-to-hub.")
        if not self.heads:
            raise BadOption("There is no head to export; name some with --heads L0H5,L1H3.")
        check_new(self.target)
        if self.kind == "lora":
            require_peft()
        grid = self.model.check()
        grid.mask(self.heads)
        source = self.model.source()
        self._check_source(source)
        if self.kind != "heads":
            self._check_weights(source)
        if self.repository:
            check_push(self.repository)
        return source, grid

    def _check_source(self, source: ModelSource) -> None:
        if "adapter_config.json" in source.files:
            raise ModelRefused(
                f"{source.name} holds an adapter beside its weights, which transformers would add "
                "to what is exported; merge it (merge_and_unload) and export the merged model."
            )
        if self.run and self.run.result.model.fingerprint != source.fingerprint():
            self.run.check_same(self.model.engine().loaded)  # it may have been handed over

    def _check_weights(self, source: ModelSource) -> None:
        if self.run and (mode := self.run.result.method.mode) != ZERO:
            raise BadOption(
                f"The run in {self.run.folder} was made with --mode {mode}, and weights can only "
                "have a head hand on zero; export its heads with --as heads, or run with --mode "
                f"{ZERO}."
            )
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

        Raises UserError for a mistake, before the model is loaded where possible; RunFailed if the
        disk or the Hub refuses; a folder is left whole or not at all.
        """
        progress = progress or Silent()
        source, grid = self.check()
        with _local_copy(source, self.kind) as folder, staged(self.target) as stage:
            if self.kind == "checkpoint":
                check_space(self.target, checkpoint_bytes(folder))
            agreements = _Writing(self, source, folder, grid, stage, progress).write()
        address = None
        if self.repository:
            progress.start("uploading", 1)
            address = push(self.target, self.repository, private=self.private)
        return Exported(self.target, self.kind, self.heads, tuple(agreements), address)


def _run_model(run: FinishedRun, given: ModelOptions) -> ModelOptions:
    """Return how to load a run's model: as the run did, but for what is given."""
    default = ModelOptions("")
    changed = {
        name: getattr(given, name)
        for name in ("device", "dtype", "trust_remote_code")
        if getattr(given, name) != getattr(default, name)
    }
    for name in ("revision", "projections", "gguf"):
        if getattr(given, name) is not None:
            raise BadOption(f"--{name} is the run's own, in {run.folder}; leave it out.")
    # weights are exported as they are stored, however the run held them in memory
    return replace(run.study.model, quantize=None, **changed)


@dataclass
class _Writing:
    """One export under way, in a folder that nobody sees yet."""

    export: Export
    source: ModelSource
    folder: Path  # the base model's files on this machine
    grid: HeadGrid
    stage: Path
    progress: Progress
    rewritten: Sequence[str] = ()
    size: AdapterSize | None = None

    def write(self) -> list[LogitAgreement]:
        """Write weights or adapter, the file of heads and the card; return how they agree."""
        ways = {"checkpoint": self.checkpoint, "lora": self.adapter, "heads": list}
        agreements = list[LogitAgreement](ways[self.export.kind]())
        self.describe(agreements)
        return agreements

    def checkpoint(self) -> list[LogitAgreement]:
        """Write the base model's files with the heads' columns at zero; load and compare them."""
        options = self.export.model
        self.progress.start("exporting", 3)
        loaded = load_model(**options.loading())
        mask = loaded.grid.mask(self.export.heads)
        projections = cut_projections(loaded, mask)
        self.rewritten = write_weights(self.folder, self.stage, projections)
        copy_companions(self.folder, self.stage, code=options.trust_remote_code)
        self.progress.advance(1, 0)
        reference = KnockoutLogits.take(loaded, mask, self.prompts())
        del loaded, projections  # two models at a time may not fit
        self.progress.advance(1, 0)
        model = load_plainly(
            self.stage,
            dtype=reference.dtype,
            device=None if options.device.startswith("spread") else reference.device,
            trust_remote_code=options.trust_remote_code,
        )
        agreement = reference.agreement(model, "AutoModelForCausalLM")
        agreement.hold()
        self.progress.advance(1, 0)
        return [agreement]

    def adapter(self) -> list[LogitAgreement]:
        """Write an adapter; put it on the model and merge it, and compare in several dtypes."""
        from peft import PeftModel  # an extra, of which only adapters have need

        agreements, heads = [], self.export.heads
        stored = load_model(**self.export.model.loading())
        own, dtypes = stored.dtype, dict.fromkeys((*ADAPTER_DTYPES, stored.dtype))
        self.progress.start("exporting", 1 + len(dtypes))
        projections = cut_projections(stored, stored.grid.mask(heads))
        self.size = write_adapter(self.stage, projections, self.source.name)
        for path in sorted(self.folder.glob("LICENSE*")):  # the rest is the base model's
            (self.stage / path.name).write_bytes(path.read_bytes())
        del stored, projections
        self.progress.advance(1, 0)
        for dtype in dtypes:
            loaded = load_model(**replace(self.export.model, dtype=dtype).loading())
            reference = KnockoutLogits.take(loaded, loaded.grid.mask(heads), self.prompts())
            adapted: Any = PeftModel.from_pretrained(loaded.model, str(self.stage))
            plain = adapted.get_base_model()
            agreements.append(reference.agreement(plain, "adapter on the base model"))
            merged = adapted.merge_and_unload()
            agreements.append(reference.agreement(merged, "adapter merged"))
            if dtype == own:  # in another, its numbers are not those that it is to cancel
                agreements[-1].hold()
            self.progress.advance(1, 0)
        return agreements

    def prompts(self) -> list[str]:
        return prompts_of(self.export.run) if self.export.run else []

    def describe(self, agreements: Sequence[LogitAgreement]) -> None:
        """Write the file of heads, the card, and the figures of the card for programs."""
        run, export = self.export.run, self.export
        evidence = evidence_of(run, export.heads) if run else {}
        name, card = called(self.source.name), self.folder / CARD
        file = HeadFile(export.heads, self.grid, name, self.source.fingerprint(), evidence)
        write_heads(self.stage / NAME, file)
        checks = [agreement.as_dict() for agreement in agreements]
        told = {"schema": 1, "kind": export.kind, "heads": file.names, "checks": checks}
        write_json(self.stage / CHECKED, told | {"rewritten": list(self.rewritten)})
        count = f"{len(file.heads)} attention head{'' if len(file.heads) == 1 else 's'}"
        content = CardContent(
            kind=export.kind,
            title=f"{count} of {name}" if export.kind == "heads" else f"{name} without {count}",
            source=self.source,
            file=file,
            result=run.result if run else None,
            licence=read_licence(card.read_text("utf-8", "replace") if card.exists() else ""),
            agreements=agreements,
            prompts=len(self.prompts()[:PROMPTS]),
            rewritten=self.rewritten,
            size=self.size,
            command=export.command,
        )
        (self.stage / CARD).write_text(write_card(content), encoding="utf-8")


@contextmanager
def _local_copy(source: ModelSource, kind: str) -> Iterator[Path]:
    """Find the folder of a model's files on this machine; for a checkpoint, GGUF as safetensors."""
    if source.gguf is not None and kind == "checkpoint":
        with TemporaryDirectory(prefix="caploc-gguf-") as folder:
            convert(source, Path(folder), "float32")
            yield Path(folder)
    elif Path(source.place).is_dir():
        yield Path(source.place)
    else:
        wanted = [*WEIGHTS, "*.safetensors.index.json", CARD, CODE, *COMPANIONS, "*/*.jinja"]
        try:
            fetched = snapshot_download(
                source.place, revision=source.revision, allow_patterns=wanted
            )
        except (hub.HTTPError, OSError) as error:  # type: ignore[attr-defined]
            raise ModelRefused(
                f"The files of {source.name} could not be fetched from the Hugging Face Hub "
                f"({type(error).__name__}); check the network, or give a local folder."
            ) from error
        yield Path(fetched)
