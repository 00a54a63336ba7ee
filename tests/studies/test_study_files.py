"""Study files: what they mean, and that every mistake in one is named at once."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.errors import UserError
from caploc.models import placement
from caploc.studies import Allowed, read_studies
from caploc.studies.file import SettingLists, describe_mistake_at, understood
from caploc.workbench import ModelOptions
from worlds import DEMO

DOCS = Path(__file__).parents[2] / "docs" / "studies.md"


def written(folder: Path, text: str) -> Path:
    """A study file, beside a model's folder."""
    if not (folder / "demo").exists():
        (folder / "demo").symlink_to(DEMO)
    path = folder / "many.toml"
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def _no_model(monkeypatch):
    monkeypatch.setattr(ModelOptions, "engine", lambda self: pytest.fail("the model was loaded"))


def mistakes(path: Path) -> list[str]:
    """The lines of the error."""
    with pytest.raises(UserError) as error:
        read_studies(path)
    head, *lines = str(error.value).splitlines()
    assert re.fullmatch(rf".*many.toml has {len(lines)} mistakes?:", head)
    return [line.strip() for line in lines]


def test_a_list_for_all_studies_leaves_out_each_ones_own_task(tmp_path):
    text = """
        models = ["demo"]
        tasks = ["words/past", {name = "words/plural", twin = ["words/plural_twin"]}]
        [settings]
        goal = "specific"
        also = ["words/past", "words/plural", "words/upper"]
        spare = ["words/past", "words/past_twin", "words/plural", "words/upper"]
        """
    first, second = read_studies(written(tmp_path, text)).studies.values()
    assert first.other_tasks == ("words/plural", "words/upper") == first.spare
    assert second.other_tasks == ("words/past", "words/upper")
    assert second.spare == ("words/past", "words/past_twin", "words/upper")
    assert second.twins == ("words/plural_twin",)


def test_every_model_meets_every_task_method_and_seed(tmp_path):
    found = read_studies(
        written(
            tmp_path,
            """
            models = ["demo", {name = "demo", label = "again", dtype = "float32"}]
            tasks = ["demo/addition", "demo/code"]
            methods = ["scan", "one-shot"]
            seeds = [0, 7]
            """,
        )
    )
    assert len(found.studies) == 16
    study = found.studies["again-demo-code-one-shot-seed7"]
    assert (study.model.dtype, study.task, study.method) == ("float32", "demo/code", "one-shot")
    assert study.settings.seed == 7 and study.other_tasks == ("words/copy",)
    assert found.out == Path("runs") / "many"


def test_the_last_that_speaks_of_a_study_decides(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"a": 1}\n')
    text = """
            out = "results"
            models = ["demo"]
            tasks = ["demo/addition", {name = "demo/code", limit = 40, also = []}]
            methods = [
                {name = "css", masks = 30, rate = 0.05},
                {name = "css", label = "wide", rate = 0.1},
            ]
            settings = {limit = 20, masks = 10, controls = 3}

            [[overrides]]
            tasks = ["demo/code"]
            methods = ["wide"]
            limit = 60
            data = {test = "mine.jsonl"}

            [[overrides]]
            tasks = ["demo/addition"]
            methods = ["wide"]
            skip = true
            """
    found = read_studies(written(tmp_path, text))
    assert list(found.studies) == ["demo-addition-css", "demo-code-css", "demo-code-wide"]
    first, second, third = found.studies.values()
    assert [study.limit for study in (first, second, third)] == [20, 40, 60]
    assert [study.settings.masks for study in (first, second, third)] == [30, 30, 10]
    assert [study.settings.rate for study in (first, second, third)] == [0.05, 0.05, 0.1]
    assert first.other_tasks == ("words/copy",) and second.other_tasks == ()
    assert third.options.data == {"test": str(tmp_path / "mine.jsonl")}
    assert {study.controls for study in found.studies.values()} == {3}
    assert found.out == tmp_path / "results"


