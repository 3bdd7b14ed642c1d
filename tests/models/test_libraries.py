"""torchvision's and transformers' models, without a change: their own weights give their own output."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from library_models import TORCHVISION, TRANSFORMERS, declare_torchvision_operators  # noqa: E402
from test_torch_exact import precision  # noqa: E402

import netsor as ns  # noqa: E402

IN_SINGLE = {
    "llama",
    "llama, two wide heads",
    "t5 encoder",
}  # they compute their norms in float32 whatever they are told


def needs(library: str):
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


CASES = [
    *(pytest.param(name, case, id=name, marks=needs("torchvision")) for name, case in TORCHVISION.items()),
    *(pytest.param(name, case, id=name, marks=needs("transformers")) for name, case in TRANSFORMERS.items()),
]


@pytest.fixture(autouse=True)
def _operators():
    declare_torchvision_operators()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "case"), CASES)
def test_own_weights_give_own_output(name, case, dtype):
    with precision(dtype):
        net = ns.from_torch(case.make, width=16, **case.options)
        check = ns.check_import(net, case.x)
    assert check.difference <= (1e-12 if dtype == torch.float64 and name not in IN_SINGLE else 1e-5)
    assert abs(check.outputs).max() > 0


@needs("transformers")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_kernel_of_gpt2():
    """Two layers; two sentences of 8 tokens. `examples/models/gpt2_picture.py` prints the times."""
    case = TRANSFORMERS["gpt2"]
    net = ns.from_torch(case.make, width=64, **case.options)
    sentences = [np.arange(8), np.array([3, 3, 4, 9, 1, 2, 2, 8])]
    K = ns.kernel(net)(sentences)
    assert K.shape == (16, 16)
    assert np.linalg.eigvalsh(K).min() >= -1e-10 * np.trace(K)


@needs("transformers")
@pytest.mark.filterwarnings("ignore")
def test_a_table_without_a_width_is_refused_or_conditioned_on():
    case = TRANSFORMERS["t5 encoder"]
    options = {k: v for k, v in case.options.items() if k != "laws"}
    with pytest.raises(ns.NetsorError, match=r"relative_attention_bias.*no fixed number of rows"):
        ns.program(ns.from_torch(case.make, width=16, **options), case.x)
    net = ns.from_torch(case.make, width=16, **case.options)
    ns.program(net, case.x)
    assert any(row[2:] == ("own values", "numbers") for row in ns.report_laws(net).rows)


@needs("transformers")
@pytest.mark.filterwarnings("ignore")
def test_tied_embeddings_are_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    class Logits(torch.nn.Module):
        def __init__(self, n):
            super().__init__()
            sizes = {"n_layer": 1, "n_embd": n, "n_head": 2, "vocab_size": 50, "n_positions": 16}
            self.body = GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0))

        def forward(self, tokens):
            return self.body(tokens).logits

    net = ns.from_torch(Logits, tokens=True, scales="width", laws={"*": "width"})
    with pytest.raises(ns.NetsorError, match=r"`body\.transformer\.wte\.weight` is used in two ways"):
        ns.program(net, TRANSFORMERS["gpt2"].x)
