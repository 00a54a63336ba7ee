"""What two texts have in common and where they differ, word by word."""

import re
from difflib import SequenceMatcher
from os.path import commonprefix

# A blank belongs to the word before it: else texts of other words would be alike in every blank.
WORDS = re.compile(r"\s+|\w+\s*|[^\w\s]\s*")
SHORT = 24  # characters up to which single characters are compared: numbers, single words
LONGEST = 160  # words of both texts up to which they are compared; beyond, only their ends

Parts = list[str]  # alike, different, alike, different ...: beginning with what is alike


def split_differences(before: str, after: str) -> tuple[Parts, Parts]:
    """Cut both texts into parts that are alike in turn with parts that differ.

    Joined, the parts give the texts again, and those at even places are the same in both.
    """
    if before == after:
        return [before], [after]
    start = len(commonprefix([before, after]))
    rest = before[start:], after[start:]
    end = min(len(commonprefix([rest[0][::-1], rest[1][::-1]])), *map(len, rest))
    middles = tuple(text[: len(text) - end] for text in rest)
    tail = rest[0][len(rest[0]) - end :]
    parts: tuple[Parts, Parts] = ([before[:start]], [after[:start]])
    for alike, old, new in _changed(*middles):
        for side, text in zip(parts, (old, new), strict=True):
            side += [text, alike]
    for side in parts:
        side[-1] += tail
        if not side[-1]:
            side.pop()
    return parts


def _changed(before: str, after: str) -> list[tuple[str, str, str]]:
    """Pairs of different parts, each with what is alike after it."""
    words = [
        list(text) if _short(before, after) else WORDS.findall(text) for text in (before, after)
    ]
    if not all(words) or sum(map(len, words)) > LONGEST:
        return [("", before, after)]
    matcher = SequenceMatcher(None, words[0], words[1], autojunk=False)
    blocks = matcher.get_matching_blocks()
    changed, old, new = [], 0, 0
    for block in blocks:
        gap = "".join(words[0][old : block.a]), "".join(words[1][new : block.b])
        old, new = block.a + block.size, block.b + block.size
        alike = "".join(words[0][block.a : old])
        if any(gap):
            changed.append((alike, *gap))
        elif changed and alike:
            changed[-1] = (changed[-1][0] + alike, *changed[-1][1:])
    return changed


def _short(before: str, after: str) -> bool:
    return max(len(before), len(after)) <= SHORT and not (" " in before or " " in after)