def test_code_is_allowed_on_the_command_line_only(tmp_path):
    path = written(tmp_path, 'models = ["demo"]\ntasks = ["demo/addition"]\nallow_code = true')
    (line,) = mistakes(path)
    assert line.startswith("allow_code: there is no such key.")
    path = written(tmp_path, 'models = ["demo"]\ntasks = ["demo/addition"]\nisolation = "weak"')
    (line,) = mistakes(path)
    assert line.startswith("isolation: there is no such key.")
    path = written(
        tmp_path,
        'models = [{name = "demo", trust_remote_code = true}]\ntasks = ["demo/addition"]',
    )
    (line,) = mistakes(path)
    assert line.startswith("models[0].trust_remote_code: there is no such key.")
    path = written(tmp_path, 'models = ["demo"]\ntasks = ["demo/addition"]')
    (study,) = read_studies(path, Allowed(code=True, remote_code=True)).studies.values()
    assert study.options.allow_code and study.model.trust_remote_code
    (study,) = read_studies(path).studies.values()
    assert not study.options.allow_code and not study.model.trust_remote_code


def named_once(tmp_path, text, wanted):
    lines = mistakes(written(tmp_path, text))
    for pattern in wanted:
        assert sum(bool(re.search(pattern, line)) for line in lines) == 1, (pattern, lines)


def test_every_wrong_key_and_value_is_named_at_once(tmp_path):
    text = """
        models = ["demo"]
        tasks = ["demo/code", {name = "demo/code", rate = 2, fewshots = 3}]
        seeds = [0, 0, -1]
        bogus = 1
        [settings]
        top = 0
        estimator = "laso"
        controls = -1
        [[overrides]]
        limit = "x"
        """
    wanted = [
        r"tasks\[1\]\.rate must be above 0 and below 1; got 2",
        r"tasks\[1\]\.fewshots: there is no such key. Did you mean 'fewshot'",
        r"seeds\[2\] must be greater than or equal to 0; got -1",
        r"bogus: there is no such key. Known: out, models",
        r"settings\.top must be 1 or more; got 0",
        r"settings\.controls must be 0 or more; got -1",
        r"settings\.estimator: There is no estimator 'laso'. Did you mean 'lasso'",
        r"overrides\[0\]\.limit must be a whole number, 1 or more; got 'x'",
    ]
    named_once(tmp_path, text, wanted)


def test_every_wrong_name_is_named_at_once_before_a_model_is_loaded(tmp_path):
    text = """
        models = ["demo", "nowhere/at all", {name = "demo", label = "bad", dtype = "float8"}]
        tasks = ["demo/additon", "demo/code"]
        methods = ["scan", "cs", {name = "one-shot", budget = 20}]
        seeds = [0, 0]
        [settings]
        budget = 10
        also = ["demo/sentence"]
        data = {test = "nofile.jsonl"}
        [[overrides]]
        tasks = ["demo/adition"]
        """
    wanted = [
        r"models\[1\]: There is no folder 'nowhere/at all'",
        r"models\[2\]: There is no dtype 'float8'. Did you mean 'float32'",
        r"tasks: demo/additon: There is no task 'demo/additon'. Did you mean 'demo/addition'",
        r"There is no method 'cs'. Did you mean 'css'",
        r"seeds: 0 is there 2 times",
        r"There is no task 'demo/sentence'",
        r"data test=.*nofile.jsonl: there is no such file",
        r"overrides\[0\]\.tasks: 'demo/adition' is no label here; there are demo/additon",
    ]
    named_once(tmp_path, text, wanted)


def test_what_does_not_fit_together_is_named_for_each_study(tmp_path):
    lines = mistakes(
        written(
            tmp_path,
            """
            models = ["demo"]
            tasks = ["demo/addition", "demo/code"]
            methods = [{name = "css", rate = 0.001}, {name = "one-shot", budget = 20}, "scan"]
            settings = {budget = 50}
            """,
        )
    )
    assert len(lines) == 3
    assert lines[0].startswith(
        "css for demo/addition on demo; css for demo/code on demo: rate 0.001"
    )
    assert "budget 20 is too small: one-shot needs 96" in lines[1]
    assert "budget 50 is too small: 252" in lines[2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["models is missing.", "tasks is missing."]),
        ("models = []\ntasks = []", ["models must be one or more; got [].", "tasks must be one"]),
        ('models = "demo"\ntasks = [3]', ["models must be a valid array; got 'demo'", "tasks[0]"]),
        ('models = ["demo"]\ntasks = ["demo/code", "demo/code"]', ["'demo/code' is there 2 times"]),
        ('models = ["demo"]\ntasks = ["demo/code", {name = "demo/code", label = "Demo-Code"}]',
         ["2 studies would lie in one folder, 'demo-code'"]),
        ('models = ["demo"]\ntasks = ["demo/code"]\n[[overrides]]\nskip = true', ["skip every"]),
        (f'models = ["demo"]\ntasks = ["demo/code"]\nseeds = {list(range(10001))}',
         ["asks for 10,001 studies; 10,000 are the most"]),
    ],
)  # fmt: skip
def test_files_that_make_no_sense_are_told_so(tmp_path, text, said):
    lines = mistakes(written(tmp_path, text))
    for each in said:
        assert any(each in line for line in lines), lines


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"models = [", "many.toml cannot be read as TOML"),
        (b"\xff\xfe", "many.toml cannot be read as TOML: 'utf-8' codec"),
    ],
)
def test_what_is_no_study_file_is_one_sentence(tmp_path, content, said):
    (tmp_path / "many.toml").write_bytes(content)
    with pytest.raises(UserError, match=said):
        read_studies(tmp_path / "many.toml")
    with pytest.raises(UserError, match="There is no file"):
        read_studies(tmp_path / "none.toml")
    with pytest.raises(UserError, match="cannot be read"):
        read_studies(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*SettingLists.model_fields, "name", "label", "x"]), inner
        )
    ),
    max_leaves=8,
)
KEYS = ["models", "tasks", "methods", "seeds", "settings", "overrides", "out", "y"]


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_whatever_a_file_holds_it_is_understood_or_every_mistake_has_a_sentence(content):
    file, said = understood(content)
    assert file is not None or said
    assert all(re.fullmatch(r"[^\n]+\.", each, re.DOTALL) for each in said)


