"""GGUF files: what is checked before others read them, and what is mended after."""

import importlib.util
import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from tokenizers.decoders import ByteLevel
from tokenizers.pre_tokenizers import Digits
from tokenizers.pre_tokenizers import Sequence as Steps
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from caploc.errors import BadOption, ModelRefused

MAGIC, VERSIONS = b"GGUF", (2, 3)
STRING, ARRAY = 8, 9
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes by type
# Those of whole numbers.
FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 10: "<Q", 11: "<q"}
MOST_ENTRIES = 2**16  # of metadata, and of tensors; large models have some thousands
MOST_ELEMENTS = 2**22  # of an array; the largest vocabularies have a quarter of a million words
LONGEST_WORD = 4096  # bytes; merges are tried at every place of a word
LONGEST_TEXT = 2**22  # bytes of any other text, such as a chat template
MOST_DIMENSIONS = 4
ARCHITECTURE, ALIGNMENT = "general.architecture", "general.alignment"
SPLITTING, VOCABULARY = "tokenizer.ggml.pre", "tokenizer.ggml.model"
PICTURES = ("clip", "mmproj")  # the part of a model that turns pictures into tokens
# Vocabularies in which digits stand alone, by GGUF's name for how text is split. transformers
# splits these as GPT-2 does, so that blanks before a number become other tokens than in training.
DIGITS_APART = ("smollm", "starcoder", "refact", "command-r")


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself, of which only texts and whole numbers are kept."""

    file: Path
    values: dict[str, str | int]
    tensors: int

    @property
    def architecture(self) -> str:
        return str(self.values.get(ARCHITECTURE, ""))

    def integer(self, key: str, default: int) -> int:
        """Return a whole number of the metadata, `default` if it is not there."""
        value = self.values.get(key, default)
        if isinstance(value, str):
            raise Damaged(f"its {key} is no number")
        return value


class Damaged(Exception):
    """A GGUF file that is not what it says; the text says how."""


def check_package(name: str) -> None:
    """Refuse GGUF where the package that reads it is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise BadOption(
            f"{name} is read with the package gguf, which is not installed; pip install "
            "'caploc[gguf]'."
        )


def check_gguf(name: str, file: Path) -> Header:
    """Refuse a file that is no sound GGUF of a language model, before a library reads it.

    The libraries believe every count that a file states: a false one keeps them busy for ever or
    takes all memory. Here every count is held against the size of the file. Raises BadOption if the
    package that reads it is missing; ModelRefused, saying what is wrong.
    """
    check_package(name)
    try:
        with file.open("rb") as opened:
            header = _read_header(file, opened)
    except OSError as error:
        raise ModelRefused(f"{file} cannot be read ({error.strerror}); check its rights.") from None
    except (Damaged, struct.error, UnicodeDecodeError, ValueError) as error:
        said = str(error) if isinstance(error, Damaged) else "its header ends too early"
        raise ModelRefused(
            f"{name} is no sound GGUF file ({said}); get it again, or name another file."
        ) from None
    _refuse_other_architectures(name, header)
    return header


def _refuse_other_architectures(name: str, header: Header) -> None:
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS  # type: ignore[attr-defined]
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    found = header.architecture
    if found in PICTURES or header.values.get("general.type") == "mmproj":
        raise ModelRefused(
            f"{name} is the part of a model that reads pictures ({found}); name the file of the "
            "language model beside it."
        )
    known = {*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_CONFIG_ARCHS} - {"general", "tokenizer"}
    if found.replace("-", "_") not in {each.replace("-", "_") for each in known}:
        raise ModelRefused(
            f"{name} is a GGUF file of the architecture {found[:40]!r}, which transformers does "
            f"not read; name the model that it was made from, or one of {', '.join(sorted(known))}."
        )


