"""What commands and notebooks fill in where nothing was said: folders, whole paths, other tasks."""

from pathlib import Path


def default_others(task: str) -> list[str]:
    """The demo's general benchmark goes with the demo's tasks; others are named by the user."""
    general = "demo/sentences"
    return [general] if task.startswith("demo/") and task != general else []


def placed(name: str) -> str:
    """A model or task given as a path, as an absolute one: a run is continued from anywhere."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.is_dir() or path.is_file() else name


def default_folder(*parts: str) -> Path:
    """Where a run goes, from what it is about."""
    text = "-".join(parts)
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-.")[:80]
    return Path("runs") / name
