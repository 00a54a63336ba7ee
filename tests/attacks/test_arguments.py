"""What may be typed: every command, every option, values that nobody should give.

Each ends in one sentence, or does what it says; none in a traceback, and none runs long.
"""

import os
from pathlib import Path
from time import monotonic

import pytest
import typer
from typer.testing import CliRunner

from caploc.cli import UNFORESEEN, app, ending

pytestmark = pytest.mark.attacks
SECONDS = 120
HUGE = "1" + "0" * 30
NUMBERS = [HUGE, "-" + HUGE, "9" * 5000, "-1", "0", "", "nan", "1e400", "0x10", "٣", "1_000", "½"]
SHARES = ["nan", "inf", "-inf", "1e400", "-0.5", "2", "", "1e-320", "0,5"]
WORDS = [
    "", " ", "\x1b[31m", "../../etc", "~nobody", "a" * 5000, "\ud800", "--help", "-", "{}", "%s%n",
    "$(touch MARK)", "`touch MARK`", "; touch MARK", "L0H0", "L99999999999999H1", "L0H0," * 2000,
    "a=b=c", "=", "test=/dev/zero", "<script>", "__class__", "nan",
]  # fmt: skip
PLACES = ["/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/mem", "PIPE", "/", ".", "/etc/passwd",
          "", "x" * 5000, "a/" * 3000, "\x01", "~nobody/x"]  # fmt: skip
# A beginning of each command that is quickly refused where the value under test is not.
NOWHERE = "nowhere/at-all"
BEGIN = {
    "locate": [NOWHERE, "--task", "demo/addition"],
    "evaluate": [NOWHERE, "--task", "demo/addition", "--heads", "L0H0"],
    "neurons locate": [NOWHERE, "--task", "demo/addition"],
    "models": [NOWHERE],
    "ui": [NOWHERE],
    "reproduce": ["table2", "--plan"],
    "tasks": ["--json"],
    "demo": ["--help"],
    "doctor": [NOWHERE],
}
READS = ["curve", "interactions", "universal", "report", "compare", "rows", "export", "doctor",
         "fetch", "run", "neurons overlap", "neurons erase", "neurons enhance"]  # fmt: skip


def commands(group, before=""):
    """Every command by its name, those in groups too."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


COMMANDS = dict(commands(typer.main.get_command(app)))


def values(option):
    """Hostile values for an option, by what it takes."""
    kind = str(option.type_descriptor.annotation)
    if "int" in kind:
        return NUMBERS
    return SHARES if "float" in kind else PLACES if "Path" in kind else WORDS


def typed():
    """(command, option, value): every option, two values each, in turn through the lists."""
    turn = 0
    for name, command in COMMANDS.items():
        for option in command.params:
            if option.param_type_name != "option" or option.is_flag or option.name == "help":
                continue
            listed = values(option)
            for step in range(2):
                turn += 1
                yield name, max(option.opts, key=len), listed[(turn + step * 5) % len(listed)]


def check(tmp_path, monkeypatch, words):
    """Run a command in this process; it ends in a sentence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    os.mkfifo(tmp_path / "PIPE")
    words = [word.replace("PIPE", str(tmp_path / "PIPE")) for word in words]
    start = monotonic()
    ended = CliRunner().invoke(app, [word.replace("\ud800", "\udcff") for word in words])
    assert monotonic() - start < SECONDS
    error = ended.exception
    if error is not None and not isinstance(error, SystemExit):
        code, sentence = ending(error)
        assert UNFORESEEN not in sentence, sentence
        assert code in (1, 2) and sentence.strip()
    assert "Traceback" not in ended.output
    assert not (tmp_path / "MARK").exists()
    return ended


@pytest.mark.parametrize(("command", "option", "value"), list(typed()))
def test_no_value_of_an_option_is_unforeseen(tmp_path, monkeypatch, command, option, value):
    check(tmp_path, monkeypatch, [*command.split(), *BEGIN.get(command, [NOWHERE]), option, value])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", READS)
