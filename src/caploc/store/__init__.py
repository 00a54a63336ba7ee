"""Rows on disk: what was asked under which mask, what came back, what it was worth.

A row's key is its question (model, task, everything else that can change an outcome), its mask
and its example. Resuming a run and sharing rows between runs are therefore the same thing: a row
whose key is known is never asked again.
"""

from caploc.store.rows import SCHEMA, Question, Row, as_kept, pack, unpack
from caploc.store.store import Store, folder_lock

__all__ = ["SCHEMA", "Question", "Row", "Store", "as_kept", "folder_lock", "pack", "unpack"]
