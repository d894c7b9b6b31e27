"""Runs `make mutants`: changes one sign, comparison or bound of the rules at a time, and lists what no test notices.

Each change is made in a process of its own, in which those tests of the pipeline run that need no Spark. Changes of
functions that build Spark's columns, and all changes of modules that consist of these, are then made one after the
other in one process with a Spark session. ONLY=rules or ONLY=columns makes only the first or the second.
"""

from __future__ import annotations

import ast
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

PACKAGE = "kafka_probe_pipeline"
ONLY = os.environ.get("ONLY")
MODULES = ("evidence", "cause_rules", "judging", "storms")
TESTS = [f"tests/pipeline/test_{name}.py" for name in ("cause_rules", "verdicts", "storm_rules")]
# Modules whose functions build columns, and their tests.
WITH_SPARK = {
    "agents": ("agents", "verdicts", "storms", "security_policy"),
    "connections": ("connections", "verdicts", "storms"),
    "incidents": ("incidents", "storm_rules", "storms"),
    "flow_ids": ("connections", "verdicts"),
    "scopes": ("storms", "agents"),
    "storms": ("storms",),
    "verdicts": ("verdicts", "connections", "storms"),
}
# Bounds on the tests of one change, which may make a loop endless; they need a second or two of CPU.
MOST_S, MOST_BYTES = 20, 1 << 30
PAIRS = [
    *((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.BitAnd, ast.BitOr), (ast.Add, ast.Sub), (ast.Mult, ast.Div)),
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
    "storms: cell.hop - number  ->": "windows are numbered by their ends then",
    "storms: (0, list[Cell](), span(config))  ->": "no cell is empty",
}


class Mutant(NamedTuple):
    """A module with one change: its name, the place, the change, and the source."""

    module: str
    place: str
    change: str
    source: str


def mutants(module: str, *, of_columns: bool = False) -> Iterator[Mutant]:
    """Yield the module with each change that is possible, one at a time."""
    spec = find_spec(f"{PACKAGE}.{module}")
    assert spec is not None
    assert spec.origin
    tree = ast.parse(Path(spec.origin).read_text())
    for node, around in nodes(tree, tree, of_columns, inside=not of_columns or module not in MODULES):
        for name, value in changes(node):
            before, of = getattr(node, name), around if isinstance(node, ast.Constant) else node
            was = ast.unparse(of)
            setattr(node, name, value)
            yield Mutant(module, f"{module}.py:{node.lineno}", f"{was}  ->  {ast.unparse(of)}", ast.unparse(tree))
            setattr(node, name, before)


def nodes(
    node: ast.AST, around: ast.AST, of_columns: bool, *, inside: bool
) -> Iterator[tuple[ast.expr | ast.AugAssign, ast.AST]]:
    """Yield the expressions below a node, each with the node around it, without annotations.

    of_columns: also in functions that build Spark's columns; inside: also outside of these.
    """
    if isinstance(node, ast.FunctionDef) and any(isinstance(n, ast.Name) and n.id == "F" for n in ast.walk(node)):
        if not of_columns:
            return
        inside = True
    if inside and isinstance(node, ast.expr | ast.AugAssign):
        yield node, around
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from nodes(child, node, of_columns, inside=inside)


def changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield fields of a node with other values."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield from (("ops", [*ops[:place], other(), *ops[place + 1 :]]) for other in SWAPPED[type(op)])
        case ast.UnaryOp(op=ast.Not() | ast.Invert() as op, operand=operand):
            yield "operand", ast.UnaryOp(op, operand)
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.AugAssign(op=op):
            yield from (("op", other()) for other in SWAPPED.get(type(op), ()))
        case ast.Constant(value=int(value) | float(value)) if not isinstance(value, bool):
            yield from (("value", value + more) for more in (1, -1))


def is_noticed(mutant: Mutant) -> bool:
    """Return True if a test without Spark fails with the change. It is made in this process."""
    signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_S, 1)  # again, if an exception is ignored where it comes
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    try:
        return not passes(mutant, TESTS, WithoutSpark())
    except (Exception, KeyboardInterrupt):
        return True


def tried_without_spark() -> Iterator[tuple[Mutant, bool]]:
    """Yield the changes of rules, each with whether a test without Spark notices it."""
    every = [mutant for module in MODULES for mutant in mutants(module)]
    with get_context("fork").Pool(maxtasksperchild=1) as pool:
        yield from zip(every, pool.imap(is_noticed, every), strict=True)


def tried_with_spark() -> Iterator[tuple[Mutant, bool]]:
    """Yield the changes of columns, each with whether a test with Spark notices it; tests share one session."""
    with patch.object(SparkSession, "stop"):
        for module, names in WITH_SPARK.items():
            tests = [f"tests/pipeline/test_{name}.py" for name in names]
            for mutant in mutants(module, of_columns=True):
                yield mutant, not passes(mutant, tests)


def passes(mutant: Mutant, tests: Sequence[str], *plugins: object) -> bool:
    """Return True if tests pass with the change, which stays in this process."""
    forget_modules()
    name = f"{PACKAGE}.{mutant.module}"
    sys.modules[name] = module = ModuleType(name)
    try:
        exec(compile(mutant.source, mutant.place, "exec"), vars(module))
    except Exception:
        return False
    return tests_pass(tests, *plugins)


def forget_modules() -> None:
    """Remove the modules of the pipeline and of its tests from `sys.modules`: the next import loads them anew."""
    for name in [name for name in sys.modules if name.startswith((PACKAGE, "tests."))]:
        del sys.modules[name]


def tests_pass(tests: Sequence[str], *plugins: object) -> bool:
    """Run the tests that plugins leave, up to the first that fails."""
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        return pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests], plugins=plugins) == 0


class WithoutSpark:
    """A plugin of pytest that leaves out tests with Spark."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]


def main() -> int:
    start = time.monotonic()
    if ONLY not in (None, "rules", "columns"):
        print(f"ONLY is {ONLY}: it must be rules or columns.", file=sys.stderr)
        return 2
    if not tests_pass(TESTS, WithoutSpark()):
        print("The tests fail without a change: run make test.", file=sys.stderr)
        return 1
    forget_modules()  # before processes start from here
    outcomes = Counter[str]()
    rules, columns = ONLY != "columns", ONLY != "rules"
    for mutant, noticed in chain(tried_without_spark() if rules else (), tried_with_spark() if columns else ()):
        excused = f"{mutant.module}: {mutant.change}".startswith(tuple(EXCUSED))
        outcomes["noticed" if noticed else "excused" if excused else "unnoticed"] += 1
        if not noticed and not excused:
            print(f"{mutant.place}: {mutant.change}", flush=True)
    found = f"{outcomes['unnoticed']} unnoticed, {outcomes['excused']} excused"
    print(f"{outcomes.total()} changes, {found}, in {time.monotonic() - start:.0f} s")
    return 1 if outcomes["unnoticed"] else 0


if __name__ == "__main__":
    sys.exit(main())
