"""Where a task file may take its data from, and what it is told otherwise."""

import inspect
import os
import re

import datasets.packaged_modules as packaged
import pytest

from caploc.errors import BadData
from caploc.tasks import datafiles
from caploc.tasks.catalog import load_task
from caploc.tasks.datafiles import DATA_ENDINGS, READERS

TASK = """\
task: mine
test_split: test
output_type: generate_until
doc_to_text: q
doc_to_target: a
metric_list: [{metric: exact_match}]
generation_kwargs: {until: ["x"], do_sample: false}
"""


def task(folder, data):
    file = folder / "task.yaml"
    file.write_text(TASK + data.replace("HERE", str(folder)))
    return str(file)


def test_plain_data_is_read(tmp_path):
    (tmp_path / "data.csv").write_text("q,a\n1+1=,2\n")
    file = task(
        tmp_path, "dataset_path: csv\ndataset_kwargs: {data_files: {test: HERE/data.csv}}\n"
    )
    assert load_task(file).requests(0)[0].prompt == "1+1="


def test_a_folder_of_plain_data_is_read(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").write_text('{"q": "1+1=", "a": "2"}\n')
    (tmp_path / "data" / "README.md").write_text("Sums.\n")
    file = task(tmp_path, "dataset_path: HERE/data\n")
    assert load_task(file).requests(0)[0].prompt == "1+1="


@pytest.mark.parametrize(
    "name", ["pandas", "webdataset", "imagefolder", "../no/such/x", "s3://a/b", "7.5"]
)
def test_a_reader_that_may_do_more_is_refused(tmp_path, name):
    with pytest.raises(BadData, match="allowed are json, csv, parquet, arrow, text"):
        load_task(task(tmp_path, f"dataset_path: {name}\n"))


def test_a_folder_with_anything_else_is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.pkl").write_bytes(b"")
    with pytest.raises(BadData, match=r"holds 'test.pkl'; allowed are \.json"):
        load_task(task(tmp_path, "dataset_path: HERE/data\n"))


@pytest.mark.parametrize("place", ["/dev/zero", "HERE/pipe", "reference://x::y", "s3://x/y"])
def test_data_that_never_end_are_not_read(tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: '{place}'}}}}\n"
    with pytest.raises(BadData, match="it is a (pipe|device), not|is not allowed; give a path"):
        load_task(task(tmp_path, data))


def test_file_systems_and_places_to_write_are_no_settings(tmp_path):
    with pytest.raises(BadData, match="may not hold 'storage_options'; allowed are "):
        load_task(
            task(tmp_path, "dataset_path: json\ndataset_kwargs: {storage_options: {fo: x}}\n")
        )


def test_a_reader_without_files_does_not_search_the_disk(tmp_path):
    with pytest.raises(BadData, match="names no file"):
        load_task(task(tmp_path, "dataset_path: json\n"))


def test_what_datasets_chooses_by_a_files_ending_unpickles_nothing():
    """So a data set of the Hub, whose files' endings choose, is as harmless as these readers."""
    chosen = {module for module, _ in packaged._EXTENSION_TO_MODULE.values()}
    assert "pandas" not in chosen and set(READERS) <= chosen
    assert {packaged._EXTENSION_TO_MODULE[ending][0] for ending in DATA_ENDINGS} <= set(READERS)
    for name in chosen:
        text = inspect.getsource(getattr(packaged, name))
        code = re.sub(r"#.*", "", text)
        assert not re.search(r"pickle\.load|read_pickle|allow_pickle=True|weights_only=False", code)


def test_a_pattern_that_leads_through_the_disk_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(datafiles, "MOST_FILES", 10)
    (tmp_path / "many").mkdir()
    for number in range(20):
        (tmp_path / "many" / f"{number}.json").touch()
    for pattern in (f"{tmp_path}/**/*.nothing", f"{tmp_path}/*/*.nothing"):
        with pytest.raises(BadData, match="leads through more than 10 files; begin it with"):
            datafiles.check_place("task.yaml", pattern)
    datafiles.check_place("task.yaml", f"{tmp_path}/*.nothing")
