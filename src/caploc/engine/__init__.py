"""The engine: answers requests under masks, many (mask, request) rows at a time."""

from caploc.engine.asks import Answer, Ask, Engine, Source
from caploc.engine.encoding import chat_template
from caploc.engine.engine import BatchEngine

__all__ = ["Answer", "Ask", "BatchEngine", "Engine", "Source", "chat_template"]
