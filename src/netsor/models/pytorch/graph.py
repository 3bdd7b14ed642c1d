"""Interpretation of the exported graphs of a PyTorch model at the two widths, in parallel."""

# pyright: reportMissingImports=false

from __future__ import annotations

import operator
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch._dynamo.exc import UserError

from netsor.errors import BuildError, Place
from netsor.models.reader import Reader, Where
from netsor.models.values import Constant, Traced, Value

Pair = tuple[Any, Any]  # a number of the graphs at the two widths
Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
NOT_THE_USERS = (os.path.dirname(str(torch.__file__)), "netsor/models/")
EMPTY = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of ATen operations, by name without overload: `@rule("mm", "bmm")`.

    A rule is called with the reader, the operation's arguments by their names in its schema, and `result`,
    the shape of its result at both widths (None if it has several). Numbers come as pairs.
    """

    def enter(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return enter


def export(model: Any, inputs: tuple[Any, ...]) -> Any:
    """Export the graph of a model, with functional operations only, and recurrent modules as loops."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _functional(torch.export.export(model, inputs))
        except (RuntimeError, ValueError, TypeError, AssertionError, UserError) as error:
            raise _not_exported(error) from error


def _functional(exported: Any) -> Any:
    """Replace writes by new tensors: a write through a view changes all tensors that share the memory."""
    cells = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}
    recurrent = [n for n in exported.graph.nodes if str(n.target) in cells]
    for node in recurrent:
        _check_recurrent(node)
    if recurrent:
        exported = exported.run_decompositions()
    elif _writes(exported):
        exported = exported.run_decompositions({})
    for node in _writes(exported):
        at = where(node)
        raise BuildError(
            f"{at}: an operation writes into a tensor, and PyTorch cannot write it as one that does not",
            place=at.place,
            remedy="Compute a new tensor instead: `h = h + 1` in place of `h += 1`, torch.cat or torch.where "
            "in place of `h[:, 0] = 0`.",
        )
    return exported


def _writes(exported: Any) -> list[Any]:
    """The operations that write into tensors, in the graph and its subgraphs."""
    modules = (m for m in exported.graph_module.modules() if isinstance(m, torch.fx.GraphModule))
    return [node for m in modules for node in m.graph.nodes if node.op == "call_function" and _is_write(node)]


def _is_write(node: Any) -> bool:
    """Whether an operation writes into a tensor; normalisations hide their updates of running statistics."""
    if str(node.target) in ("aten.batch_norm.default", "aten.instance_norm.default"):
        running, training = node.args[3], node.args[5]
        return running is not None and bool(training)
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _check_recurrent(node: Any) -> None:
    """Refuse dropout in recurrent modules, which PyTorch's decomposition drops silently."""
    share, train = node.args[5:7]
    if share and train:
        at = where(node)
        raise BuildError(
            f"{at}: dropout with p = {share:g} between the layers of a recurrent module, in training mode",
            place=at.place,
            remedy="Write a module of one layer for each, with nn.Dropout between them; or give train=False.",
        )


def _not_exported(error: Exception) -> BuildError:
    frames = re.findall(r'File "([^"]+)", line (\d+), in \w+\n\s+(.*)', str(error))
    mine = [f for f in frames if not any(part in f[0] for part in ("site-packages", *NOT_THE_USERS))]
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    place = Place(int(mine[-1][1]), mine[-1][2], file=mine[-1][0].rsplit("/", 1)[-1]) if mine else None
    return BuildError(
        f"torch.export cannot trace the model: {first}",
        place=place,
        remedy="The forward pass must be straight-line: branches and loops may depend on shapes, not on "
        "the values of the data. Check the shape of the input too; tokens need tokens=True, a batch axis "
        "of their own batch=False.",
    )


def walk(reader: Reader, graphs: Sequence[Any], parameters: dict[str, Any], inputs: Sequence[Value]) -> list:
    """Compute the model's results; both graphs have the same operations, and differ only in sizes."""
    one, two = graphs
    placeholders = _placeholders(graphs, parameters, inputs)
    results = walk_nodes(reader, one.graph_module, two.graph_module, placeholders)
    specs = one.graph_signature.output_specs
    return [x for x, s in zip(results, specs, strict=True) if s.kind.name == "USER_OUTPUT" and x is not None]


