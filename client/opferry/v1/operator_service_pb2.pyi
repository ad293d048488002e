from opferry.v1 import execution_pb2 as _execution_pb2
from opferry.v1 import rotary_pb2 as _rotary_pb2
from opferry.v1 import tensor_pb2 as _tensor_pb2
from opferry.v1 import validation_pb2 as _validation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: ExecuteHeader
    chunk: _tensor_pb2.TensorChunk
    def __init__(self, header: _Optional[_Union[ExecuteHeader, _Mapping]] = ..., chunk: _Optional[_Union[_tensor_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class ExecuteHeader(_message.Message):
    __slots__ = ("operator_package", "inputs", "options", "arena", "apply_rotary_pos_emb_grad", "apply_rotary_pos_emb")
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_GRAD_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_FIELD_NUMBER: _ClassVar[int]
    operator_package: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    options: _execution_pb2.ExecutionOptions
    arena: SharedArena
    apply_rotary_pos_emb_grad: _rotary_pb2.ApplyRotaryPosEmbGradAttributes
    apply_rotary_pos_emb: _rotary_pb2.ApplyRotaryPosEmbAttributes
    def __init__(self, operator_package: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., options: _Optional[_Union[_execution_pb2.ExecutionOptions, _Mapping]] = ..., arena: _Optional[_Union[SharedArena, _Mapping]] = ..., apply_rotary_pos_emb_grad: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbGradAttributes, _Mapping]] = ..., apply_rotary_pos_emb: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbAttributes, _Mapping]] = ...) -> None: ...

class SharedArena(_message.Message):
    __slots__ = ("token", "offset_bytes", "size_bytes")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    offset_bytes: int
    size_bytes: int
    def __init__(self, token: _Optional[bytes] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ExecuteSharedRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ExecuteHeader
    def __init__(self, header: _Optional[_Union[ExecuteHeader, _Mapping]] = ...) -> None: ...

class ExecuteSharedResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: ExecuteResult
    def __init__(self, result: _Optional[_Union[ExecuteResult, _Mapping]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("progress", "result", "chunk")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    progress: ExecuteProgress
    result: ExecuteResult
    chunk: _tensor_pb2.TensorChunk
    def __init__(self, progress: _Optional[_Union[ExecuteProgress, _Mapping]] = ..., result: _Optional[_Union[ExecuteResult, _Mapping]] = ..., chunk: _Optional[_Union[_tensor_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class ExecuteProgress(_message.Message):
    __slots__ = ("state", "position", "request_id", "expected_wait_ms")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[ExecuteProgress.State]
        STATE_QUEUED: _ClassVar[ExecuteProgress.State]
        STATE_UPLOADING: _ClassVar[ExecuteProgress.State]
        STATE_RUNNING: _ClassVar[ExecuteProgress.State]
    STATE_UNSPECIFIED: ExecuteProgress.State
    STATE_QUEUED: ExecuteProgress.State
    STATE_UPLOADING: ExecuteProgress.State
    STATE_RUNNING: ExecuteProgress.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    state: ExecuteProgress.State
    position: int
    request_id: str
    expected_wait_ms: int
    def __init__(self, state: _Optional[_Union[ExecuteProgress.State, str]] = ..., position: _Optional[int] = ..., request_id: _Optional[str] = ..., expected_wait_ms: _Optional[int] = ...) -> None: ...

class ExecuteResult(_message.Message):
    __slots__ = ("outputs", "execution")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    execution: _execution_pb2.Execution
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., execution: _Optional[_Union[_execution_pb2.Execution, _Mapping]] = ...) -> None: ...

class ApplyRotaryPosEmbGradRequest(_message.Message):
    __slots__ = ("operator_package", "options", "attributes", "grad_query_embed", "grad_key_embed", "cos", "sin", "query", "key")
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GRAD_QUERY_EMBED_FIELD_NUMBER: _ClassVar[int]
    GRAD_KEY_EMBED_FIELD_NUMBER: _ClassVar[int]
    COS_FIELD_NUMBER: _ClassVar[int]
    SIN_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    operator_package: str
    options: _execution_pb2.ExecutionOptions
    attributes: _rotary_pb2.ApplyRotaryPosEmbGradAttributes
    grad_query_embed: _tensor_pb2.Tensor
    grad_key_embed: _tensor_pb2.Tensor
    cos: _tensor_pb2.Tensor
    sin: _tensor_pb2.Tensor
    query: _tensor_pb2.Tensor
    key: _tensor_pb2.Tensor
    def __init__(self, operator_package: _Optional[str] = ..., options: _Optional[_Union[_execution_pb2.ExecutionOptions, _Mapping]] = ..., attributes: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbGradAttributes, _Mapping]] = ..., grad_query_embed: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., grad_key_embed: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., cos: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., sin: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., query: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., key: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class ApplyRotaryPosEmbGradResponse(_message.Message):
    __slots__ = ("execution", "grad_query", "grad_key", "grad_cos", "grad_sin")
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    GRAD_QUERY_FIELD_NUMBER: _ClassVar[int]
    GRAD_KEY_FIELD_NUMBER: _ClassVar[int]
    GRAD_COS_FIELD_NUMBER: _ClassVar[int]
    GRAD_SIN_FIELD_NUMBER: _ClassVar[int]
    execution: _execution_pb2.Execution
    grad_query: _tensor_pb2.Tensor
    grad_key: _tensor_pb2.Tensor
    grad_cos: _tensor_pb2.Tensor
    grad_sin: _tensor_pb2.Tensor
    def __init__(self, execution: _Optional[_Union[_execution_pb2.Execution, _Mapping]] = ..., grad_query: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., grad_key: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., grad_cos: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., grad_sin: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class ApplyRotaryPosEmbRequest(_message.Message):
    __slots__ = ("operator_package", "options", "attributes", "query", "key", "cos", "sin")
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    COS_FIELD_NUMBER: _ClassVar[int]
    SIN_FIELD_NUMBER: _ClassVar[int]
    operator_package: str
    options: _execution_pb2.ExecutionOptions
    attributes: _rotary_pb2.ApplyRotaryPosEmbAttributes
    query: _tensor_pb2.Tensor
    key: _tensor_pb2.Tensor
    cos: _tensor_pb2.Tensor
    sin: _tensor_pb2.Tensor
    def __init__(self, operator_package: _Optional[str] = ..., options: _Optional[_Union[_execution_pb2.ExecutionOptions, _Mapping]] = ..., attributes: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbAttributes, _Mapping]] = ..., query: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., key: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., cos: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., sin: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class ApplyRotaryPosEmbResponse(_message.Message):
    __slots__ = ("execution", "query_out", "key_out")
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    QUERY_OUT_FIELD_NUMBER: _ClassVar[int]
    KEY_OUT_FIELD_NUMBER: _ClassVar[int]
    execution: _execution_pb2.Execution
    query_out: _tensor_pb2.Tensor
    key_out: _tensor_pb2.Tensor
    def __init__(self, execution: _Optional[_Union[_execution_pb2.Execution, _Mapping]] = ..., query_out: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., key_out: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class ExecuteManyRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[ManyCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[ManyCall, _Mapping]]] = ...) -> None: ...

class ManyCall(_message.Message):
    __slots__ = ("call_id", "apply_rotary_pos_emb_grad", "apply_rotary_pos_emb")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_GRAD_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    apply_rotary_pos_emb_grad: ApplyRotaryPosEmbGradRequest
    apply_rotary_pos_emb: ApplyRotaryPosEmbRequest
    def __init__(self, call_id: _Optional[int] = ..., apply_rotary_pos_emb_grad: _Optional[_Union[ApplyRotaryPosEmbGradRequest, _Mapping]] = ..., apply_rotary_pos_emb: _Optional[_Union[ApplyRotaryPosEmbRequest, _Mapping]] = ...) -> None: ...

class ExecuteManyResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ManyResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ManyResult, _Mapping]]] = ...) -> None: ...

