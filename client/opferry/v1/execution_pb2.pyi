from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BATCH: Priority

class ExecutionOptions(_message.Message):
    __slots__ = ("skip_contract_check", "repeat_count", "output_digests", "warmup_count", "exclusive", "deterministic", "skip_output_poison", "priority")
    SKIP_CONTRACT_CHECK_FIELD_NUMBER: _ClassVar[int]
    REPEAT_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    SKIP_OUTPUT_POISON_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    skip_contract_check: bool
    repeat_count: int
    output_digests: bool
    warmup_count: int
    exclusive: bool
    deterministic: bool
    skip_output_poison: bool
    priority: Priority
    def __init__(self, skip_contract_check: bool = ..., repeat_count: _Optional[int] = ..., output_digests: bool = ..., warmup_count: _Optional[int] = ..., exclusive: bool = ..., deterministic: bool = ..., skip_output_poison: bool = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class Execution(_message.Message):
    __slots__ = ("request_id", "worker", "device", "backend", "soc_name", "cann_version", "operator_package", "real_device", "timings", "upload_bytes", "download_bytes", "shared_memory")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    SOC_NAME_FIELD_NUMBER: _ClassVar[int]
    CANN_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_PACKAGE_FIELD_NUMBER: _ClassVar[int]
    REAL_DEVICE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    worker: str
    device: str
    backend: str
    soc_name: str
    cann_version: str
    operator_package: OperatorPackage
    real_device: bool
    timings: Timings
    upload_bytes: int
    download_bytes: int
    shared_memory: bool
    def __init__(self, request_id: _Optional[str] = ..., worker: _Optional[str] = ..., device: _Optional[str] = ..., backend: _Optional[str] = ..., soc_name: _Optional[str] = ..., cann_version: _Optional[str] = ..., operator_package: _Optional[_Union[OperatorPackage, _Mapping]] = ..., real_device: bool = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., upload_bytes: _Optional[int] = ..., download_bytes: _Optional[int] = ..., shared_memory: bool = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_ns", "upload_ns", "host_to_device_ns", "stage_one_ns", "kernel_ns", "device_to_host_ns", "download_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_NS_FIELD_NUMBER: _ClassVar[int]
    HOST_TO_DEVICE_NS_FIELD_NUMBER: _ClassVar[int]
    STAGE_ONE_NS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_NS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TO_HOST_NS_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    upload_ns: int
    host_to_device_ns: int
    stage_one_ns: int
    kernel_ns: _containers.RepeatedScalarFieldContainer[int]
    device_to_host_ns: int
    download_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., upload_ns: _Optional[int] = ..., host_to_device_ns: _Optional[int] = ..., stage_one_ns: _Optional[int] = ..., kernel_ns: _Optional[_Iterable[int]] = ..., device_to_host_ns: _Optional[int] = ..., download_ns: _Optional[int] = ...) -> None: ...

class OperatorPackage(_message.Message):
    __slots__ = ("name", "digest", "library_file", "known_answer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FILE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_ANSWER_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    library_file: str
    known_answer: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., library_file: _Optional[str] = ..., known_answer: _Optional[str] = ...) -> None: ...
