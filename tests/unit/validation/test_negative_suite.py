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
from opferry.operators import _rotary_contract, operator_named
from opferry.validation import CaseFile, read_cases
from opferry.validation.generation import FORMATS, negative_rows, write_rows

NAME = "apply_rotary_pos_emb_grad"
OPERATOR = operator_named(NAME)
CONTRACT = Path(_rotary_contract.__file__)
RAISERS = ("_refuse", "_shape")
"""The functions of the contract's module that raise; each call of one is a rule."""

Pair = tuple[Reason, str | None]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> CaseFile:
    """The suite, written and read back."""
    path = tmp_path_factory.mktemp("suite") / "negative.csv"
    write_rows(path, negative_rows(NAME), negative=True)
    return read_cases(path)


def problems(suite: CaseFile) -> list[tuple[int, Problem]]:
    """Return the expected status and the problem of each case that has specs."""
    found = []
    for case in suite.cases:
        if case.problem is None:
            with pytest.raises(Problem) as caught:
                OPERATOR.check(case.inputs, case.attributes)
            assert case.expected_status is not None
            found.append((case.expected_status, caught.value))
    return found


def rules() -> set[tuple[int, int]]:
    """Return the first and last line of each call in the contract that raises."""
    tree = ast.parse(CONTRACT.read_text())
    return {
        (node.lineno, node.end_lineno or node.lineno)
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name not in RAISERS
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in RAISERS
    }


def test_each_case_has_the_status_that_it_expects(suite: CaseFile) -> None:
    """By the contract; 161001 for required tensors alone."""
    found = problems(suite)
    assert len(found) >= 90
    for expected, problem in found:
        assert problem.aclnn_status == expected
    assert Counter(expected for expected, _ in found)[161001] == 4


def test_every_rule_of_the_contract_has_a_case(suite: CaseFile) -> None:
    """Every place in the contract's source that refuses is reached by some case."""
    reached = set()
    for _, problem in problems(suite):
        frames = [
            frame
            for frame in traceback.extract_tb(problem.__traceback__)
            if Path(frame.filename) == CONTRACT and frame.name not in RAISERS
        ]
        reached |= {
            (first, last)
            for first, last in rules()
            for frame in frames[-1:]
            if first <= (frame.lineno or 0) <= last
        }
    assert len(rules()) >= 18
    assert rules() - reached == set()


def any_call(draw: random.Random) -> Problem | None:
    """Return the problem of a valid call that is spoilt in some ways at random, if it has one."""
    layout = draw.choice((1, 2, 4))
    before = (6,) if layout == 4 else (2, 3)
    heads = {"grad_query_embed": 4, "grad_key_embed": 2, "cos": 1, "sin": 1, "query": 4, "key": 2}
    shapes = {name: [*before, count, 8] for name, count in heads.items()}
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
                name = draw.choice(("layout", "rotary_mode"))
                word = draw.choice(("half", "quarter", "any", "", "interleave"))
                attributes[name] = draw.randrange(-1, 7) if name == "layout" else word
            case 3:
                shapes[names[0]] = shapes[names[0]][draw.randrange(1, 3) :]
            case _:
                size = draw.choice((-1, 0, 1, 2, 3, 4, 7, 8, 1026))
                axis = draw.randrange(4)
                for name in names:
                    if axis < len(shapes[name]):
                        shapes[name][axis] = size
        if not shapes:
            break
    specs = {name: TensorSpec(dtypes[name], tuple(shape)) for name, shape in shapes.items()}
    try:
        OPERATOR.check(specs, OPERATOR.parse_attributes(attributes))
    except Problem as problem:
        return problem
    return None


def test_nothing_else_can_be_refused(suite: CaseFile) -> None:
    """What random calls are refused for, by reason and argument, has a case with that status."""
    cases = {(problem.reason, problem.argument, status) for status, problem in problems(suite)}
    draw = random.Random(4)
    found = [problem for problem in (any_call(draw) for _ in range(20_000)) if problem]
    with_status = {
        (problem.reason, problem.argument, problem.aclnn_status)
        for problem in found
        if problem.aclnn_status is not None
    }
    assert len(with_status) > 15
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
def test_the_file_is_the_same_again(tmp_path: Path, kind: str) -> None:
    """Same bytes, unique names, a remark for each."""
    for name in ("one.csv", "two.csv"):
        write_rows(tmp_path / name, negative_rows(NAME), kind, negative=True)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    cases = read_cases(tmp_path / "one.csv").cases
    assert len({case.name for case in cases}) == len(cases)
    assert len({case.remark for case in cases}) == len(cases)