class ManyResult(_message.Message):
    __slots__ = ("call_id", "error", "apply_rotary_pos_emb_grad", "apply_rotary_pos_emb")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_GRAD_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    error: bytes
    apply_rotary_pos_emb_grad: ApplyRotaryPosEmbGradResponse
    apply_rotary_pos_emb: ApplyRotaryPosEmbResponse
    def __init__(self, call_id: _Optional[int] = ..., error: _Optional[bytes] = ..., apply_rotary_pos_emb_grad: _Optional[_Union[ApplyRotaryPosEmbGradResponse, _Mapping]] = ..., apply_rotary_pos_emb: _Optional[_Union[ApplyRotaryPosEmbResponse, _Mapping]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("operator_package", "inputs", "apply_rotary_pos_emb_grad", "apply_rotary_pos_emb")
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_GRAD_FIELD_NUMBER: _ClassVar[int]
    APPLY_ROTARY_POS_EMB_FIELD_NUMBER: _ClassVar[int]
    operator_package: str
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    apply_rotary_pos_emb_grad: _rotary_pb2.ApplyRotaryPosEmbGradAttributes
    apply_rotary_pos_emb: _rotary_pb2.ApplyRotaryPosEmbAttributes
    def __init__(self, operator_package: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., apply_rotary_pos_emb_grad: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbGradAttributes, _Mapping]] = ..., apply_rotary_pos_emb: _Optional[_Union[_rotary_pb2.ApplyRotaryPosEmbAttributes, _Mapping]] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("outputs", "template", "tiling_key", "broadcast_axes", "workspace_bytes", "total_bytes", "request_id", "device_workspace_bytes", "operator_package")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TILING_KEY_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_AXES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    template: str
    tiling_key: int
    broadcast_axes: _containers.RepeatedScalarFieldContainer[int]
    workspace_bytes: int
    total_bytes: int
    request_id: str
    device_workspace_bytes: int
    operator_package: _execution_pb2.OperatorPackage
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., template: _Optional[str] = ..., tiling_key: _Optional[int] = ..., broadcast_axes: _Optional[_Iterable[int]] = ..., workspace_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., request_id: _Optional[str] = ..., device_workspace_bytes: _Optional[int] = ..., operator_package: _Optional[_Union[_execution_pb2.OperatorPackage, _Mapping]] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("opferry_version", "backend", "real_device", "serving", "operators", "operator_packages", "workers", "limits", "versions", "reference_kernel", "lease_socket", "server_id", "tenant", "role")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    OPFERRY_VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    REAL_DEVICE_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_PACKAGES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_KERNEL_FIELD_NUMBER: _ClassVar[int]
    LEASE_SOCKET_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    opferry_version: str
    backend: str
    real_device: bool
    serving: bool
    operators: _containers.RepeatedScalarFieldContainer[str]
    operator_packages: _containers.RepeatedCompositeFieldContainer[_execution_pb2.OperatorPackage]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    limits: ServerLimits
    versions: _containers.ScalarMap[str, str]
    reference_kernel: str
    lease_socket: str
    server_id: str
    tenant: str
    role: str
    def __init__(self, opferry_version: _Optional[str] = ..., backend: _Optional[str] = ..., real_device: bool = ..., serving: bool = ..., operators: _Optional[_Iterable[str]] = ..., operator_packages: _Optional[_Iterable[_Union[_execution_pb2.OperatorPackage, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., limits: _Optional[_Union[ServerLimits, _Mapping]] = ..., versions: _Optional[_Mapping[str, str]] = ..., reference_kernel: _Optional[str] = ..., lease_socket: _Optional[str] = ..., server_id: _Optional[str] = ..., tenant: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("name", "device", "ready", "running_count", "restart_count", "quarantined", "trouble", "operator_package")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    device: str
    ready: bool
    running_count: int
    restart_count: int
    quarantined: bool
    trouble: str
    operator_package: str
    def __init__(self, name: _Optional[str] = ..., device: _Optional[str] = ..., ready: bool = ..., running_count: _Optional[int] = ..., restart_count: _Optional[int] = ..., quarantined: bool = ..., trouble: _Optional[str] = ..., operator_package: _Optional[str] = ...) -> None: ...

class ServerLimits(_message.Message):
    __slots__ = ("message_bytes", "unary_bytes", "tensor_bytes", "request_bytes", "memory_bytes", "queue_count", "tensor_count", "rank_count", "stream_count", "repeat_count", "stream_idle_ms", "queue_ms", "run_ms", "name_bytes", "idle_memory_bytes", "call_count", "case_count", "kept_bytes", "client_kept_bytes", "leased_bytes", "client_leased_bytes")
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TENSOR_COUNT_FIELD_NUMBER: _ClassVar[int]
    RANK_COUNT_FIELD_NUMBER: _ClassVar[int]
    STREAM_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPEAT_COUNT_FIELD_NUMBER: _ClassVar[int]
    STREAM_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_MS_FIELD_NUMBER: _ClassVar[int]
    NAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CALL_COUNT_FIELD_NUMBER: _ClassVar[int]
    CASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_LEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    message_bytes: int
    unary_bytes: int
    tensor_bytes: int
    request_bytes: int
    memory_bytes: int
    queue_count: int
    tensor_count: int
    rank_count: int
    stream_count: int
    repeat_count: int
    stream_idle_ms: int
    queue_ms: int
    run_ms: int
    name_bytes: int
    idle_memory_bytes: int
    call_count: int
    case_count: int
    kept_bytes: int
    client_kept_bytes: int
    leased_bytes: int
    client_leased_bytes: int
    def __init__(self, message_bytes: _Optional[int] = ..., unary_bytes: _Optional[int] = ..., tensor_bytes: _Optional[int] = ..., request_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., queue_count: _Optional[int] = ..., tensor_count: _Optional[int] = ..., rank_count: _Optional[int] = ..., stream_count: _Optional[int] = ..., repeat_count: _Optional[int] = ..., stream_idle_ms: _Optional[int] = ..., queue_ms: _Optional[int] = ..., run_ms: _Optional[int] = ..., name_bytes: _Optional[int] = ..., idle_memory_bytes: _Optional[int] = ..., call_count: _Optional[int] = ..., case_count: _Optional[int] = ..., kept_bytes: _Optional[int] = ..., client_kept_bytes: _Optional[int] = ..., leased_bytes: _Optional[int] = ..., client_leased_bytes: _Optional[int] = ...) -> None: ...

class GetErrorTextRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GetErrorTextResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...
