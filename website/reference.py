"""Which public name stands on which page of the reference; `tests/documents/test_site.py` goes over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from netsor.lang.ops import Function
from netsor.models import HOMES
from website.examples import ERRORS, EXAMPLES, MissingExtra, message, session, with_imports
from website.functions import function_entry

__all__ = ["PAGES", "Page", "definition", "found", "public_names", "shown"]

UNIMPORTED = ("netsor.models.", "netsor.sklearn.")  # the site is built without the extras

# Of these classes the methods that users call; of all others, every one without a leading underscore.
MEMBERS = {
    "KernelFn": "__call__ evaluate plan diag mean params",
    "Network": "parameters",
    "Program": "check show lower expand tangent widths types inputs outputs",
    "Store": "status",
    "NNGPKernel": "names theta bounds __call__ diag",
}


@dataclass(frozen=True)
class Page:
    """A page of the reference: its file, its title, a sentence or two, and the names on it."""

    file: str
    title: str
    lead: str
    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """Markdown, with a directive for each name."""
        return "\n\n".join([f"# {self.title}", self.lead, *map(_entry, self.names)]) + "\n"


def _entry(name: str) -> str:
    """One name: what its docstring says, an example, and how its commonest mistake looks."""
    thing = None if name.startswith(UNIMPORTED) else found(name)
    parts = [function_entry(thing) if isinstance(thing, Function) else _directive(name)]
    if name in EXAMPLES:
        parts.append(f"```pycon\n{_session(name)}\n```")
    if name in ERRORS:
        call, told = ERRORS[name].splitlines()[-1], f"```text\n{message(ERRORS[name])}\n```"
        parts.append(f'??? failure "An error: `{call}`"\n\n{_indented(told)}')
    return "\n\n".join(parts)


def _session(name: str) -> str:
    """The example with what it prints, or without, where a library that it needs is not installed."""
    try:
        return session(EXAMPLES[name])
    except MissingExtra:
        return "\n".join(f">>> {line}" for line in with_imports(EXAMPLES[name]).splitlines())


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _directive(name: str) -> str:
    last = name.rpartition(".")[2]
    options = {"heading": shown(name), "toc_label": last}
    if last in MEMBERS:
        options["members"] = f"[{', '.join(MEMBERS[last].split())}]"
        options["filters"] = "[]"
    lines = [f"        {key}: {value}" for key, value in options.items()]
    return "\n".join([f"::: {definition(name)}", "    options:", *lines])


def shown(name: str) -> str:
    """A name as users write it."""
    return name.replace("netsor.verify.Ver", "Ver").replace("netsor.limits.", "").replace("netsor.", "ns.", 1)


def found(name: str) -> Any:
    """What a name stands for: the attributes of a module."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):  # the longest module first: ns.verify is a function, too
        try:
            module = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return reduce(getattr, parts[cut:], module)
    raise LookupError(name)


def definition(name: str) -> str:
    """Where a name is defined, which is how mkdocstrings knows it: `ns.kernel` is netsor.limits.kernel.kernel."""
    module, _, last = name.rpartition(".")
    if module == "netsor.models":
        return f"{module}.{HOMES[last]}.{last}"  # nothing is imported here: the site needs none of the extras
    if module == "netsor.sklearn":
        return name
    thing = found(name)
    if isinstance(thing, Function):
        return f"netsor.{thing.name}"
    return f"{thing.__module__}.{thing.__qualname__}"


def _of(module: str, names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names.split())


