"""Neurons of models whose weights are not in one place score as those that are."""

import pytest
import torch
from test_attribution import spans

from caploc.declaration import ModelOptions
from caploc.errors import ModelRefused
from caploc.models import loading
from caploc.models.cutting import knocked_out
from caploc.models.loading import load_model
from caploc.neurons.attribution import score_batch
from caploc.neurons.engine import Batch
from caploc.neurons.finding import accumulate
from caploc.neurons.model import as_neurons
from caploc.neurons.options import SCORES, Attribution, NeuronStudy
from worlds.alone import save
from worlds.tiny import FAMILIES, GROUPED, build

pytestmark = pytest.mark.filterwarnings("ignore:.*meta.*")
SHAPE = {**GROUPED, "num_hidden_layers": 4}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of four layers."""
    return str(save(tmp_path_factory.mktemp("spread"), build("llama", SHAPE)))


@pytest.fixture(scope="module")
def here(folder):
    return as_neurons(load_model(folder, device="cpu"))


@pytest.fixture(scope="module")
def away(folder):
    """The same with layers on disk, read for every pass and on the way back."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "memory_limits", lambda: {"cpu": 60_000})
        loaded = load_model(folder, device="spread")
    assert any(each.device.type == "meta" for each in loaded.model.parameters())
    return as_neurons(loaded, whole=False)


@pytest.mark.parametrize("method", list(SCORES))
def test_layers_that_wait_on_disk_score_as_those_in_memory(here, away, method):
    asked, batch = Attribution(method, steps=3), Batch.of(spans(), CPU)
    torch.testing.assert_close(score_batch(asked, away, batch), score_batch(asked, here, batch))


def test_a_backward_pass_leaves_waiting_weights_where_they_are(away):
    """What a pass fetched is not held until the way back: layers are run again for it."""
    held = []
    layers = away.model.model.layers
    handle = layers[0].mlp.down_proj.register_forward_pre_hook(
        lambda module, args: held.append(args[0].requires_grad)
    )
    try:
        score_batch(Attribution(), away, Batch.of(spans(), CPU))
    finally:
        handle.remove()
    assert len(held) == 2  # once on the way out, once on the way back


def test_whole_studies_run_on_waiting_weights(here, away):
    asked = Attribution()
    found, expected = (accumulate(model, spans(), asked).mean for model in (away, here))
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_cut_is_the_same_cut(here, away):
    tokens = torch.arange(2, 14).reshape(2, 6)
    masks = torch.rand(2, here.grid.size, generator=torch.Generator().manual_seed(0)) < 0.3
    logits = []
    for each in (here, away):
        with torch.no_grad(), knocked_out(each.projections, each.grid, masks):
            logits.append(each.model(input_ids=tokens).logits)
    torch.testing.assert_close(*logits)


def test_what_reads_weights_is_refused(folder, monkeypatch):
    monkeypatch.setattr(loading, "memory_limits", lambda: {"cpu": 60_000})
    with pytest.raises(ModelRefused, match="reads its feed-forward weights; load it whole"):
        as_neurons(load_model(folder, device="spread"))


def test_routed_experts_are_refused_before_weights_are_read(tmp_path):
    name = str(save(tmp_path, build("mixtral", FAMILIES["mixtral"].config)))
    with pytest.raises(ModelRefused, match="routes tokens to experts"):
        NeuronStudy(ModelOptions(name, device="cpu"), ("demo/addition",)).check()
