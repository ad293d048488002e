from opferry.v1 import execution_pb2 as _execution_pb2
from opferry.v1 import rotary_pb2 as _rotary_pb2
from opferry.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GoldenMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GOLDEN_MODE_UNSPECIFIED: _ClassVar[GoldenMode]
    GOLDEN_MODE_ENABLE: _ClassVar[GoldenMode]
    GOLDEN_MODE_PROMOTE: _ClassVar[GoldenMode]
    GOLDEN_MODE_DISABLE: _ClassVar[GoldenMode]

class Distribution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISTRIBUTION_UNSPECIFIED: _ClassVar[Distribution]
    DISTRIBUTION_UNIFORM: _ClassVar[Distribution]
    DISTRIBUTION_NORMAL: _ClassVar[Distribution]

class CaseTensor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CASE_TENSOR_UNSPECIFIED: _ClassVar[CaseTensor]
    CASE_TENSOR_INPUT: _ClassVar[CaseTensor]
    CASE_TENSOR_OUTPUT: _ClassVar[CaseTensor]
    CASE_TENSOR_GOLDEN: _ClassVar[CaseTensor]
GOLDEN_MODE_UNSPECIFIED: GoldenMode
GOLDEN_MODE_ENABLE: GoldenMode
GOLDEN_MODE_PROMOTE: GoldenMode
GOLDEN_MODE_DISABLE: GoldenMode
DISTRIBUTION_UNSPECIFIED: Distribution
DISTRIBUTION_UNIFORM: Distribution
DISTRIBUTION_NORMAL: Distribution
CASE_TENSOR_UNSPECIFIED: CaseTensor
CASE_TENSOR_INPUT: CaseTensor
CASE_TENSOR_OUTPUT: CaseTensor
CASE_TENSOR_GOLDEN: CaseTensor

class ValidateRequest(_message.Message):
    __slots__ = ("header", "case", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CASE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ValidateHeader
    case: ValidateCase
    chunk: CaseChunk
    def __init__(self, header: _Optional[_Union[ValidateHeader, _Mapping]] = ..., case: _Optional[_Union[ValidateCase, _Mapping]] = ..., chunk: _Optional[_Union[CaseChunk, _Mapping]] = ...) -> None: ...

class ValidateResponse(_message.Message):
    __slots__ = ("welcome", "needed", "verdict", "chunk")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    welcome: ValidateWelcome
    needed: DataNeeded
    verdict: CaseVerdict
    chunk: CaseChunk
    def __init__(self, welcome: _Optional[_Union[ValidateWelcome, _Mapping]] = ..., needed: _Optional[_Union[DataNeeded, _Mapping]] = ..., verdict: _Optional[_Union[CaseVerdict, _Mapping]] = ..., chunk: _Optional[_Union[CaseChunk, _Mapping]] = ...) -> None: ...

class ValidateHeader(_message.Message):
    __slots__ = ("operator_package", "options", "standard", "edition", "golden_mode", "worst_count", "failing_slices", "dump_outputs", "dump_goldens", "dump_on_fail")
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STANDARD_FIELD_NUMBER: _ClassVar[int]
    EDITION_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_MODE_FIELD_NUMBER: _ClassVar[int]
    WORST_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILING_SLICES_FIELD_NUMBER: _ClassVar[int]
    DUMP_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    DUMP_GOLDENS_FIELD_NUMBER: _ClassVar[int]
    DUMP_ON_FAIL_FIELD_NUMBER: _ClassVar[int]
    operator_package: str
    options: _execution_pb2.ExecutionOptions
    standard: str
    edition: str
    golden_mode: GoldenMode
    worst_count: int
    failing_slices: bool
    dump_outputs: bool
    dump_goldens: bool
    dump_on_fail: bool
    def __init__(self, operator_package: _Optional[str] = ..., options: _Optional[_Union[_execution_pb2.ExecutionOptions, _Mapping]] = ..., standard: _Optional[str] = ..., edition: _Optional[str] = ..., golden_mode: _Optional[_Union[GoldenMode, str]] = ..., worst_count: _Optional[int] = ..., failing_slices: bool = ..., dump_outputs: bool = ..., dump_goldens: bool = ..., dump_on_fail: bool = ...) -> None: ...

class ValidateWelcome(_message.Message):
    __slots__ = ("case_count",)
    CASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    case_count: int
    def __init__(self, case_count: _Optional[int] = ...) -> None: ...

class ValidateCase(_message.Message):
    __slots__ = ("case_id", "name", "inputs", "tolerances", "expects_refusal", "return_outputs", "outputs", "apply_rotary_pos_emb_grad", "apply_rotary_pos_emb")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCES_FIELD_NUMBER: _ClassVar[int]
    EXPECTS_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RETURN_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_GRAD_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_FIELD_NUMBER: _ClassVar[int]
    case_id: int
    name: str
    inputs: _containers.RepeatedCompositeFieldContainer[CaseInput]
    tolerances: _containers.RepeatedCompositeFieldContainer[OutputTolerance]
    expects_refusal: bool
    return_outputs: bool
    outputs: _containers.RepeatedScalarFieldContainer[str]
    apply_rotary_pos_emb_grad: _rotary_pb2.ApplyRotaryPosEmbGradAttributes
    apply_rotary_pos_emb: _rotary_pb2.ApplyRotaryPosEmbAttributes
    def __init__(self, case_id: _Optional[int] = ..., name: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[CaseInput, _Mapping]]] = ..., tolerances: _Optional[_Iterable[_Union[OutputTolerance, _Mapping]]] = ..., expects_refusal: bool = ..., return_outputs: bool = ..., outputs: _Optional[_Iterable[str]] = ..., apply_rotary_pos_emb_grad: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbGradAttributes, _Mapping]] = ..., apply_rotary_pos_emb: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbAttributes, _Mapping]] = ...) -> None: ...

