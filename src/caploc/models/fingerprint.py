"""Tell a folder's model from every other by a digest of the files that loading it reads.

Weights, configs and tokenizers are read whole. Some files usually say again what those say: the
index of sharded weights, and the special and added tokens of earlier formats. They count only where
they say something else, such as a shard in a subfolder. Chat templates are left out: what they make
of a prompt is in the prompt, and so in every row's key.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

TOKENIZER = ("tokenizer*", "vocab.*", "*.tiktoken", "*spiece.model", "merges.txt")
READ = ("*.safetensors", "*config.json", "*.py", *TOKENIZER)
OTHER_WORDS = ("*.model", "*.codes", "*.bpe")  # of tokenizers without tokenizer.json
INDEX, SPECIAL, ADDED = "*.index.json", "special_tokens_map.json", "added_tokens.json"
LONGEST = 256 * 2**20  # bytes of a JSON file


def folder_fingerprint(folder: Path) -> str:
    """Digest every file that changes what the model answers.

    Raises:
        OSError: if a file cannot be read.
    """
    total = hashlib.blake2b(digest_size=20)
    usual = sorted({path for pattern in READ for path in folder.glob(pattern)})
    for path in (*usual, *sorted(set(further_files(folder)) - set(usual))):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, hashlib.blake2b).digest()
        total.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return total.hexdigest()


def further_files(folder: Path) -> Iterator[Path]:
    """The files that loading reads beside the usual ones, if they say something else."""
    named = read_object(folder / "config.json").get("transformers_weights")
    if isinstance(named, str):
        yield from inside(folder, named)
    for index in folder.glob(INDEX):
        shards = read_object(index).get("weight_map")
        shards = shards if isinstance(shards, dict) else {}
        if not is_told_by_shards(folder, shards):
            yield index
            for name in {name for name in shards.values() if isinstance(name, str)}:
                yield from inside(folder, name)
    words = read_object(folder / "tokenizer_config.json")
    for name, said in ((SPECIAL, words), (ADDED, added_tokens(folder, words))):
        path = folder / name
        if path.is_file() and not says_again(read_object(path), said):
            yield path
    if not (folder / "tokenizer.json").is_file():
        yield from (path for pattern in OTHER_WORDS for path in folder.glob(pattern))


def inside(folder: Path, name: str) -> Iterator[Path]:
    """The file of this name below the folder, if there is one; none that lies outside."""
    path = Path(folder, name)
    try:
        if path.is_file() and ".." not in Path(name).parts:
            path.relative_to(folder)
            yield path
    except (OSError, ValueError):
        return


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is none."""
    try:
        if path.stat().st_size <= LONGEST:
            content = json.loads(path.read_text(encoding="utf-8"))
            return content if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError):
        pass
    return {}


def is_told_by_shards(folder: Path, shards: dict[Any, Any]) -> bool:
    """Tell whether an index says of each weight what the files say: the one file that holds it."""
    holders: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for weight in weights_in(path):
            holders.setdefault(weight, []).append(path.name)
    files = set(shards.values()) if all(isinstance(f, str) for f in shards.values()) else set()
    truth = {weight: names for weight, names in holders.items() if files & set(names)}
    return bool(files) and truth == {weight: [name] for weight, name in shards.items()}


def weights_in(path: Path) -> list[str]:
    """The names of the weights in a file; none in one that is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            return list(file.keys())
    except (SafetensorError, OSError):
        return []


def added_tokens(folder: Path, words: dict[str, Any]) -> dict[str, Any]:
    """Numbers of added tokens as the tokenizer's other files say."""
    entries = read_object(folder / "tokenizer.json").get("added_tokens")
    listed = entries if isinstance(entries, list) else []
    found = {e["content"]: e.get("id") for e in listed if isinstance(e, dict) and "content" in e}
    decoder = words.get("added_tokens_decoder")
    for number, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and str(number).isdecimal():
            found.setdefault(entry.get("content"), int(number))
    return found


def says_again(content: dict[str, Any], said: dict[str, Any]) -> bool:
    """Tell whether every entry is also in `said`; tokens may be written with their settings."""
    return bool(content) and all(
        key in said and text_of(value) == text_of(said[key]) for key, value in content.items()
    )


def text_of(token: Any) -> Any:
    """A token's text, from the token or from an object with its settings."""
    if isinstance(token, list):
        return [text_of(each) for each in token]
    return token.get("content") if isinstance(token, dict) else token
