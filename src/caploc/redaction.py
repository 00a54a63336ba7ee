"""Take secrets out of what is written down: commands with tokens in them, addresses with passwords.

Known by their form (Hugging Face, GitHub, OpenAI and others), by the place where they stand
(`https://user:password@host`, `token=...`, `--api-key ...`), or because a variable of the
environment that is named like a secret holds them. What is read may come from anyone: no expression
here takes longer than in proportion to the text.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "[hidden]"
SHORTEST = 8  # characters of a variable's value that is taken for a secret
NAMED = r"token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credentials?|authorization"
FORMS = (
    re.compile(
        r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
        r"|\bglpat-[\w-]{16,}|\bsk-[\w-]{20,}|\bxox[abprs]-[\w-]{10,}|\bA(?:KI|SI)A[A-Z0-9]{16}\b"
        r"|\beyJ[\w-]{8,1000}+\.[\w-]{8,}+\.[\w-]*"
    ),
    re.compile(r"(?<=://)[^\s/@'\"]+(?=@)"),
    re.compile(rf"(?i)(?:{NAMED})(?:=|:\s?)(?:(?:bearer|basic)\s+)?([^\s,'\"&]+)"),
    # in a sentence a blank parts words; behind an option, the option from its value
    re.compile(rf"(?i)(?<![\w-])--[\w-]*(?:{NAMED})\s+(?:(?:bearer|basic)\s+)?([^\s,'\"&]+)"),
)
VARIABLE = re.compile(rf"(?i)(?:^|_)(?:{NAMED}|key)(?:$|_)")


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with every secret in it replaced by `[hidden]`."""
    for name, value in environment.items():
        if VARIABLE.search(name) and len(value) >= SHORTEST:
            text = text.replace(value, HIDDEN)
    for form in FORMS:
        text = form.sub(hide, text)
    return text


def hide(match: re.Match[str]) -> str:
    """What stands in a secret's place: where only a part of the match is one, the rest stays."""
    if not match.re.groups:
        return HIDDEN
    start, end = match.span(1)
    whole = match[0]
    return whole[: start - match.start()] + HIDDEN + whole[end - match.start() :]


def without_secrets(content: Any) -> Any:
    """A file's content with secrets taken out of every text in it."""
    if isinstance(content, str):
        return redacted(content)
    if isinstance(content, dict):
        return {key: without_secrets(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_secrets(value) for value in content]
    return content
