"""Evaluation sets, facts and files of studies that cannot be read."""

import json

from mistaking import Place, mistake

GROUP = "Data and tasks"
ROW = {"prompt": "colour ruby item0", "answer": "red"}
LINES = [json.dumps(ROW | {"prompt": f"colour ruby item{place}"}) for place in range(30)]
READ = (
    "locate model --task model/planted.yaml --method css --masks 3 --rate 0.3 --examples 5 "
    "--limit 5 --controls 0 --device cpu --out out --data test="
)


def reading(place: Place, name: str, content: str | bytes) -> str:
    place.model()
    return READ + place.file(name, content)


@mistake(GROUP, "a file that is not there")
def _(place: Place) -> str:
    place.model()
    return READ + "nowhere.jsonl"


@mistake(GROUP, "a folder instead of a file")
def _(place: Place) -> str:
    place.model()
    (place.folder / "data.jsonl").mkdir()
    return READ + "data.jsonl"


@mistake(GROUP, "an empty file")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", "")


@mistake(GROUP, "a file of blank lines")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", "\n\n\n")


@mistake(GROUP, "an ending that no reader is for")
def _(place: Place) -> str:
    return reading(place, "data.xlsx", "x")


@mistake(GROUP, "line 17 is cut off")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", "\n".join([*LINES[:16], LINES[16][:20], *LINES[17:]]))


@mistake(GROUP, "line 17 is no object")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", "\n".join([*LINES[:16], "[1, 2]", *LINES[17:]]))


@mistake(GROUP, "a byte that is not UTF-8")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", "\n".join(LINES).encode() + b'\n{"prompt": "caf\xe9"}\n')


@mistake(GROUP, "UTF-16, as some editors save it")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", "\n".join(LINES).encode("utf-16"))


@mistake(GROUP, "a web page instead of data")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", "<!doctype html><title>404</title>\n")


@mistake(GROUP, "a binary file instead of data")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", bytes(range(256)) * 4)


@mistake(GROUP, "a file that is no Parquet")
def _(place: Place) -> str:
    return reading(place, "data.parquet", "no parquet")


@mistake(GROUP, "a csv without the columns that the task reads")
def _(place: Place) -> str:
    return reading(place, "data.csv", "question,reply\n1,2\n")


@mistake(GROUP, "a column that the task reads is missing")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", '{"prompt": "colour ruby item0"}\n')


@mistake(GROUP, "a column that the task reads is missing in one line")
def _(place: Place) -> str:
    lines = [*LINES[:16], '{"prompt": "colour ruby item0"}', *LINES[17:]]
    return reading(place, "data.jsonl", "\n".join(lines))


@mistake(GROUP, "a split that the task does not read")
def _(place: Place) -> str:
    place.model()
    return READ.replace("test=", "dev=") + place.file("data.jsonl", "\n".join(LINES))


@mistake(GROUP, "a split beside those that the task reads")
def _(place: Place) -> str:
    place.model()
    file = place.file("data.jsonl", "\n".join(LINES))
    return f"{READ}{file} --data testt={file}"


@mistake(GROUP, "--data without a split")
def _(place: Place) -> str:
    place.model()
    return READ.replace("test=", "") + "data.jsonl"


@mistake(GROUP, "files of two formats")
def _(place: Place) -> str:
    return reading(place, "data.jsonl", LINES[0]) + " --data train=" + place.file("t.csv", "a\n")


@mistake(GROUP, "a task file that is not there")
def _(place: Place) -> str:
    return "locate demo --task nowhere.yaml"


@mistake(GROUP, "a task file that is no YAML")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "task: [unclosed")


@mistake(GROUP, "a task file that is a list")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "- task\n- other\n")


@mistake(GROUP, "a task file that is binary")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", bytes(range(256)))


@mistake(GROUP, "a task file without a name")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "dataset_path: json\n")


@mistake(GROUP, "a task file that is not a task")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "task: mine\n")


@mistake(GROUP, "a task file that includes one that is not there")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "task: mine\ninclude: nowhere.yaml\n")


@mistake(GROUP, "a task file that includes itself")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "task: mine\ninclude: task.yaml\n")


@mistake(GROUP, "a task file that includes a device")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "task: mine\ninclude: /dev/zero\n")


@mistake(GROUP, "a group whose task is nowhere")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "group: all\ntask: [absent]\n")


@mistake(GROUP, "a task file whose data are pickles")
def _(place: Place) -> str:
    return "locate demo --task " + place.file("task.yaml", "task: mine\ndataset_path: pandas\n")


@mistake(GROUP, "a task file that names a reader and no file")
def _(place: Place) -> str:
    text = "task: mine\ndataset_path: json\ntest_split: test\noutput_type: generate_until\n"
    return "locate demo --task " + place.file("task.yaml", text)


@mistake(GROUP, "a task file with a function that is not there")
def _(place: Place) -> str:
    place.file("data.jsonl", "\n".join(LINES))
    text = (
        "task: mine\ndataset_path: json\ntest_split: test\noutput_type: generate_until\n"
        f"dataset_kwargs: {{data_files: {{test: {place.folder}/data.jsonl}}}}\n"
        "doc_to_text: !function mine.text\ndoc_to_target: answer\n"
        "metric_list: [{metric: exact_match}]\n"
    )
    return "locate demo --task " + place.file("task.yaml", text)


@mistake(GROUP, "facts that are not JSON in line 3")
def _(place: Place) -> str:
    fact = '{"name": "f%d", "prompt": {"text": "a b", "subject": "a", "target": " c"}}'
    lines = [fact % 1, fact % 2, fact[:30], fact % 4]
    return "neurons fidelity demo --facts " + place.file("facts.jsonl", "\n".join(lines))


@mistake(GROUP, "facts without a target")
def _(place: Place) -> str:
    fact = '{"name": "f1", "prompt": {"text": "a b", "subject": "a"}}\n'
    return "neurons fidelity demo --facts " + place.file("facts.jsonl", fact)


@mistake(GROUP, "a fact whose prompt is a number")
def _(place: Place) -> str:
    fact = '{"name": "f1", "prompt": {"text": 5, "subject": "a", "target": " c"}}\n'
    return "neurons fidelity demo --facts " + place.file("facts.jsonl", fact)


@mistake(GROUP, "facts of another form")
def _(place: Place) -> str:
    file = place.file("facts.json", '{"name": "f1"}')
    return f"neurons fidelity demo --facts {file} --form counterfact"


@mistake(GROUP, "a list of swear words that is empty")
def _(place: Place) -> str:
    return swearing(place, "\n \n")


@mistake(GROUP, "a list of swear words that is no text")
def _(place: Place) -> str:
    return swearing(place, b"\xff\xfe\xff")


def swearing(place: Place, words: str | bytes) -> str:
    file = place.file("words.txt", words)
    prompts = place.file("prompts.jsonl", '{"prompt": {"text": "So"}}\n' * 9)
    return f"locate demo --task swearing --data test={prompts} --data words={file}"