def test_no_place_is_unforeseen(tmp_path, monkeypatch, command, place):
    """Devices, pipes and names that no disk takes, where a folder or a file is asked for."""
    ended = check(tmp_path, monkeypatch, [*command.split(), place])
    assert ended.exit_code != 0 or command in ("doctor", "report", "compare")


@pytest.mark.parametrize(
    "words",
    [
        "--masks 1000000000000",
        "--masks 1000000000000 --method css",
        f"--budget {HUGE}",
        f"--budget {HUGE} --method css",
        "--budget 999999999999 --method css",
        "--method css-search --mask-counts 1,1000000000000",
        f"--seed {HUGE}",
        f"--top {HUGE}",
        f"--examples {HUGE}",
        f"--limit -{HUGE}",
        f"--fewshot {HUGE}",
        f"--group {HUGE}0 --budget 1",
        "--rate nan",
        "--rate 1e-300 --method csb",
    ],
)
def test_a_number_beyond_reason_is_refused_before_anything_runs(tmp_path, monkeypatch, words):
    out = tmp_path / "out"
    words = ["locate", "demo", "--task", "demo/addition", "--out", str(out), *words.split()]
    ended = check(tmp_path, monkeypatch, words)
    assert ended.exit_code != 0
    assert not (out / "rows.sqlite").exists()


STUDIES = {
    "nothing": "",
    "no TOML": "a = = b",
    "binary": "\x00\x01",
    "deep": "a = " + "[" * 5000,
    "long": "#" * 2_000_000,
    "many": 'models = ["demo"]\ntasks = ["demo/addition"]\nseeds = ' + str([*range(20_000)]),
    "huge seed": 'models = ["demo"]\ntasks = ["demo/addition"]\nseeds = [' + HUGE + "]\n",
    "task of code": 'models = ["demo"]\ntasks = ["z.yaml"]\n',
    "task of a device": 'models = ["demo"]\ntasks = ["/dev/zero"]\n',
    "device as YAML": 'models = ["demo"]\ntasks = ["/dev/zero.yaml"]\n',
    "models of a device": 'models = ["/dev/zero"]\ntasks = ["demo/addition"]\n',
    "out of a link": 'models = ["demo"]\ntasks = ["demo/x"]\nout = "/dev/full/x"\n',
    "label": 'models = [{name = "demo", label = "../../x"}]\ntasks = ["demo/x"]\n',
    "trust": 'models = [{name = "demo", trust_remote_code = true}]\ntasks = ["demo/addition"]\n',
    "dotted": "models.a.b.c.d = 1\n",
    "wrong types": 'models = 7\ntasks = {a = 1}\nseeds = "x"\nmethods = [[]]\n',
    "budget": 'models = ["demo"]\ntasks = ["demo/addition"]\n[settings]\nbudget = ' + HUGE + "\n",
    "nan": 'models = ["demo"]\ntasks = ["demo/addition"]\n[settings]\nrate = nan\n',
    "masks": 'models = ["demo"]\ntasks = ["demo/addition"]\nmethods = [{name = "css", masks = '
    "1000000000000}]\n",
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_file_of_studies_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'MARK')!r}, 'w').close()\n")
    (tmp_path / "z.yaml").write_text("task: z\ndataset_path: json\ndoc_to_text: !function evil.f\n")
    file = tmp_path / "studies.toml"
    file.write_text(STUDIES[name])
    assert check(tmp_path, monkeypatch, ["run", str(file)]).exit_code != 0


def test_every_command_is_attacked():
    attacked = {name for name, _, _ in typed()} | set(READS)
    assert attacked | {"tasks"} == set(COMMANDS)  # which takes nothing but flags
    assert len(list(typed())) > 250
    assert set(READS) <= set(COMMANDS) and Path("/dev/zero").exists()