class _Reader:
    """A place in a file of which every step is held against the end."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.place = content, 0

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.content, self.place)
        self.place += struct.calcsize(form)
        return value

    def skip(self, count: int) -> None:
        if count > len(self.content) - self.place:
            raise Damaged("it is cut off")
        self.place += count

    def text(self, longest: int) -> str:
        length = self.number("<Q")
        if length > longest:
            raise Damaged(f"it holds a text of {length:,} bytes")
        start = self.place
        self.skip(length)
        return self.content[start : self.place].decode()

    def value(self, kind: int) -> str | int | None:
        """Read one value; None for what is not kept."""
        if kind in FORMATS:
            return int(self.number(FORMATS[kind]))
        if kind in WIDTHS:
            self.skip(WIDTHS[kind])
        elif kind == STRING:
            return self.text(LONGEST_TEXT)
        elif kind == ARRAY:
            self.array()
        else:
            raise Damaged(f"it holds a value of the unknown type {kind}")
        return None

    def array(self) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        if count > MOST_ELEMENTS:
            raise Damaged(f"it holds a list of {count:,} values")
        if kind in WIDTHS:
            self.skip(WIDTHS[kind] * count)
        elif kind == STRING:
            for _ in range(count):
                length = self.number("<Q")
                if length > LONGEST_WORD:
                    raise Damaged(f"it holds a word of {length:,} bytes")
                self.skip(length)
        else:
            raise Damaged(f"it holds a list of values of the type {kind}")


def _read_header(file: Path, opened: BinaryIO) -> Header:
    start = opened.read(24)
    if start[:4] != MAGIC:
        raise Damaged("it does not begin with GGUF")
    version, tensors, entries = struct.unpack("<IQQ", start[4:])
    if version not in VERSIONS:
        raise Damaged(f"it is of version {version}; 2 and 3 are read")
    if not 0 < tensors <= MOST_ENTRIES or not 0 < entries <= MOST_ENTRIES:
        raise Damaged(f"it counts {tensors:,} tensors and {entries:,} entries")
    with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        reader = _Reader(content)
        reader.skip(24)
        values: dict[str, str | int] = {}
        for _ in range(entries):
            key = reader.text(LONGEST_WORD)
            value = reader.value(reader.number("<I"))
            if value is not None:
                values[key] = value
        header = Header(file, values, tensors)
        _check_tensors(reader, tensors, header.integer(ALIGNMENT, 32))
    if ARCHITECTURE not in values:
        raise Damaged("it names no architecture")
    if header.integer(f"{header.architecture}.block_count", 0) > tensors:
        raise Damaged("it says that it has more layers than tensors")
    return header


def _check_tensors(reader: _Reader, count: int, alignment: int) -> None:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if not 0 < alignment <= MOST_ENTRIES or alignment & (alignment - 1):
        raise Damaged(f"its alignment is {alignment}")
    end = total = 0
    for _ in range(count):
        name = reader.text(LONGEST_WORD)
        dimensions = reader.number("<I")
        if dimensions > MOST_DIMENSIONS:
            raise Damaged(f"its tensor {name[:60]!r} has {dimensions:,} dimensions")
        shape = [reader.number("<Q") for _ in range(dimensions)]
        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(reader.number("<I"))]
        except (KeyError, ValueError):
            raise Damaged(f"its tensor {name[:60]!r} is of an unknown type") from None
        length = prod(shape) * size // block
        end, total = max(end, reader.number("<Q") + length), total + length
    data = -(-reader.place // alignment) * alignment
    if data + end > len(reader.content):
        raise Damaged(
            f"it is cut off: {data + end:,} bytes are needed, {len(reader.content):,} there"
        )
    if data + total > len(reader.content):
        raise Damaged("several of its tensors lie in one place")


def unmark_quantized(model: PreTrainedModel) -> None:
    """Make a model that was read from GGUF one like any other: its weights are plain numbers."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    parts: Any = model
    parts.hf_quantizer, parts.is_quantized, parts.quantization_method = None, False, None


def mend_tokenizer(tokenizer: PreTrainedTokenizerBase, header: Header) -> None:
    """Split digits from the text before them where the vocabulary was learned so.

    One of bytes is read back as such: transformers 5.17 takes a blank away before the first word.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if header.values.get(VOCABULARY) == "gpt2" and backend is not None:
        backend.decoder = ByteLevel()
    if header.values.get(SPLITTING) in DIGITS_APART and backend is not None:
        backend.pre_tokenizer = Steps([Digits(individual_digits=True), backend.pre_tokenizer])
