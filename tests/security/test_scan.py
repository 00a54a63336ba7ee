"""What no line of caploc does: read pickles, run text, start a shell, put text into SQL."""

import ast
from pathlib import Path

import pytest

import caploc

PACKAGE = Path(caploc.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Programs that a model wrote are run here, isolated, and nowhere else.
ISOLATED = {"sandbox/runner.py"}
SERIALIZERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
FORBIDDEN = {
    "torch.load", "joblib.load", "pd.read_pickle", "pandas.read_pickle", "os.system", "os.popen",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "tempfile.mktemp",
}  # fmt: skip


RUNS_TEXT = {"eval", "exec", "compile", "__import__"}


def imported(node):
    """The packages that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module.split(".")[0]


def faults(path, where):
    """What a file does that it may not."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        yield from (f"imports {name}" for name in imported(node) if name in SERIALIZERS)
        if isinstance(node, ast.Call):
            yield from faults_of_call(ast.unparse(node.func), node, where)


def faults_of_call(name, call, where):
    """What a call does that none may."""
    if name in FORBIDDEN or name in RUNS_TEXT and where not in ISOLATED:
        yield f"calls {name}"
    options = {each.arg: ast.unparse(each.value) for each in call.keywords}
    yield from unsafe_options(name, options)
    if name.rpartition(".")[2] in ("execute", "executemany", "executescript"):
        yield from unsafe_sql(call)


def unsafe_options(name, options):
    """Options that a call may not have, or must have."""
    if options.get("shell", "False") != "False":
        yield f"{name} starts a shell"
    if name in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
        yield "np.load may read pickles"
    if options.get("trust_remote_code") == "True":
        yield f"{name} trusts remote code"


# What is put into statements: names of columns and versions that stand in caploc's own code.
OWN = {"FIELDS", "SCHEMA", "SHOWN", "INSERT", "which"}


def unsafe_sql(call):
    """A statement with text put into it; its values belong into parameters."""
    statement = call.args[0] if call.args else None
    if isinstance(statement, ast.JoinedStr):
        for part in statement.values:
            if isinstance(part, ast.FormattedValue) and ast.unparse(part.value) not in OWN:
                yield f"SQL holds {{{ast.unparse(part.value)}}}"
    elif isinstance(statement, ast.BinOp) or (
        isinstance(statement, ast.Call) and ast.unparse(statement.func).endswith("format")
    ):
        yield f"SQL is put together: {ast.unparse(statement)[:60]}"


def test_no_file_does_what_none_may():
    places = {path.relative_to(PACKAGE).as_posix(): path for path in MODULES}
    found = {where: list(faults(path, where)) for where, path in places.items()}
    assert len(found) > 150
    assert not {where: said for where, said in found.items() if said}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "eval(text)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "subprocess.run(text, shell=True)",
        "load(name, trust_remote_code=True)",
        "database.execute(f'SELECT {name}')",
        "database.execute('SELECT ' + name)",
        "database.executemany('SELECT {}'.format(name), rows)",
    ],
)
def test_the_scan_sees_what_it_is_for(tmp_path, line):
    file = tmp_path / "module.py"
    file.write_text(line)
    assert list(faults(file, "module.py"))