def test_a_long_value_is_not_repeated_whole():
    error = {"type": "x", "loc": ("out",), "msg": "Input should be short", "input": "y" * 10_000}
    assert describe_mistake_at(error) == f"out must be short; got '{'y' * 59}...."


@pytest.mark.usefixtures("as_if_fetched")
def test_the_example_in_the_documentation_is_valid(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    found = read_studies(written(tmp_path, example))
    assert len(found.studies) > 5
    tables = tomllib.loads(example)
    assert {"models", "tasks", "methods", "seeds", "settings", "overrides", "out"} <= set(tables)


def test_every_key_is_documented():
    text = DOCS.read_text()
    assert all(f"`{key}`" in text for key in SettingLists.model_fields)


@pytest.mark.parametrize("name", ["~no-such-user/m", "x" * 5_000, "a\\u0000b"])
def test_a_model_whose_name_is_no_path_is_told_as_every_other(tmp_path, name):
    (line,) = mistakes(written(tmp_path, f'models = ["{name}"]\ntasks = ["demo/addition"]'))
    assert line.startswith("models[0]: ")


def test_a_home_of_nobody_is_a_name(tmp_path):
    path = written(
        tmp_path, 'out = "~no-such-user/out"\nmodels = ["demo"]\ntasks = ["~no-such-user/t.yaml"]\n'
    )
    (line,) = mistakes(path)
    assert "There is no task file '~no-such-user/t.yaml'" in line


@pytest.mark.parametrize("label", ["rows.sqlite", "Rows.sqlite-wal", "studies.json", "figures"])
def test_a_study_does_not_take_the_name_of_a_file_beside_it(tmp_path, label):
    text = f'models = ["demo"]\ntasks = [{{name = "demo/addition", label = "{label}"}}]\n'
    (line,) = mistakes(written(tmp_path, text))
    assert line.startswith(f"a study's folder cannot be called {label.casefold()!r}")


def test_a_model_that_does_not_fit_is_no_mistake_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "free_memory", lambda device: 0)
    path = written(tmp_path, 'models = ["demo"]\ntasks = ["demo/addition"]\nmethods = ["css"]')
    assert len(read_studies(path).studies) == 1
    path.write_text(path.read_text() + "\nsettings = {top = 97}")
    (line,) = mistakes(path)
    assert "97 is more than the 96 heads" in line


def test_what_a_study_alone_would_be_refused_for_is_named_before_any_runs(tmp_path):
    text = """
        models = ["demo"]
        tasks = ["demo/addition"]
        methods = [
            {name = "scan", label = "set", goal = "set"}, {name = "css", goal = "specific"},
        ]
        [settings]
        spare = ["demo/sentences"]
    """
    found = "\n".join(mistakes(written(tmp_path, text)))
    assert "spare is for goal specific; got goal set" in found
    assert "goal specific is for method scan" in found


@pytest.mark.usefixtures("as_if_fetched")
def test_the_projects_own_studies_can_be_had():
    assert len(read_studies(DOCS.parents[1] / "studies" / "real.toml").studies) > 100
