"""Options that mean nothing."""

from mistaking import Place, mistake

GROUP = "Options"
LOCATE = "locate demo --task demo/addition"
CASES = {
    "a task that is misspelt": "locate demo --task demo/additon",
    "a task of lm-eval that is misspelt": "locate demo --task hellaswagg",
    "the same task twice": f"{LOCATE} --task demo/addition",
    "an empty task": ["locate", "demo", "--task", ""],
    "no task": "locate demo",
    "a method that is misspelt": f"{LOCATE} --method adaptiv",
    "an estimator that there is not": f"{LOCATE} --method css --estimator ridge",
    "a metric that the task does not have": f"{LOCATE} --metric bleu",
    "a filter that the task does not have": f"{LOCATE} --metric exact_match,strict",
    "an outcome that there is not": f"{LOCATE} --outcome loss",
    "a goal that there is not": f"{LOCATE} --goal both",
    "rate 0": f"{LOCATE} --method css --rate 0",
    "rate 1": f"{LOCATE} --method css --rate 1",
    "a rate that is NaN": f"{LOCATE} --method css --rate nan",
    "a rate below one head": f"{LOCATE} --method css --rate 0.001",
    "a rate that is a word": f"{LOCATE} --method css --rate some",
    "no masks": f"{LOCATE} --method css --masks 0",
    "rates that do not rise": f"{LOCATE} --method css-search --rates 0.1,0.05",
    "rates that are no numbers": f"{LOCATE} --method css-search --rates 0.1,x",
    "numbers of masks that do not rise": f"{LOCATE} --method css-search --mask-counts 5,5",
    "no number of masks": [*LOCATE.split(), "--method", "css-search", "--mask-counts", ","],
    "more heads to name than the model has": f"{LOCATE} --top 500",
    "no head to name": f"{LOCATE} --top 0",
    "a negative seed": f"{LOCATE} --seed -1",
    "more masks than memory holds": f"{LOCATE} --method css --masks 1000000000000",
    "a budget beyond reason": f"{LOCATE} --budget 1{'0' * 30}",
    "a budget that is too small": f"{LOCATE} --budget 50",
    "a budget that does not buy one mask": f"{LOCATE} --method css --budget 3",
    "an option of another method": f"{LOCATE} --rate 0.1",
    "a goal that the method does not know": f"{LOCATE} --method css --goal set",
    "a price without a specific set": f"{LOCATE} --price 0.1",
    "recall 0": f"{LOCATE} --recall 0",
    "a recall that is NaN": f"{LOCATE} --recall nan",
    "no examples": f"{LOCATE} --examples 0",
    "more examples than the task has": f"{LOCATE} --examples 100000",
    "a limit of none": f"{LOCATE} --limit 0",
    "a negative number of controls": f"{LOCATE} --controls -1",
    "a negative number of examples in the prompt": f"{LOCATE} --fewshot -1",
    "more examples in the prompt than there are": f"{LOCATE} --fewshot 100000",
    "a batch of no rows": f"{LOCATE} --batch-size 0",
    "an engine that there is not": f"{LOCATE} --engine page",
    "an engine that is not installed": f"{LOCATE} --engine vllm",
    "an engine of one process with workers": f"{LOCATE} --engine paged --workers 2",
    "a number of workers that is none": f"{LOCATE} --workers many",
    "no workers": f"{LOCATE} --workers 0",
    "a Ray address without Ray": f"{LOCATE} --ray-address 127.0.0.1:6379",
    "no GPU for each worker, below none": f"{LOCATE} --workers 2 --gpus-per-worker -1",
    "an option that there is not": f"{LOCATE} --mask 5",
    "a command that there is not": "localise demo",
    "code tasks without leave": "locate demo --task humaneval",
    "a task that samples": "locate demo --task sampling.yaml",
    "no chat template": f"{LOCATE} --chat-template",
    "a head that does not exist": "evaluate demo --heads L7H1 --task demo/prose",
    "a head beyond its layer": "evaluate demo --heads L1H99 --task demo/prose",
    "a head that is none": "evaluate demo --heads 7 --task demo/prose",
    "a head whose number has 99 digits": f"evaluate demo --heads L{'9' * 99}H1 --task demo/prose",
    "no task to score": ["evaluate", "demo", "--task", ""],
    "a task named twice": "evaluate demo --task demo/prose,demo/prose",
    "a neuron method that is misspelt": "neurons locate demo --task demo/prose --method gradientt",
    "a target that there is not": "neurons locate demo --task demo/prose --target loss",
    "positions that there are not": "neurons locate demo --task demo/prose --positions first",
    "an integral of no points": "neurons locate demo --task demo/prose --steps 0",
    "a share above 1": "neurons locate demo --task demo/prose --share 2",
    "two rules at once": "neurons locate demo --task demo/prose --share 0.1 --votes 0.5",
    "a sigma that is NaN": "neurons locate demo --task demo/prose --sigma nan",
    "no subsets": "neurons locate demo --task demo/prose --subsets 0",
    "a kind without tasks": "neurons locate demo --task demo/prose --kind math",
    "facts that are no file": "neurons fidelity demo --facts nowhere.jsonl",
    "a form of facts that there is not": "neurons fidelity demo --facts demo/quiz --form mine",
    "contrasts that there are not": "neurons decouple demo --contrasts moods",
    "a preset that there is not": "reproduce table1 --preset nowhere",
    "a table that the paper does not have": "reproduce table99",
    "neurons and heads at once": "reproduce cnl table1",
    "a file of studies that is not there": "run nowhere.toml",
    "a port that there is not": "ui --model demo --port 99999",
    "nothing to look at": "view nowhere",
    "an address that is not this machine's": "view . --host 192.0.2.1",
}


def entered(what: str, arguments: str | list[str]) -> None:
    @mistake(GROUP, what, slow=what in SLOW, machine=what in MACHINE)
    def _(place: Place) -> str | list[str]:
        if "sampling.yaml" in arguments:
            place.file("sampling.jsonl", '{"q": "1", "a": "1"}\n')
            place.file("sampling.yaml", SAMPLING.format(place.folder))
        return arguments


SAMPLING = """\
task: sampling
dataset_path: json
dataset_kwargs: {{data_files: {{test: {}/sampling.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs: {{until: ["\\n"], do_sample: true, temperature: 1.0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""
# These read lm-eval's registry, which takes half a minute here.
SLOW = {"a task of lm-eval that is misspelt", "an empty task", "code tasks without leave"}
MACHINE = {"no GPU for each worker, below none", "a Ray address without Ray"}  # Ray is an extra
for one in CASES.items():
    entered(*one)
