"""What is said of quantized weights before they are loaded."""

import importlib.util

import pytest
import torch
from test_loading import edit_config, save
from tiny import GROUPED, build
from transformers import LlamaConfig

from caploc.errors import BadOption, UnknownName
from caploc.models import placement
from caploc.models.loading import check_model, load_model
from caploc.models.placement import (
    SCHEMES,
    carried_method,
    check_quantization,
    dtype_label,
    scheme_config,
    weight_bytes,
)

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.fixture
def nothing_installed(monkeypatch):
    """As if no package for quantized weights were there."""
    packages = {scheme.package for scheme in SCHEMES.values()} | {"optimum", "gptqmodel"}
    found = importlib.util.find_spec

    def find(name):
        return None if name in packages else found(name)

    monkeypatch.setattr(placement.importlib.util, "find_spec", find)


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(("scheme", "package"), [("8bit", "bitsandbytes"), ("int8", "torchao")])
@pytest.mark.parametrize("load", [check_model, load_model])
def test_a_missing_package_is_named_with_its_remedy(scheme, package, load):
    words = rf"--quantize {scheme} needs {package}, .*; pip install 'caploc\[quantized\]'"
    with pytest.raises(BadOption, match=words):
        load("demo", device="cpu", quantize=scheme)


def test_an_unknown_scheme_is_refused_with_those_there_are():
    with pytest.raises(UnknownName, match="There is no quantization '3bit'.*4bit, 8bit"):
        check_model("demo", device="cpu", quantize="3bit")


@pytest.mark.usefixtures("nothing_installed")
def test_a_quantized_checkpoint_needs_its_packages_and_is_not_quantized_again(tmp_path):
    folder = save(tmp_path / "model", build("llama", GROUPED))
    edit_config(folder, quantization_config=GPTQ)
    with pytest.raises(BadOption, match="quantized with gptq, which needs optimum and gptqmodel"):
        check_model(str(folder), device="cpu")
    with pytest.raises(
        BadOption, match=r"is quantized already \(gptq\); leave out --quantize 8bit"
    ):
        check_model(str(folder), device="cpu", quantize="8bit")


def test_four_bits_of_torchao_need_a_gpu(monkeypatch):
    monkeypatch.setattr(placement, "_check_packages", lambda what, packages: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadOption, match="--quantize int4 needs a CUDA device.*int8, 8bit or 4bit"):
        check_quantization("it", LlamaConfig(), "int4")


def test_weights_take_the_bytes_of_their_type():
    config = LlamaConfig(dtype="bfloat16")
    assert weight_bytes(None, config, "auto") == 2
    assert weight_bytes(None, config, torch.float32) == 4
    assert weight_bytes("8bit", config, "auto") == 1
    assert weight_bytes("4bit", config, "auto") == 0.53


def test_products_are_computed_in_the_type_that_the_label_says():
    model = build("llama", GROUPED)
    for own in (torch.float16, torch.bfloat16, torch.float32):
        model.to(own)
        model.config.dtype = own
        assert dtype_label(model, "4bit") == f"4bit/{str(own).removeprefix('torch.')}"
        made = scheme_config("4bit", model.config, "auto")
        assert made.bnb_4bit_compute_dtype is own
        assert scheme_config("4bit", model.config, torch.bfloat16).bnb_4bit_compute_dtype is (
            torch.bfloat16
        )
    assert scheme_config(None, model.config, "auto") is None


def test_quantized_models_are_told_apart_from_full_ones():
    model = build("llama", GROUPED).to(torch.bfloat16)
    assert dtype_label(model, None) == "bfloat16"
    assert dtype_label(model, "int8") == "int8/bfloat16"
    assert carried_method(model.config) is None
    model.config.quantization_config = GPTQ
    assert dtype_label(model, None) == "gptq/bfloat16"
