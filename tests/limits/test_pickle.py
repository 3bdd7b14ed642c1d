"""Networks and kernels in another process: the same numbers, by the same methods, without reading again."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import limit_cases
import netsor as ns
from each_case import run_cases
from limit_cases import CASES, Case
from netsor import zoo
from netsor.errors import BuildError
from netsor.lang.expr import Apply, Const, Ref
from netsor.lang.functions import add, named
from netsor.limits import inputs

cloudpickle = pytest.importorskip("cloudpickle")

V, W = ns.Matrix(1.0, rows=1), ns.Matrix(1.0)
CHILD = """
import pickle, sys
with open(sys.argv[1], "rb") as file:
    jobs = pickle.load(file)
found = {name: (str(K.plan(x)), K(x)) for name, (K, x) in jobs.items()}
with open(sys.argv[2], "wb") as file:
    pickle.dump(found, file)
"""


def in_another_process(jobs: dict[Any, Any], folder: Path, dumps: Any = pickle.dumps) -> dict[Any, Any]:
    """K(x) and the plan of every job, computed by a process that knows nothing but its pickle."""
    there, back = folder / "there", folder / "back"
    there.write_bytes(dumps(jobs))
    sources = str(Path(ns.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", CHILD, str(there), str(back)],
        check=True,
        env={**os.environ, "PYTHONPATH": sources},
    )
    return pickle.loads(back.read_bytes())


def kernel_of(case: Case) -> Any:
    return ns.kernel(case.net, points=2**5, repeats=4)


def travel(cases: list[Case], folder: Path, dumps: Any = pickle.dumps) -> None:
    """Fresh kernels, and the same after use, are bit for bit what they are here."""
    jobs, values, plans = {}, {}, {}
    for case in cases:
        used = kernel_of(case)
        values[case.name], plans[case.name] = used(case.inputs), str(kernel_of(case).plan(case.inputs))
        jobs[case.name, "fresh"], jobs[case.name, "used"] = (
            (kernel, case.inputs) for kernel in (kernel_of(case), used)
        )
    answers = in_another_process(jobs, folder, dumps)

    def check(job: tuple[str, str]) -> None:
        plan, value = answers[job]
        np.testing.assert_array_equal(value, values[job[0]])
        assert plan == plans[job[0]]

    run_cases(check, {", ".join(job): job for job in jobs})


def test_zoo_networks_travel_by_pickle(tmp_path: Path) -> None:
    travel([case for case in CASES if case.name != "mlp, user"], tmp_path)


def test_tangent_kernels_travel(tmp_path: Path) -> None:
    travel([Case("tangent", ns.tangent(zoo.mlp(2)), list(limit_cases.VECTORS))], tmp_path)


def test_users_functions_travel_by_cloudpickle(tmp_path: Path) -> None:
    cloudpickle.register_pickle_by_value(limit_cases)
    try:
        travel([limit_cases.by_name("mlp, user")], tmp_path, cloudpickle.dumps)
    finally:
        cloudpickle.unregister_pickle_by_value(limit_cases)


def test_a_users_network_travels_by_cloudpickle(tmp_path: Path) -> None:
    W, v = ns.Matrix(1.5), ns.Matrix(1.0, rows=1)

    @ns.network
    def tied(x):
        return v @ ns.relu(W @ ns.tanh(W @ ns.erf(W @ (ns.Matrix.__matmul__(U, x)))))

    U = ns.Matrix(2.0)
    travel([Case("tied", tied, list(limit_cases.VECTORS))], tmp_path, cloudpickle.dumps)
    again = cloudpickle.loads(cloudpickle.dumps(tied))
    assert ns.program(again, np.ones(3)) == ns.program(tied, np.ones(3))


def with_closures() -> ns.Network:
    U, W, v = ns.Matrix(2.0), ns.Matrix(1.5), ns.Matrix(1.0, rows=1)
    return ns.network(lambda x: v @ ns.nonlin(lambda y: np.sin(1.3 * y), W @ ns.relu(W @ ns.relu(U @ x))))


@pytest.mark.parametrize("kind", [ns.kernel, ns.ntk])
def test_closures_are_pickled_by_value(kind: Any, tmp_path: Path) -> None:
    fresh, used, x = kind(with_closures()), kind(with_closures()), [np.ones(3), np.arange(3.0)]
    wanted = used(x)
    for said, value in in_another_process({"fresh": (fresh, x), "used": (used, x)}, tmp_path).values():
        np.testing.assert_array_equal(value, wanted)
        assert said == str(fresh.plan(x))


def test_closures_without_cloudpickle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"netsor\[scale\]"):
        pickle.dumps(with_closures())
    pickle.dumps(ns.network(module_level))


def module_level(x):
    return V @ ns.relu(W @ x)


def test_a_used_kernel_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    K, x = ns.kernel(zoo.gru(), points=2**5, repeats=4), list(limit_cases.SEQUENCES)
    wanted = K(x)
    again = pickle.loads(pickle.dumps(K))
    monkeypatch.setattr(inputs, "joint", None)
    np.testing.assert_array_equal(again(x), wanted)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again))(x), wanted)


def test_a_network_that_has_changed_is_read_again() -> None:
    W, v = ns.Matrix(1.0), ns.Matrix(1.0, rows=1)

    @ns.network
    def perceptron(x):
        return v @ ns.relu(W @ x)

    K, x = ns.kernel(perceptron), np.eye(2)
    before = K(x)
    v.var = 3.0
    np.testing.assert_array_equal(cloudpickle.loads(cloudpickle.dumps(K))(x), 3 * before)


def test_what_is_shared_stays_shared() -> None:
    net = zoo.mlp(2)
    first = next(iter(net.parameters()))
    again, matrix = pickle.loads(pickle.dumps((net, first)))
    assert matrix in again.parameters()
    assert again.name == net.name
    assert again.__wrapped__ is again.fn


def test_inputs_are_not_taken_along() -> None:
    K = ns.kernel(zoo.mlp(1))
    K(np.ones((2000, 3)))
    assert len(pickle.dumps(K)) < 20_000


def test_operations_are_the_same_objects() -> None:
    for op in named().values():
        assert pickle.loads(pickle.dumps(op)) is op
        assert cloudpickle.loads(cloudpickle.dumps(op)) is op


def test_expressions_of_any_depth_are_interned() -> None:
    deep: Any = Ref("x")
    for k in range(20_000):
        deep = Apply(add, (deep, Const(float(k % 3))))
    assert pickle.loads(pickle.dumps(deep)) is deep


def test_text_programs_and_plans_travel() -> None:
    text = ns.program(zoo.gru(), np.ones((3, 2))).show()
    program = ns.parse(text)
    assert pickle.loads(pickle.dumps(program)) == program
    limit = ns.limit(program, points=2**5, repeats=4)
    result = limit.kernel()
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.value, result.value)
    assert again.plan == result.plan
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(limit)).kernel().value, result.value)


def test_parameters_that_do_not_stay_shared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`layer` travels by name, so there it has the matrix of its module, and the network a copy of it."""
    module = ModuleType("layers_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = """
import netsor as ns
W, v = ns.Matrix(2.0), ns.Matrix(1.0, rows=1)
def layer(x):
    return ns.relu(W @ x)
@ns.network
def net(x):
    return v @ layer(W @ layer(x))
"""
    exec(source, vars(module))
    with pytest.raises(BuildError, match="has other parameters here"):
        cloudpickle.loads(cloudpickle.dumps(module.net))
