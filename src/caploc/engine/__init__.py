"""The engine: answers requests under masks, many (mask, request) rows at a time."""

from caploc.engine.asks import Answer, Ask, Engine
from caploc.engine.engine import BatchEngine
from caploc.engine.wording import chat_template

__all__ = ["Answer", "Ask", "BatchEngine", "Engine", "chat_template"]
