"""Task files to read."""

import json

import pytest


@pytest.fixture
def task_file(tmp_path):
    """Write a task YAML with its data; returns the YAML's path."""

    def write(name="mine", rows=None, **changes):
        rows = rows or [{"q": f"{n}+1=", "a": str(n + 1)} for n in range(6)]
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{q}}",
            "doc_to_target": "{{a}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}
            ],
            "metadata": {"version": 1},
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(config | changes))  # JSON is YAML
        return path

    return write
