"""Tokens and passwords do not reach a file, a page or a terminal."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc import console
from caploc.cli.options import command_line
from caploc.folder import RUN, claim
from caploc.process import HIDDEN, redacted, without_secrets

TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vX7zA9cE1gI3k"
SECRETS = {
    f"caploc locate m --revision {TOKEN}": TOKEN,
    "caploc locate https://user:sesame-open@host/m": "sesame-open",
    "caploc evaluate m --data test=https://sometoken1234@host/x.jsonl": "sometoken1234",
}
HARMLESS = [
    "caploc locate demo --task demo/addition --method one-shot --out runs/addition",
    "caploc locate m --ray-address ray://10.0.0.1:10001",
    "a gated model needs a token of the Hugging Face Hub; run `hf auth login` once.",
]


@pytest.mark.parametrize(("text", "secret"), SECRETS.items())
def test_a_secret_is_hidden(text, secret):
    assert secret not in redacted(text, {}) and HIDDEN in redacted(text, {})


@pytest.mark.parametrize("text", HARMLESS)
def test_a_command_without_one_stays_as_it_is(text):
    assert redacted(text, {}) == text


@given(st.text(alphabet="abcdefgh0123456789", min_size=8, max_size=40))
def test_what_the_environment_keeps_secret_is_hidden(value):
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MY_SECRET", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"):
        assert value not in redacted(f"caploc locate {value} x", {name: value})
    assert redacted(f"a {value} b", {"PATH": value, "KEYBOARD": value}) == f"a {value} b"


def test_a_run_folder_holds_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "env-secret-value")
    monkeypatch.setattr(
        sys, "argv", ["caploc", "locate", "m", "--revision", TOKEN, "env-secret-value"]
    )
    study = {"model": {"name": f"https://me:{TOKEN}@host/m"}, "task": "t"}
    with claim(tmp_path, study, command_line()):
        written = (tmp_path / RUN).read_text()
        (tmp_path / "result.json").write_text("{}")  # so that the folder stays
    assert TOKEN not in written and "env-secret-value" not in written
    with claim(tmp_path, study, command_line()):  # the same study is known again
        pass
    assert json.loads(written)["study"]["task"] == "t"


def test_a_sentence_holds_no_secret(capsys):
    console.complain(f"There is no folder 'https://me:{TOKEN}@host/m'.")
    assert TOKEN not in capsys.readouterr().err


def test_texts_inside_lists_are_seen():
    assert without_secrets({"a": [f"x {TOKEN}", 3, None]}) == {"a": [f"x {HIDDEN}", 3, None]}