def walk_nodes(reader: Reader, one: Any, two: Any, placeholders: dict[str, Any]) -> list[Any]:
    """Compute the outputs of two graph modules, for given placeholders."""
    targets = [[str(n.target) for n in g.graph.nodes if n.op == "call_function"] for g in (one, two)]
    if targets[0] != targets[1]:
        raise BuildError(
            "the two widths give different graphs",
            remedy="The operations of the forward pass depend on the width. Only sizes may.",
        )
    needed = _needed(one.graph)
    env: dict[str, Any] = {}
    for a, b in zip(one.graph.nodes, two.graph.nodes, strict=False):
        if a.op == "placeholder":
            env[a.name] = placeholders.get(a.name)
        elif a.op == "get_attr":
            env[a.name] = _attribute(getattr(one, a.target), getattr(two, b.target))
        elif a.op == "call_function" and a.name in needed:
            with reader.at(where(a)):
                env[a.name] = call(reader, a, b, env)
                reader.single |= _is_single(a)
    last = next(n for n in one.graph.nodes if n.op == "output")
    return [None if n is None else env.get(n.name) for n in last.args[0]]


def _attribute(one: Any, two: Any) -> Any:
    return (one, two) if isinstance(one, torch.nn.Module) else _constant(one, two)


def _inside(reader: Reader, a: Any, env: dict[str, Any]) -> list[Any]:
    """Run a subgraph that is under a context of PyTorch, such as no_grad or autocast."""
    args = [env[x.name] for x in a.args if isinstance(x, torch.fx.Node)]
    modules = next((x for x in args if isinstance(x, tuple)), None)
    if modules is None or sum(isinstance(x, tuple) for x in args) > 1:
        raise reader.refuse(
            "control flow that depends on values",
            "A program is straight-line: branch on shapes, not on values.",
        )
    one, two = modules
    names = [n.name for n in one.graph.nodes if n.op == "placeholder"]
    return walk_nodes(reader, one, two, dict(zip(names, args[args.index(modules) + 1 :], strict=True)))


def _placeholders(graphs: Sequence[Any], parameters: dict[str, Any], inputs: Sequence[Value]) -> dict:
    one, two = graphs
    values: dict[str, Any] = {}
    waiting = list(inputs)
    for spec, other in zip(one.graph_signature.input_specs, two.graph_signature.input_specs, strict=True):
        match spec.kind.name:
            case "PARAMETER":
                values[spec.arg.name] = parameters.get(spec.target) or _tied(parameters, one, spec.target)
            case "BUFFER":
                values[spec.arg.name] = _constant(_buffer(one, spec.target), _buffer(two, other.target))
            case "CONSTANT_TENSOR":
                values[spec.arg.name] = _constant(one.constants[spec.target], two.constants[other.target])
            case "USER_INPUT":
                values[spec.arg.name] = waiting.pop(0) if waiting else None
    return values


def _tied(parameters: dict[str, Any], graph: Any, target: str) -> Any:
    """A parameter that the model holds under two names."""
    tensor = graph.state_dict[target]
    for name, p in graph.named_parameters():
        if name in parameters and p.data_ptr() == tensor.data_ptr():
            return parameters[name]
    raise BuildError(
        f"the parameter `{target}` is not registered", remedy="Make it an nn.Parameter of a module."
    )


def _buffer(graph: Any, target: str) -> Any:
    buffer = graph.state_dict.get(target)
    return graph.constants[target] if buffer is None else buffer


def _constant(one: Any, two: Any) -> Constant:
    return Constant(_array(one), _array(two))


def _array(t: Any) -> np.ndarray:
    return t.detach().cpu().numpy() if isinstance(t, torch.Tensor) else np.asarray(t)


def _needed(graph: Any) -> set[str]:
    """The nodes on which the results depend."""
    todo = [n for n in next(n for n in graph.nodes if n.op == "output").args[0] if n is not None]
    seen: set[str] = set()
    while todo:
        node = todo.pop()
        if node.name not in seen:
            seen.add(node.name)
            todo += node.all_input_nodes
    return seen


