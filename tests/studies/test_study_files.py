"""Study files: what they mean, and that mistakes are told before a model is loaded."""

import re
import tomllib
from pathlib import Path

import pytest

from caploc.declaration import ModelOptions
from caploc.errors import UserError
from caploc.models import placement
from caploc.studies import Allowed, read_studies
from caploc.studies.file import KEYS
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


def mistakes(folder: Path, text: str) -> str:
    """What is said of a file."""
    with pytest.raises(UserError) as error:
        read_studies(written(folder, text))
    said = str(error.value)
    assert "many.toml" in said
    return said


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
    assert first.other_tasks == ("words/plural", "words/upper", "words/copy")
    assert first.spare == ("words/plural", "words/upper")
    assert second.other_tasks == ("words/past", "words/upper", "words/copy")
    assert second.spare == ("words/past", "words/past_twin", "words/upper")
    assert second.twins == ("words/plural_twin",)


def test_a_file_of_pairs_is_a_task_that_is_written_among_the_results(tmp_path):
    lines = [f"{n} and,{n + 1}" for n in range(12)]
    (tmp_path / "sums.csv").write_text("\n".join(["prompt,answer", *lines]))
    path = written(tmp_path, 'models = ["demo"]\ntasks = ["sums.csv"]\nout = "found"')
    ((name, study),) = read_studies(path).studies.items()
    assert name == "sums.csv" and Path(study.task).is_file()
    assert Path(study.task).parents[1] == tmp_path / "found"
    ((_, study),) = read_studies(path, out=tmp_path / "other").studies.items()
    assert Path(study.task).parents[1] == tmp_path / "other"


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


def test_a_method_has_the_last_word_and_may_be_for_some_models_alone(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"a": 1}\n')
    text = """
            out = "results"
            models = ["demo", {name = "demo", label = "again"}]
            tasks = [
                "demo/addition",
                {name = "demo/code", limit = 40, also = [], models = ["demo"]},
            ]
            methods = [
                {name = "css", masks = 30, rate = 0.05},
           {name = "css", label = "wide", rate = 0.1, limit = 60, models = ["demo"], mode = "mean"},
            ]
            settings = {limit = 20, masks = 10, controls = 3, data = {test = "mine.jsonl"}}
            """
    found = read_studies(written(tmp_path, text))
    assert list(found.studies) == [
        "demo-demo-addition-css", "demo-demo-addition-wide", "demo-demo-code-css",
        "demo-demo-code-wide", "again-demo-addition-css",
    ]  # fmt: skip
    studies = list(found.studies.values())
    assert [study.limit for study in studies] == [20, 60, 40, 60, 20]
    assert [study.mode.name for study in studies] == ["zero", "mean", "zero", "mean", "zero"]
    assert [study.settings.masks for study in studies] == [30, 10, 30, 10, 30]
    assert [study.settings.rate for study in studies] == [0.05, 0.1, 0.05, 0.1, 0.05]
    assert studies[0].other_tasks == ("words/copy",) and studies[2].other_tasks == ()
    assert studies[0].options.data == {"test": str(tmp_path / "mine.jsonl")}
    assert {study.controls for study in studies} == {3}
    assert found.out == tmp_path / "results"


DEMO_ADDITION = 'models = ["demo"]\ntasks = ["demo/addition"]\n'


def test_code_is_allowed_on_the_command_line_only(tmp_path):
    for key in ("allow_code = true", 'isolation = "weak"'):
        assert f"{key.split()[0]} is no key here" in mistakes(tmp_path, DEMO_ADDITION + key)
    trust = 'models = [{name = "demo", trust_remote_code = true}]\ntasks = ["demo/addition"]'
    assert "There is no key 'trust_remote_code'" in mistakes(tmp_path, trust)
    path = written(tmp_path, DEMO_ADDITION)
    (study,) = read_studies(path, Allowed(code=True, remote_code=True)).studies.values()
    assert study.options.allow_code and study.model.trust_remote_code
    (study,) = read_studies(path).studies.values()
    assert not study.options.allow_code and not study.model.trust_remote_code


