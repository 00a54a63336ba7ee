"""Run folders, files of studies and other files that are not what they should be."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from filelock import FileLock
from mistaking import Place, mistake

GROUP = "Run folders"
AGAIN = (
    "--method css --masks 6 --rate 0.3 --examples 10 --limit 10 --controls 2 --device cpu --out run"
)


def edited(file: Path, change: Any) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def repeated(place: Place, more: str = "") -> str:
    model = place.kept.model
    return f"locate {model} --task {model}/planted.yaml --also {model}/other.yaml {AGAIN}{more}"


@mistake(GROUP, "a folder that is not there")
def _(place: Place) -> str:
    return "report nowhere"


@mistake(GROUP, "a folder without a run")
def _(place: Place) -> str:
    (place.folder / "empty").mkdir()
    return "curve empty"


@mistake(GROUP, "the folder of another study", slow=True)
def _(place: Place) -> str:
    place.run()
    return repeated(place, " --seed 7")


@mistake(GROUP, "the folder of another command")
def _(place: Place) -> str:
    place.run()
    model = place.kept.model
    return f"evaluate {model} --task {model}/planted.yaml --device cpu --out run"


@mistake(GROUP, "a file in place of the folder")
def _(place: Place) -> str:
    place.file("run", "")
    return repeated(place)


@mistake(GROUP, "a folder below a file", code=1)
def _(place: Place) -> str:
    place.file("file", "")
    return repeated(place).replace("--out run", "--out file/run")


@mistake(GROUP, "a name that is too long for the disk", code=1)
def _(place: Place) -> str:
    return repeated(place).replace("--out run", f"--out {'x' * 300}")


@mistake(GROUP, "run.json was edited by hand: no JSON")
def _(place: Place) -> str:
    (place.run() / "run.json").write_text('{"study": {"model"')
    return "curve run"


@mistake(GROUP, "run.json was edited by hand: a number is a word")
def _(place: Place) -> str:
    edited(place.run() / "run.json", lambda run: run["study"].update(controls="five"))
    return "curve run"


@mistake(GROUP, "run.json was edited by hand: the study is gone")
def _(place: Place) -> str:
    edited(place.run() / "run.json", lambda run: run.pop("study"))
    return "curve run"


@mistake(GROUP, "run.json was edited by hand, and the run is started again")
def _(place: Place) -> str:
    edited(place.run() / "run.json", lambda run: run.update(study=[1, 2]))
    return repeated(place)


@mistake(GROUP, "run.json is a list, and the run is started again")
def _(place: Place) -> str:
    (place.run() / "run.json").write_text("[]")
    return repeated(place)


@mistake(GROUP, "result.json of a later version")
def _(place: Place) -> str:
    edited(place.run() / "result.json", lambda result: result.update(schema=99))
    return "report run"


@mistake(GROUP, "result.json is not JSON")
def _(place: Place) -> str:
    (place.run() / "result.json").write_text("<html>")
    return "report run"


@mistake(GROUP, "result.json is a list")
def _(place: Place) -> str:
    (place.run() / "result.json").write_text("[]")
    return "report run"


@mistake(GROUP, "result.json holds NaN")
def _(place: Place) -> str:
    file = place.run() / "result.json"
    edited(file, lambda result: result["heads"][0].update(effect=float("nan")))
    return "report run"


@mistake(GROUP, "result.json nests 100,000 lists")
def _(place: Place) -> str:
    (place.run() / "result.json").write_text("[" * 100_000)
    return "report run"


@mistake(GROUP, "result.json is larger than any that is written")
def _(place: Place) -> str:
    with (place.run() / "result.json").open("r+b") as file:
        file.truncate(2**40)  # a hole: no disk space
    return "report run"


@mistake(GROUP, "result.json has no heads (report)")
def _(place: Place) -> str:
    edited(place.run() / "result.json", lambda result: result.pop("heads"))
    return "report run"


@mistake(GROUP, "result.json has no heads (curve)")
def _(place: Place) -> str:
    edited(place.run() / "result.json", lambda result: result.pop("heads"))
    return "curve run"


@mistake(GROUP, "result.json has no grid (compare)")
def _(place: Place) -> str:
    edited(place.run() / "result.json", lambda result: result.pop("grid"))
    return "compare run --out compared"


@mistake(GROUP, "result.json has no model (universal)")
def _(place: Place) -> str:
    edited(place.run() / "result.json", lambda result: result.pop("model"))
    return "universal run run --out universal"


@mistake(GROUP, "result.json has no top heads (export)")
def _(place: Place) -> str:
    edited(place.run() / "result.json", lambda result: result.pop("top"))
    return "export run --to out --as heads"


@mistake(GROUP, "result.json names heads that the model does not have")
def _(place: Place) -> str:
    edited(place.run() / "result.json", lambda result: result.update(top=["L77H1"]))
    return "curve run"


@mistake(GROUP, "an effect that is a word")
def _(place: Place) -> str:
    file = place.run() / "result.json"
    edited(file, lambda result: result["heads"][0].update(effect="large"))
    return "report run"


@mistake(GROUP, "answers.json is missing")
def _(place: Place) -> str:
    (place.run() / "answers.json").unlink()
    return "report run"


@mistake(GROUP, "answers.json holds numbers")
def _(place: Place) -> str:
    (place.run() / "answers.json").write_text("[1, 2]")
    return "report run"


@mistake(GROUP, "the model has changed since")
def _(place: Place) -> str:
    file = place.run() / "result.json"
    edited(file, lambda result: result["model"].update(fingerprint="0" * 40))
    return "curve run --most 1 --limit 5"


@mistake(GROUP, "rows.sqlite is no database", code=1)
def _(place: Place) -> str:
    (place.run() / "rows.sqlite").write_text("no database, but a text of some length " * 50)
    return repeated(place)


@mistake(GROUP, "rows.sqlite is cut off", code=1)
def _(place: Place) -> str:
    file = place.run() / "rows.sqlite"
    file.write_bytes(file.read_bytes()[:5000])
    return repeated(place)


@mistake(GROUP, "rows.sqlite is of a later version", code=1)
def _(place: Place) -> str:
    with sqlite3.connect(place.run() / "rows.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    return repeated(place)


@mistake(GROUP, "rows.sqlite is missing")
def _(place: Place) -> str:
    (place.run() / "rows.sqlite").unlink()
    return "doctor run"


@mistake(GROUP, "a folder that another process is running in", code=2)
def _(place: Place) -> str:
    lock = FileLock(place.run().resolve() / ".lock")
    lock.acquire()
    LOCKS.append(lock)
    return repeated(place)


LOCKS: list[Any] = []  # held until this process ends: what is locked is deleted before


@mistake(GROUP, "one run where several are wanted")
def _(place: Place) -> str:
    place.run()
    return "universal run --out universal"


@mistake(GROUP, "runs of one task where several are wanted")
def _(place: Place) -> str:
    place.run()
    return "universal run run --out universal"


@mistake(GROUP, "a place where nothing can be written", code=1, machine=True)
def _(place: Place) -> str:
    return repeated(place).replace("--out run", "--out /sys/run")


@mistake(GROUP, "a run that was sent by someone, and asks for a model's code")
def _(place: Place) -> str:
    file = place.run() / "run.json"
    edited(file, lambda run: run["study"]["model"].update(trust_remote_code=True))
    return "curve run"


@mistake(GROUP, "a run that was sent by someone, and asks to run what the model writes")
def _(place: Place) -> str:
    file = place.run() / "run.json"
    edited(file, lambda run: run["study"]["options"].update(allow_code=True))
    return "curve run"


@mistake(GROUP, "a run that was sent by someone, and names a task with Python code")
def _(place: Place) -> str:
    folder = place.run()
    place.file("run/task.yaml", "task: t\ndataset_path: json\ndoc_to_text: !function code.text\n")
    edited(folder / "run.json", lambda run: run["study"].update(task="run/task.yaml"))
    return "curve run"


@mistake(GROUP, "more heads in a curve than none")
def _(place: Place) -> str:
    place.run()
    return "curve run --most 0"


@mistake(GROUP, "a run of neurons where one of heads is wanted")
def _(place: Place) -> str:
    place.neurons()
    return "curve neurons"


@mistake(GROUP, "a run of heads where one of neurons is wanted")
def _(place: Place) -> str:
    place.run()
    return "neurons erase run"


@mistake(GROUP, "neurons.json has no neurons")
def _(place: Place) -> str:
    (place.neurons() / "neurons.json").write_text("{}")
    return "neurons erase neurons"


@mistake(GROUP, "neurons.json is of another kind")
def _(place: Place) -> str:
    (place.neurons() / "neurons.json").write_text("[1]")
    return "neurons overlap neurons"


@mistake(GROUP, "a folder to export to that is not empty")
def _(place: Place) -> str:
    place.run()
    place.file("out/mine.txt", "mine")
    return "export run --to out --as checkpoint"


@mistake(GROUP, "a form of export that there is not")
def _(place: Place) -> str:
    place.run()
    return "export run --to out --as onnx"


@mistake(GROUP, "rows into a format that there is not")
def _(place: Place) -> str:
    place.run()
    return "rows run --to rows.xlsx"


@mistake(GROUP, "a study file that is no TOML")
def _(place: Place) -> str:
    return "run " + place.file("studies.toml", "models = [")


@mistake(GROUP, "a study file that is binary")
def _(place: Place) -> str:
    return "run " + place.file("studies.toml", bytes(range(256)))


@mistake(GROUP, "a study file with several mistakes")
def _(place: Place) -> str:
    text = 'models = ["demo"]\ntasks = ["demo/additon"]\nseeds = [-1]\nrat = 2\n'
    return "run " + place.file("studies.toml", text)


@mistake(GROUP, "an empty study file")
def _(place: Place) -> str:
    return "run " + place.file("studies.toml", "")