PAGES = (
    Page(
        "write",
        "Write a network",
        "A network is a Python function of one input that ends in readouts `v @ h`. Parameters are made outside it, "
        "once; using one object twice shares its weights.",
        _of("netsor", "network Network Matrix Vector stack concat sum mean dot max min softmax nonlin flatten reshape")
        + _of("netsor", "pad contract"),
    ),
    Page(
        "layers",
        "Layers",
        "Each holds its parameters and composes what the language has. They act on the last index axes "
        "([Layers, axes and outputs](../layers.md)).",
        _of("netsor", "Dense Embedding Conv1d Conv2d mean_pool max_pool global_mean_pool global_max_pool upsample")
        + _of("netsor", "batchnorm layernorm Attention attention RNNCell GRUCell LSTMCell GraphConv")
        + _of("netsor", "normalized_adjacency"),
    ),
    Page(
        "functions",
        "Functions",
        "Coordinatewise functions. Inside a network they act on vectors; on a plain array they are what they are. Each "
        "knows its derivative, its kinks and its closed forms. For a function of your own there is `ns.nonlin`.",
        _of("netsor", "relu leaky_relu abs step sign hard_tanh identity polynomial piecewise erf erf_gate tanh sigmoid")
        + _of("netsor", "gelu silu elu softplus gaussian sin cos exp log sqrt maximum minimum"),
    ),
    Page(
        "zoo",
        "Ready-made networks",
        "Every architecture of the paper. Variances default to 1, and every `var_*` also takes one value per layer or "
        "gate. [The gallery](../gallery.md) shows their kernels, [Architectures](../architectures/README.md) derives them.",
        _of("netsor.zoo", "mlp resnet densenet layernorm_mlp batchnorm_mlp cnn graph_conv simple_rnn gru lstm transformer"),
    ),
    Page(
        "program",
        "The program",
        "The network in the paper's language: statements, types, text. See [Notation](../notation.md).",
        _of("netsor", "program parse Program"),
    ),
    Page(
        "limit",
        "The limit",
        "The Gaussian process at infinite width, with an error for every entry. [How the limit is computed]"
        "(../limit.md) says how.",
        _of("netsor", "kernel limit Options") + _of("netsor.limits", "KernelFn Limit Plan Result"),
    ),
    Page(
        "tangent",
        "The tangent kernel",
        "The kernel of training. See [The tangent kernel](../tangent.md).",
        _of("netsor", "tangent ntk") + _of("netsor.limits", "TangentKernelFn"),
    ),
    Page(
        "simulate",
        "Simulate and verify",
        "The same program at finite width. It shares no code with the limit, so it is the check of it.",
        _of("netsor", "simulate empirical_kernel empirical_ntk verify") + ("netsor.verify.Verification",),
    ),
    Page(
        "gp",
        "Gaussian processes",
        "Inference with the kernel of any network, and training at infinite width. See "
        "[Predicting](../gp.md).",
        _of("netsor.gp", "fit GP Prediction sample tune Tuned kernel_gradient train Trained classify Classifier save load")
        + ("netsor.gp.InferenceError",),
    ),
    Page(
        "sklearn",
        "scikit-learn",
        "Estimators, kernels and transformers. Needs the extra `sklearn`.",
        _of("netsor.sklearn", "NNGPRegressor NNGPClassifier NTKRegressor NNGPKernel NNGPGram Architecture"),
    ),
    Page(
        "models",
        "Models in",
        "Models of PyTorch and JAX as networks. Needs the extra `torch` or `jax`. See [Your model](../models.md).",
        _of("netsor.models", "from_torch from_jax from_flax from_equinox from_keras check_import report_laws"),
    ),
    Page(
        "scale",
        "Large sets",
        "Kernels on disk, tile by tile, and solves that never load them. Needs the extra `scale`. See "
        "[Beyond memory](../scale.md).",
        _of("netsor.gp", "store Store StoredGP"),
    ),
    Page(
        "errors",
        "Errors",
        "Every error is a `NetsorError` that says what is wrong, where, why by which rule, and what to do.",
        _of("netsor", "NetsorError")
        + _of("netsor.errors", "ParseError TypeCheckError BuildError DataError FunctionError LoweringError LimitError")
        + _of("netsor.errors", "SimulationError TangentError Place"),
    ),
    Page(
        "data",
        "Data",
        "What ships with the package, and readers of files of your own.",
        _of("netsor.data", "sentences Sentence digits Digits cifar10"),
    ),
)


def public_names() -> Iterator[str]:
    """Every name of the reference."""
    for page in PAGES:
        yield from page.names
