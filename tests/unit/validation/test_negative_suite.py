"""The negative suite has a case for every rule of the contract, and each breaks that rule."""

from __future__ import annotations

import ast
import random
import traceback
from collections import Counter
from pathlib import Path

import pytest

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators import (
    OPERATORS,
    _rotary_forward_contract,
    _rotary_grad_contract,
    _rotary_rules,
    operator_named,
)
from opferry.validation import CaseFile, read_cases
from opferry.validation.generation import FORMATS, negative_rows, write_rows

CONTRACTS = {
    "apply_rotary_pos_emb_grad": _rotary_grad_contract,
    "apply_rotary_pos_emb": _rotary_forward_contract,
}
"""The module of each operator's contract; the rules are `_rotary_rules`."""
RAISERS = ("refuse", "refuse_shape")
"""The functions of the contract's modules that raise."""

Pair = tuple[Reason, str | None]


def test_every_operator_has_a_contract_here() -> None:
    """So that the tests below are of all of them."""
    assert set(CONTRACTS) == {operator.python_name for operator in OPERATORS.values()}


@pytest.fixture(scope="module", params=CONTRACTS)
def name(request: pytest.FixtureRequest) -> str:
    """An operator's name in Python."""
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def suite(name: str, tmp_path_factory: pytest.TempPathFactory) -> CaseFile:
    """The suite, written and read back."""
    path = tmp_path_factory.mktemp("suite") / "negative.csv"
    write_rows(path, negative_rows(name), negative=True)
    return read_cases(path)


def problems(suite: CaseFile) -> list[tuple[int, Problem]]:
    """Return the expected status and the problem of each case that has specs."""
    found = []
    for case in suite.cases:
        if case.problem is None:
            with pytest.raises(Problem) as caught:
                case.operator.check(case.inputs, case.attributes)
            assert case.expected_status is not None
            found.append((case.expected_status, caught.value))
    return found


def sources(name: str) -> list[Path]:
    """Return the modules of an operator's contract."""
    return [Path(str(module.__file__)) for module in (CONTRACTS[name], _rotary_rules)]


def rules(name: str) -> set[tuple[Path, int, int]]:
    """Return file, first and last line of each call in a contract that raises, or checks."""
    return {
        (source, node.lineno, node.end_lineno or node.lineno)
        for source in sources(name)
        for function in ast.parse(source.read_text()).body
        if isinstance(function, ast.FunctionDef) and function.name not in RAISERS
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name)
        if node.func.id in RAISERS or node.func.id.lstrip("_").startswith("check_")
    }


def test_each_case_has_the_status_that_it_expects(suite: CaseFile) -> None:
    """By the contract; 161001 for required tensors alone."""
    found = problems(suite)
    assert len(found) >= 90
    for expected, problem in found:
        assert problem.aclnn_status == expected
    assert Counter(expected for expected, _ in found)[161001] == 4


def test_every_rule_of_the_contract_has_a_case(name: str, suite: CaseFile) -> None:
    """Every place in the contract's source that refuses is reached by some case."""
    reached = set()
    for _, problem in problems(suite):
        frames = [
            frame
            for frame in traceback.extract_tb(problem.__traceback__)
            if Path(frame.filename) in sources(name) and frame.name not in RAISERS
        ]
        reached |= {
            (source, first, last)
            for source, first, last in rules(name)
            for frame in frames
            if Path(frame.filename) == source and first <= (frame.lineno or 0) <= last
        }
    assert len(rules(name)) >= 20
    assert rules(name) - reached == set()


def any_call(name: str, draw: random.Random) -> Problem | None:
    """Return the problem of a valid call that is spoilt in some ways at random, if it has one."""
    operator = operator_named(name)
    layout = draw.choice((1, 2, 4))
    before = (6,) if layout == 4 else (2, 3)
    heads = {"grad_query_embed": 4, "grad_key_embed": 2, "cos": 1, "sin": 1, "query": 4, "key": 2}
    shapes = {spec.name: [*before, heads[spec.name], 8] for spec in operator.inputs}
    dtypes = dict.fromkeys(shapes, DType.FLOAT16)
    attributes: dict[str, object] = {"layout": layout}
    for _ in range(draw.randrange(1, 4)):
        names = draw.sample(list(shapes), draw.randrange(1, len(shapes) + 1))
        match draw.randrange(6):
            case 0:
                shapes.pop(names[0])
            case 1:
                dtypes[names[0]] = draw.choice(list(DType))
            case 2:
                which = draw.choice(("layout", "rotary_mode"))
                word = draw.choice(("half", "quarter", "any", "", "interleave"))
                attributes[which] = draw.randrange(-1, 7) if which == "layout" else word
            case 3:
                shapes[names[0]] = shapes[names[0]][draw.randrange(1, 3) :]
            case _:
                size = draw.choice((-1, 0, 1, 2, 3, 4, 7, 8, 1026))
                axis = draw.randrange(4)
                for other in names:
                    if axis < len(shapes[other]):
                        shapes[other][axis] = size
        if not shapes:
            break
    specs = {name: TensorSpec(dtypes[name], tuple(shape)) for name, shape in shapes.items()}
    try:
        operator.check(specs, operator.parse_attributes(attributes))
    except Problem as problem:
        return problem
    return None


def test_nothing_else_can_be_refused(name: str, suite: CaseFile) -> None:
    """What random calls are refused for, by reason and argument, has a case with that status."""
    cases = {(problem.reason, problem.argument, status) for status, problem in problems(suite)}
    draw = random.Random(4)
    found = [problem for problem in (any_call(name, draw) for _ in range(20_000)) if problem]
    with_status = {
        (problem.reason, problem.argument, problem.aclnn_status)
        for problem in found
        if problem.aclnn_status is not None
    }
    assert len(with_status) > 12
    assert with_status - cases == set()


def test_words_without_a_spec_are_cases_too(suite: CaseFile) -> None:
    """Another dtype, a layout by a name that is none: the file is read, the case keeps the rule."""
    kept = [case.problem for case in suite.cases if case.problem is not None]
    assert {problem.reason for problem in kept} == {
        Reason.DTYPE_NOT_ALLOWED,
        Reason.ENUM_UNKNOWN,
        Reason.ATTRIBUTE_INVALID,
    }
    assert {problem.aclnn_status for problem in kept} == {161002}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_file_is_the_same_again(name: str, tmp_path: Path, kind: str) -> None:
    """Same bytes, unique names, a remark for each."""
    for file in ("one.csv", "two.csv"):
        write_rows(tmp_path / file, negative_rows(name), kind, negative=True)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    cases = read_cases(tmp_path / "one.csv").cases
    assert len({case.name for case in cases}) == len(cases)
    assert len({case.remark for case in cases}) == len(cases)