def where(node: Any) -> Where:
    """The place of a node: module path, operation, and the line of the user or of a library on PyTorch."""
    modules = node.meta.get("nn_module_stack") or {}
    path = [str(p[0]) for p in modules.values() if p[0]]
    path = [p.removeprefix("L['self'].") for p in path]
    frames = re.findall(
        r'File "([^"]+)", line (\d+), in [^\n]+\n\s+([^\n]*)', node.meta.get("stack_trace") or ""
    )
    frames = [f for f in frames if not any(part in f[0] for part in NOT_THE_USERS)]
    mine = [f for f in frames if "site-packages" not in f[0]] or frames
    place = None
    if mine:
        file, line, text = mine[-1]
        place = Place(int(line), text, file=file.rsplit("/", 1)[-1])
    return Where(path[-1] if path else "", str(node.target).removesuffix(".default"), place)


def call(reader: Reader, a: Any, b: Any, env: dict[str, Any]) -> Any:
    """Apply an operation to values; if all operands are constants, run it in PyTorch at both widths."""
    if a.target is operator.getitem:
        return env[a.args[0].name][a.args[1]]
    if isinstance(a.target, torch._ops.HigherOrderOperator):
        return _inside(reader, a, env)
    inputs = [env[n.name] for n in a.all_input_nodes]
    if any(x is None for x in inputs):
        raise reader.refuse(
            "a result is used that the limit does not have, such as the positions of a maximum or running "
            "statistics",
            "Use the values alone, or compute this from the data before the network.",
        )
    name = a.target._schema.name.removeprefix("aten::")
    is_random = torch.Tag.nondeterministic_seeded in a.target.tags
    if (
        not is_random
        and all(isinstance(x, Constant | list) for x in inputs)
        and not any(
            isinstance(y, Traced) and not isinstance(y, Constant)
            for x in inputs
            if isinstance(x, list)
            for y in x
        )
    ):
        return _run(a, b, env)
    if name not in RULES:
        raise reader.refuse(
            f"the PyTorch operation `{a.target}` has no rule",
            "Write this part with operations that act coordinate by coordinate, or with the usual layers.",
        )
    schema = a.target._schema.arguments
    values = {s.name: s.default_value for s in schema if s.has_default_value()}
    values = {k: _paired(v, v, env) for k, v in values.items()}
    values |= {s.name: _paired(x, y, env) for s, x, y in zip(schema, a.args, b.args, strict=False)}
    values |= {k: _paired(x, b.kwargs[k], env) for k, x in a.kwargs.items()}
    return RULES[name](reader, result=_shape(a, b), **values)


def _is_single(node: Any) -> bool:
    """Whether the result of a node has less than double precision."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _shape(a: Any, b: Any) -> Any:
    one, two = a.meta.get("val"), b.meta.get("val")
    if isinstance(one, torch.Tensor):
        return list(zip(map(int, one.shape), map(int, two.shape), strict=True))
    return None


def _paired(x: Any, y: Any, env: dict[str, Any]) -> Any:
    """An argument: a traced value, a pair of numbers, or what is neither."""
    if isinstance(x, torch.fx.Node):
        return env[x.name]
    if isinstance(x, list | tuple):
        return [_paired(p, q, env) for p, q in zip(x, y, strict=True)]
    return (x, y) if isinstance(x, int | float) and not isinstance(x, bool) else x


def _run(a: Any, b: Any, env: dict[str, Any]) -> Any:
    """Run an operation on constants, at both widths."""
    outs = []
    for node, side in ((a, "one"), (b, "two")):
        args = [_numbers(x, env, side) for x in node.args]
        kwargs = {k: _numbers(x, env, side) for k, x in node.kwargs.items()}
        out = node.target(*args, **kwargs)
        is_empty = node.target._schema.name.removeprefix("aten::") in EMPTY
        outs.append(torch.zeros_like(out) if is_empty else out)
    if isinstance(outs[0], tuple | list):
        return [_constant(p, q) for p, q in zip(*outs, strict=True)]
    return _constant(*outs)


def _numbers(x: Any, env: dict[str, Any], side: str) -> Any:
    if isinstance(x, torch.fx.Node):
        return torch.from_numpy(np.array(getattr(env[x.name], side)))
    if isinstance(x, list | tuple):
        return type(x)(_numbers(p, env, side) for p in x)
    return x
