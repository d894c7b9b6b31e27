"""Runs `make mutants`: changes one sign, comparison or bound of the rules at a time, and lists what no test notices.

Each change is made in a process of its own, in which those tests of the pipeline run that need no Spark. It leaves
out functions that build Spark's columns, and connections.py and verdicts.py, which consist of these.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

PACKAGE = "kafka_probe_pipeline"
MODULES = ("evidence", "rules", "judging", "storms")
TESTS = [f"tests/pipeline/test_{name}.py" for name in ("rules", "verdicts", "storm_rules")]
# Bounds on the tests of one change, which may make a loop endless; they need a second or two of CPU.
MOST_S, MOST_BYTES = 20, 1 << 30
PAIRS = [
    *((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
]
SWAPPED: dict[type[ast.AST], Sequence[type[ast.AST]]] = {
    **{one: [other] for pair in PAIRS for one, other in (pair, pair[::-1])},
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.FloorDiv: [ast.Mult],
    ast.USub: [ast.UAdd],
}
# Beginnings of changes that may stay unnoticed, each with the reason.
EXCUSED = {
    "judging: (0, 0)  ->": "it is replaced for clients, and no rule asks for it of brokers",
    "judging: values[least[-1]] >= values[end]  ->": "of equal values either place will do",
    "judging: values[greatest[-1]] <= values[end]  ->": "of equal values either place will do",
    "storms: MOST_ACTIVE = 200  ->": "only a function that builds columns uses it",
    "storms: last - number  ->": "windows are numbered by their ends then",
    "storms: end = 0  ->  end = 1": "the first is always at its own idle age",
    "storms: LEVELS = 1000  ->": "levels and what they may differ by change alike",
}


class Mutant(NamedTuple):
    """A module with one change: its name, the place, the change, and the source."""

    module: str
    place: str
    change: str
    source: str


def mutants(module: str) -> Iterator[Mutant]:
    """Yield the module with each change that is possible, one at a time."""
    spec = find_spec(f"{PACKAGE}.{module}")
    assert spec is not None
    assert spec.origin
    tree = ast.parse(Path(spec.origin).read_text())
    for node, around in nodes(tree, tree):
        for name, value in changes(node):
            before, of = getattr(node, name), around if isinstance(node, ast.Constant) else node
            was = ast.unparse(of)
            setattr(node, name, value)
            yield Mutant(module, f"{module}.py:{node.lineno}", f"{was}  ->  {ast.unparse(of)}", ast.unparse(tree))
            setattr(node, name, before)


def nodes(node: ast.AST, around: ast.AST) -> Iterator[tuple[ast.expr | ast.AugAssign, ast.AST]]:
    """Yield the expressions below a node, each with the node around it, except where Spark's columns are built."""
    if isinstance(node, ast.FunctionDef) and any(isinstance(n, ast.Name) and n.id == "F" for n in ast.walk(node)):
        return
    if isinstance(node, ast.expr | ast.AugAssign):
        yield node, around
    for child in ast.iter_child_nodes(node):
        yield from nodes(child, node)


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield fields of a node with other values."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield from (("ops", [*ops[:place], other(), *ops[place + 1 :]]) for other in SWAPPED[type(op)])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.AugAssign(op=op):
            yield from (("op", other()) for other in SWAPPED.get(type(op), ()))
        case ast.Constant(value=int(value) | float(value)) if not isinstance(value, bool):
            yield from (("value", value + more) for more in (1, -1))


def is_noticed(mutant: Mutant) -> bool:
    """Return True if a test fails with the change. It is made in this process."""
    signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S, 1)  # again, if an exception is ignored where it comes
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    name = f"{PACKAGE}.{mutant.module}"
    sys.modules[name] = module = ModuleType(name)
    try:
        exec(compile(mutant.source, mutant.place, "exec"), vars(module))
        return not tests_pass()
    except (Exception, KeyboardInterrupt):
        return True


def tests_pass() -> bool:
    """Run the tests that need no Spark, up to the first that fails."""
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        return pytest.main(["-x", "-q", "-p", "no:cacheprovider", *TESTS], plugins=[WithoutSpark()]) == 0


class WithoutSpark:
    """A plugin of pytest that leaves out tests with Spark."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]


def main() -> int:
    start = time.monotonic()
    if not tests_pass():
        print("The tests fail without a change: run make test.", file=sys.stderr)
        return 1
    # Packages of others stay imported in the processes that start from here.
    for name in [name for name in sys.modules if name.startswith((PACKAGE, "tests."))]:
        del sys.modules[name]
    every = [mutant for module in MODULES for mutant in mutants(module)]
    with get_context("fork").Pool(maxtasksperchild=1) as pool:
        noticed = pool.map(is_noticed, every, chunksize=1)
    unnoticed = [mutant for mutant, seen in zip(every, noticed, strict=True) if not seen]
    survivors = [one for one in unnoticed if not f"{one.module}: {one.change}".startswith(tuple(EXCUSED))]
    for mutant in survivors:
        print(f"{mutant.place}: {mutant.change}")
    excused = len(unnoticed) - len(survivors)
    took_s = time.monotonic() - start
    print(f"{len(every)} changes, {len(survivors)} unnoticed, {excused} excused, in {took_s:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