def test_every_wrong_key_is_named_at_once(tmp_path):
    text = """
        models = ["demo"]
        tasks = ["demo/code", {name = "demo/code", fewshots = 3}]
        seeds = [-1]
        bogus = 1
        """
    said = mistakes(tmp_path, text)
    assert "tasks.1: There is no key 'fewshots'. Did you mean 'fewshot'?" in said
    assert "seeds.0 must be greater than or equal to 0; got -1" in said
    assert "bogus is no key here" in said and "\n" not in said


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('models = [{name = "demo", dtype = "float8"}]', "no dtype 'float8'. Did you mean"),
        ('tasks = ["demo/additon"]', "no task 'demo/additon'. Did you mean 'demo/addition'"),
        ('methods = [{name = "one-shot", budget = 20}]', "budget 20 is too small: one-shot needs"),
    ],
)
def test_a_study_s_mistake_is_told_with_its_name_before_a_model_is_loaded(tmp_path, entry, said):
    parts = {"models": 'models = ["demo"]', "tasks": 'tasks = ["demo/code"]', "methods": ""}
    parts[entry.partition(" ")[0]] = entry
    told = mistakes(tmp_path, "\n".join(parts.values()))
    assert re.search(f"many.toml, demo-?.*: .*{said}", told)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "models is missing; tasks is missing."),
        (
            "models = []\ntasks = 3",
            "models must have at least 1 item .* tasks must be a valid list",
        ),
        ('models = ["demo"]\ntasks = [3]', "tasks.0 must be a valid dictionary"),
        ('models = ["demo"]\ntasks = ["demo/code", "demo/code"]', "demo-code: Two studies have"),
        (
            'models = ["demo"]\ntasks = ["demo/code", {name = "demo/code", label = "Demo-Code"}]',
            "Two studies have this name",
        ),
        (
            'models = ["demo"]\ntasks = [{name = "demo/code", models = ["dem"]}]',
            "There is no model 'dem'. Did you mean 'demo'",
        ),
        (f"{DEMO_ADDITION}settings = {{data = {{test = 'no.jsonl'}}}}", "there is no such file"),
        (f"{DEMO_ADDITION}settings = {{goal = 'set', spare = ['words/past']}}", "got --goal set"),
        (f"{DEMO_ADDITION}settings = {{top = 97}}", "97 is more than the 96 heads"),
        ('models = ["~no-such-user/m"]\ntasks = ["demo/addition"]', "There is no"),
        ('models = ["demo"]\ntasks = ["~no-such-user/t.yaml"]', "There is no task file '~no"),
    ],
)
def test_files_that_make_no_sense_are_told_so(tmp_path, text, said):
    assert re.search(said, mistakes(tmp_path, text), re.DOTALL)


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


@pytest.mark.usefixtures("as_if_fetched")
def test_the_example_in_the_documentation_is_valid(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    found = read_studies(written(tmp_path, example))
    assert len(found.studies) > 5
    tables = tomllib.loads(example)
    assert {"models", "tasks", "methods", "seeds", "settings", "out"} <= set(tables)


def test_every_key_is_documented():
    text = DOCS.read_text()
    assert all(f"`{key}`" in text for key in KEYS)


def test_a_model_that_does_not_fit_is_no_mistake_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "free_memory", lambda device: 0)
    assert len(read_studies(written(tmp_path, DEMO_ADDITION)).studies) == 1


@pytest.mark.usefixtures("as_if_fetched")
def test_the_projects_own_studies_can_be_had():
    assert len(read_studies(DOCS.parents[1] / "studies" / "real.toml").studies) > 100


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("also = 5", "settings: also must be a list of names; got 5"),
        ("spare = [1]", "settings: spare must be a list of names; got [1]"),
        ("data = {test = 3}", "settings: data must be a table of files; got {'test': 3}"),
    ],
)
def test_an_option_of_another_kind_is_named(tmp_path, option, said):
    text = f'models = ["demo"]\ntasks = ["words/past"]\n[settings]\n{option}'
    assert said in mistakes(tmp_path, text)
