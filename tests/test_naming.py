"""What is filled in where nothing was said."""

from pathlib import Path

from caploc.naming import default_folder, default_others, placed


def test_a_folder_is_named_after_the_run_and_stays_below_runs():
    assert default_folder("org/model", "css", "a b/c:d") == Path("runs/org-model-css-a-b-c-d")
    for hostile in ("../../etc", "..x", "/etc/passwd", "a" * 500, "~root"):
        found = default_folder(hostile)
        assert found.parent == Path("runs") and len(found.name) <= 80
        assert found.name not in ("", ".", "..")


def test_the_demos_tasks_are_compared_with_its_sentences():
    assert default_others("demo/addition") == ["demo/sentences"]
    assert default_others("demo/sentences") == []
    assert default_others("words/past") == ["words/copy"]
    assert default_others("words/copy") == default_others("words/copy_twin") == []
    assert default_others("gsm8k") == []


def test_what_is_a_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.yaml").write_text("")
    assert placed("task.yaml") == str(tmp_path / "task.yaml")
    assert placed("org/model") == "org/model"