class CaseInput(_message.Message):
    __slots__ = ("spec", "recipe", "client_data")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_DATA_FIELD_NUMBER: _ClassVar[int]
    spec: _tensor_pb2.TensorSpec
    recipe: Recipe
    client_data: ClientData
    def __init__(self, spec: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., recipe: _Optional[_Union[Recipe, _Mapping]] = ..., client_data: _Optional[_Union[ClientData, _Mapping]] = ...) -> None: ...

class Recipe(_message.Message):
    __slots__ = ("version", "distribution", "low", "high", "forced", "seed", "case_name")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CASE_NAME_FIELD_NUMBER: _ClassVar[int]
    version: str
    distribution: Distribution
    low: float
    high: float
    forced: _containers.RepeatedScalarFieldContainer[float]
    seed: int
    case_name: str
    def __init__(self, version: _Optional[str] = ..., distribution: _Optional[_Union[Distribution, str]] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., forced: _Optional[_Iterable[float]] = ..., seed: _Optional[int] = ..., case_name: _Optional[str] = ...) -> None: ...

class ClientData(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    def __init__(self, sha256: _Optional[bytes] = ...) -> None: ...

class OutputTolerance(_message.Message):
    __slots__ = ("output", "rtol", "ptol", "atol")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RTOL_FIELD_NUMBER: _ClassVar[int]
    PTOL_FIELD_NUMBER: _ClassVar[int]
    ATOL_FIELD_NUMBER: _ClassVar[int]
    output: str
    rtol: float
    ptol: float
    atol: float
    def __init__(self, output: _Optional[str] = ..., rtol: _Optional[float] = ..., ptol: _Optional[float] = ..., atol: _Optional[float] = ...) -> None: ...

class DataNeeded(_message.Message):
    __slots__ = ("case_id", "input_indexes")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_INDEXES_FIELD_NUMBER: _ClassVar[int]
    case_id: int
    input_indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, case_id: _Optional[int] = ..., input_indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class CaseChunk(_message.Message):
    __slots__ = ("case_id", "tensor", "tensor_index", "offset_bytes", "data")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TENSOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    case_id: int
    tensor: CaseTensor
    tensor_index: int
    offset_bytes: int
    data: bytes
    def __init__(self, case_id: _Optional[int] = ..., tensor: _Optional[_Union[CaseTensor, str]] = ..., tensor_index: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CaseVerdict(_message.Message):
    __slots__ = ("case_id", "error", "execution", "outputs", "input_digests", "generate_ns", "golden_ns", "compare_ns", "total_ns", "has_outputs", "has_goldens")
    CASE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    GENERATE_NS_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_NS_FIELD_NUMBER: _ClassVar[int]
    COMPARE_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    HAS_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    HAS_GOLDENS_FIELD_NUMBER: _ClassVar[int]
    case_id: int
    error: bytes
    execution: _execution_pb2.Execution
    outputs: _containers.RepeatedCompositeFieldContainer[OutputVerdict]
    input_digests: bytes
    generate_ns: int
    golden_ns: int
    compare_ns: int
    total_ns: int
    has_outputs: bool
    has_goldens: bool
    def __init__(self, case_id: _Optional[int] = ..., error: _Optional[bytes] = ..., execution: _Optional[_Union[_execution_pb2.Execution, _Mapping]] = ..., outputs: _Optional[_Iterable[_Union[OutputVerdict, _Mapping]]] = ..., input_digests: _Optional[bytes] = ..., generate_ns: _Optional[int] = ..., golden_ns: _Optional[int] = ..., compare_ns: _Optional[int] = ..., total_ns: _Optional[int] = ..., has_outputs: bool = ..., has_goldens: bool = ...) -> None: ...

class OutputVerdict(_message.Message):
    __slots__ = ("name", "passed", "reason", "digest", "golden_digest", "element_count", "passing_count", "max_abs_error", "mean_rel_error", "max_rel_error", "mismatch_count", "first_mismatch", "first_failing", "worst", "thresholds", "worst_elements", "relative_errors", "ulp_distances", "statistics", "heat_map", "failing_slice", "cosine_distance")
    class ThresholdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    PASSING_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_ABS_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEAN_REL_ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_REL_ERROR_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FAILING_FIELD_NUMBER: _ClassVar[int]
    WORST_FIELD_NUMBER: _ClassVar[int]
    THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    WORST_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    ULP_DISTANCES_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    HEAT_MAP_FIELD_NUMBER: _ClassVar[int]
    FAILING_SLICE_FIELD_NUMBER: _ClassVar[int]
    COSINE_DISTANCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    passed: bool
    reason: str
    digest: bytes
    golden_digest: bytes
    element_count: int
    passing_count: int
    max_abs_error: float
    mean_rel_error: float
    max_rel_error: float
    mismatch_count: int
    first_mismatch: Element
    first_failing: Element
    worst: Element
    thresholds: _containers.ScalarMap[str, float]
    worst_elements: _containers.RepeatedCompositeFieldContainer[WorstElement]
    relative_errors: Histogram
    ulp_distances: Histogram
    statistics: ErrorStatistics
    heat_map: HeatMap
    failing_slice: FailingSlice
    cosine_distance: float
    def __init__(self, name: _Optional[str] = ..., passed: bool = ..., reason: _Optional[str] = ..., digest: _Optional[bytes] = ..., golden_digest: _Optional[bytes] = ..., element_count: _Optional[int] = ..., passing_count: _Optional[int] = ..., max_abs_error: _Optional[float] = ..., mean_rel_error: _Optional[float] = ..., max_rel_error: _Optional[float] = ..., mismatch_count: _Optional[int] = ..., first_mismatch: _Optional[_Union[Element, _Mapping]] = ..., first_failing: _Optional[_Union[Element, _Mapping]] = ..., worst: _Optional[_Union[Element, _Mapping]] = ..., thresholds: _Optional[_Mapping[str, float]] = ..., worst_elements: _Optional[_Iterable[_Union[WorstElement, _Mapping]]] = ..., relative_errors: _Optional[_Union[Histogram, _Mapping]] = ..., ulp_distances: _Optional[_Union[Histogram, _Mapping]] = ..., statistics: _Optional[_Union[ErrorStatistics, _Mapping]] = ..., heat_map: _Optional[_Union[HeatMap, _Mapping]] = ..., failing_slice: _Optional[_Union[FailingSlice, _Mapping]] = ..., cosine_distance: _Optional[float] = ...) -> None: ...

class Element(_message.Message):
    __slots__ = ("index", "actual", "golden")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    actual: float
    golden: float
    def __init__(self, index: _Optional[_Iterable[int]] = ..., actual: _Optional[float] = ..., golden: _Optional[float] = ...) -> None: ...

class WorstElement(_message.Message):
    __slots__ = ("element", "ulps")
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    ULPS_FIELD_NUMBER: _ClassVar[int]
    element: Element
    ulps: int
    def __init__(self, element: _Optional[_Union[Element, _Mapping]] = ..., ulps: _Optional[int] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("exact_count", "exponents", "counts")
    EXACT_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXPONENTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    exact_count: int
    exponents: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, exact_count: _Optional[int] = ..., exponents: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class ErrorStatistics(_message.Message):
    __slots__ = ("max_rel_error", "mean_rel_error", "rmse", "small_error_count")
    MAX_REL_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEAN_REL_ERROR_FIELD_NUMBER: _ClassVar[int]
    RMSE_FIELD_NUMBER: _ClassVar[int]
    SMALL_ERROR_COUNT_FIELD_NUMBER: _ClassVar[int]
    max_rel_error: float
    mean_rel_error: float
    rmse: float
    small_error_count: int
    def __init__(self, max_rel_error: _Optional[float] = ..., mean_rel_error: _Optional[float] = ..., rmse: _Optional[float] = ..., small_error_count: _Optional[int] = ...) -> None: ...

class HeatMap(_message.Message):
    __slots__ = ("extents", "bins", "failing")
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    BINS_FIELD_NUMBER: _ClassVar[int]
    FAILING_FIELD_NUMBER: _ClassVar[int]
    extents: _containers.RepeatedScalarFieldContainer[int]
    bins: _containers.RepeatedScalarFieldContainer[int]
    failing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extents: _Optional[_Iterable[int]] = ..., bins: _Optional[_Iterable[int]] = ..., failing: _Optional[_Iterable[int]] = ...) -> None: ...

class FailingSlice(_message.Message):
    __slots__ = ("index", "actual", "golden")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_FIELD_NUMBER: _ClassVar[int]
    index: _containers.RepeatedScalarFieldContainer[int]
    actual: _containers.RepeatedScalarFieldContainer[float]
    golden: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, index: _Optional[_Iterable[int]] = ..., actual: _Optional[_Iterable[float]] = ..., golden: _Optional[_Iterable[float]] = ...) -> None: ...
