from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListRequestsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequestsResponse(_message.Message):
    __slots__ = ("server_id", "requests", "device_leases")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_LEASES_FIELD_NUMBER: _ClassVar[int]
    server_id: str
    requests: _containers.RepeatedCompositeFieldContainer[RequestInfo]
    device_leases: _containers.RepeatedCompositeFieldContainer[DeviceLeaseInfo]
    def __init__(self, server_id: _Optional[str] = ..., requests: _Optional[_Iterable[_Union[RequestInfo, _Mapping]]] = ..., device_leases: _Optional[_Iterable[_Union[DeviceLeaseInfo, _Mapping]]] = ...) -> None: ...

class RequestInfo(_message.Message):
    __slots__ = ("request_id", "tenant", "operator", "operator_package", "state", "position", "expected_wait_ms", "age_ms", "worker", "priority", "data_bytes", "stream_id")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RequestInfo.State]
        STATE_WAITING_FOR_MEMORY: _ClassVar[RequestInfo.State]
        STATE_UPLOADING: _ClassVar[RequestInfo.State]
        STATE_WAITING_FOR_DEVICE: _ClassVar[RequestInfo.State]
        STATE_RUNNING: _ClassVar[RequestInfo.State]
    STATE_UNSPECIFIED: RequestInfo.State
    STATE_WAITING_FOR_MEMORY: RequestInfo.State
    STATE_UPLOADING: RequestInfo.State
    STATE_WAITING_FOR_DEVICE: RequestInfo.State
    STATE_RUNNING: RequestInfo.State
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    operator: str
    operator_package: str
    state: RequestInfo.State
    position: int
    expected_wait_ms: int
    age_ms: int
    worker: str
    priority: str
    data_bytes: int
    stream_id: str
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., operator: _Optional[str] = ..., operator_package: _Optional[str] = ..., state: _Optional[_Union[RequestInfo.State, str]] = ..., position: _Optional[int] = ..., expected_wait_ms: _Optional[int] = ..., age_ms: _Optional[int] = ..., worker: _Optional[str] = ..., priority: _Optional[str] = ..., data_bytes: _Optional[int] = ..., stream_id: _Optional[str] = ...) -> None: ...

class DeviceLeaseInfo(_message.Message):
    __slots__ = ("tenant", "worker", "left_ms", "request_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    worker: str
    left_ms: int
    request_id: str
    def __init__(self, tenant: _Optional[str] = ..., worker: _Optional[str] = ..., left_ms: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class CancelRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelRequestResponse(_message.Message):
    __slots__ = ("running",)
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    running: bool
    def __init__(self, running: bool = ...) -> None: ...

class LeaseDeviceRequest(_message.Message):
    __slots__ = ("device_kind", "duration_ms")
    DEVICE_KIND_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    device_kind: str
    duration_ms: int
    def __init__(self, device_kind: _Optional[str] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class LeaseDeviceResponse(_message.Message):
    __slots__ = ("position", "token", "worker", "device", "soc_name", "left_ms")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    position: int
    token: str
    worker: str
    device: str
    soc_name: str
    left_ms: int
    def __init__(self, position: _Optional[int] = ..., token: _Optional[str] = ..., worker: _Optional[str] = ..., device: _Optional[str] = ..., soc_name: _Optional[str] = ..., left_ms: _Optional[int] = ...) -> None: ...
