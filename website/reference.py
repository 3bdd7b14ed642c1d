"""The pages of the reference and the public names on each; the tests check all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from netsor.lang.ops import Function
from netsor.models import HOMES
from website.examples import ERRORS, EXAMPLES, message, missing, session, with_imports
from website.functions import function_entry

__all__ = ["PAGES", "Page", "definition", "found", "public_names", "shown"]

UNIMPORTED = ("netsor.models.", "netsor.sklearn.")  # the site is built without the extras

# Of these classes the methods that users call; of all others, every one without a leading underscore.
MEMBERS = {
    "KernelFn": "__call__ evaluate plan diag mean params of_params",
    "NNGPKernel": "names theta bounds __call__ diag",
    "Network": "parameters",
    "Program": "check show lower expand tangent widths types inputs outputs",
    "Store": "status",
}


@dataclass(frozen=True)
class Page:
    """A page of the reference: its file, its title, a sentence or two, and its names within `netsor`."""

    file: str
    title: str
    lead: str
    within: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"netsor.{name}" for name in self.within.split())

    @property
    def text(self) -> str:
        """Markdown, with an entry for each name."""
        return "\n\n".join([f"# {self.title}", self.lead, *map(_entry, self.names)]) + "\n"


PAGES = (
    Page(
        "write",
        "Write a network",
        "A network is a Python function of one input that ends in readouts `v @ h`. Parameters are made "
        "outside it, once; using one object twice shares its weights.",
        "network Network Matrix Vector stack concat sum mean dot max min softmax nonlin flatten reshape pad "
        "contract",
    ),
    Page(
        "layers",
        "Layers",
        "Each holds its parameters and composes what the language has. They act on the last index axes "
        "([Layers, axes and outputs](../layers.md)).",
        "Dense Embedding Conv1d Conv2d Conv3d mean_pool max_pool sum_pool global_mean_pool global_max_pool "
        "upsample resize Dropout batchnorm layernorm rmsnorm Attention attention RNNCell GRUCell LSTMCell "
        "GraphConv normalized_adjacency",
    ),
    Page(
        "functions",
        "Functions",
        "Coordinatewise functions. Inside a network they act on vectors; on a plain array they are what they "
        "are. Each knows its derivative, its kinks and its closed forms. For a function of your own there is "
        "`ns.nonlin`.",
        "relu leaky_relu abs step sign hard_tanh identity polynomial piecewise erf erf_gate tanh sigmoid "
        "gelu silu elu softplus gaussian sin cos exp log sqrt maximum minimum abrelu exp_normalized gabor "
        "gelu_tanh hermite monomial rbf rectified_monomial sigmoid_like",
    ),
    Page(
        "zoo",
        "Ready-made networks",
        "Every architecture of the paper. Variances default to 1, and every `var_*` also takes one value per "
        "layer or gate. [The gallery](../gallery.md) shows their kernels, "
        "[Architectures](../architectures/README.md) derives them.",
        "zoo.mlp zoo.resnet zoo.densenet zoo.layernorm_mlp zoo.batchnorm_mlp zoo.cnn zoo.graph_conv "
        "zoo.simple_rnn zoo.gru zoo.lstm zoo.transformer",
    ),
    Page(
        "program",
        "The program",
        "The network in the paper's language: statements, types, text. See [Notation](../notation.md).",
        "program parse Program",
    ),
    Page(
        "limit",
        "The limit",
        "The Gaussian process at infinite width, with an error for every entry. "
        "[How the limit is computed](../limit.md) says how.",
        "kernel limit Options limits.KernelFn limits.Limit limits.Plan limits.Result",
    ),
    Page(
        "tangent",
        "The tangent kernel",
        "The kernel of training. See [The tangent kernel](../tangent.md).",
        "tangent ntk limits.TangentKernelFn",
    ),
    Page(
        "simulate",
        "Simulate and verify",
        "The same program at finite width. It shares no code with the limit, so it is the check of it.",
        "simulate empirical_kernel empirical_ntk verify verify.Verification",
    ),
    Page(
        "gp",
        "Gaussian processes",
        "Inference with the kernel of any network, and training at infinite width. See "
        "[Predicting](../gp.md).",
        "gp.fit gp.GP gp.Prediction gp.sample gp.tune gp.Tuned gp.kernel_gradient gp.train gp.Trained "
        "gp.classify gp.Classifier gp.save gp.load gp.InferenceError",
    ),
    Page(
        "sklearn",
        "scikit-learn",
        "Estimators, kernels and transformers. Needs the extra `sklearn`.",
        "sklearn.NNGPRegressor sklearn.NNGPClassifier sklearn.NTKRegressor sklearn.NNGPKernel "
        "sklearn.NNGPGram sklearn.Architecture",
    ),
    Page(
        "models",
        "Models in",
        "Models of PyTorch and JAX as networks. Needs the extra `torch` or `jax`. See "
        "[Your model](../models.md).",
        "models.from_torch models.from_jax models.from_flax models.from_equinox models.from_keras "
        "models.check_import models.report_laws",
    ),
    Page(
        "scale",
        "Large sets",
        "Kernels on disk, tile by tile, and solves that never load them. Needs the extra `scale`. See "
        "[Beyond memory](../scale.md).",
        "gp.store gp.Store gp.StoredGP",
    ),
    Page(
        "plots",
        "Pictures and reports",
        "Each returns a `Picture`: a notebook shows it, `save` writes it. Captions and units are part of "
        "it, and colour-blind readers tell its colours apart. Needs the extra `plots`. "
        "`netsor plot` draws the same.",
        "plots.Picture plots.kernel_map plots.spectrum plots.angle plots.correlation_map plots.phase_diagram "
        "plots.sensitivity plots.samples plots.training plots.convergence report",
    ),
    Page(
        "errors",
        "Errors",
        "Every error is a `NetsorError` that says what is wrong, where, why by which rule, and what to do. "
        "What is right by its rules and may not be what was meant is a `NetsorWarning`.",
        "NetsorError errors.ParseError errors.TypeCheckError errors.BuildError errors.DataError "
        "errors.FileError errors.FunctionError errors.LoweringError errors.LimitError errors.SimulationError "
        "errors.TangentError errors.Place NetsorWarning",
    ),
    Page(
        "data",
        "Data",
        "What ships with the package, and readers of files of your own.",
        "data.sentences data.Sentence data.digits data.Digits data.cifar10",
    ),
)


def public_names() -> Iterator[str]:
    """Every name of the reference."""
    for page in PAGES:
        yield from page.names


def _entry(name: str) -> str:
    """The entry of a name: its docstring, an example, and the error of the most common mistake."""
    thing = None if name.startswith(UNIMPORTED) else found(name)
    parts = [function_entry(thing) if isinstance(thing, Function) else _directive(name)]
    if name in EXAMPLES:
        parts.append(f"```pycon\n{_session(name)}\n```")
    if name in ERRORS and not missing(name):
        call, told = ERRORS[name].splitlines()[-1], f"```text\n{message(ERRORS[name])}\n```"
        parts.append(f'??? failure "An error: `{call}`"\n\n{_indented(told)}')
    return "\n\n".join(parts)


def _session(name: str) -> str:
    """The example with what it prints, or without, where a library that it needs is not installed."""
    if missing(name):
        return "\n".join(f">>> {line}" for line in with_imports(EXAMPLES[name]).splitlines())
    return session(EXAMPLES[name])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _directive(name: str) -> str:
    """The directive of mkdocstrings for a name."""
    last = name.rpartition(".")[2]
    options = {"heading": shown(name), "toc_label": last}
    if last in MEMBERS:
        options |= {"members": f"[{', '.join(MEMBERS[last].split())}]", "filters": "[]"}
    lines = [f"        {key}: {value}" for key, value in options.items()]
    return "\n".join([f"::: {definition(name)}", "    options:", *lines])


def shown(name: str) -> str:
    """A name as users write it."""
    last = name.rpartition(".")[2]
    return last if ".limits." in name or ".verify." in name else name.replace("netsor.", "ns.", 1)


def found(name: str) -> Any:
    """The object that a name stands for."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):  # the longest module first: ns.verify is a function, too
        try:
            module = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[cut:], module)
    raise LookupError(name)


def definition(name: str) -> str:
    """Where a name is defined, as mkdocstrings knows it: `ns.kernel` is netsor.limits.kernel.kernel."""
    module, _, last = name.rpartition(".")
    if module == "netsor.models":
        return f"{module}.{HOMES[last]}.{last}"  # nothing is imported here
    if module == "netsor.sklearn":
        return name
    thing = found(name)
    if isinstance(thing, Function):
        return f"netsor.{thing.name}"
    return f"{thing.__module__}.{thing.__qualname__}"
