"""Messages to vocabulary and back: the only place that knows both, for client and server alike."""

from opferry.wire.attributes import attributes_message
from opferry.wire.calls import (
    call_from_header,
    call_from_plan_request,
    call_from_unary,
    check_data,
    header_message,
    plan_request,
    region_from_header,
    unary_request,
)
from opferry.wire.frames import (
    CHUNK_BYTES,
    Chunk,
    chunk_bytes,
    chunk_frame,
    read_request_frame,
    read_response_frame,
)
from opferry.wire.methods import (
    DEVICE_LEASE_KEY,
    FARM_SERVICE_NAME,
    SERVICE_NAME,
    Method,
    all_methods,
    farm_methods,
    methods,
)
from opferry.wire.replies import (
    execution_from_message,
    execution_message,
    plan_from_response,
    plan_response,
    result_message,
    server_info_from_message,
    server_info_message,
)
from opferry.wire.specs import (
    refuse_unknown_fields,
    spec_from_message,
    spec_message,
    tensor_without_data,
)
from opferry.wire.status import problem_from_status, status_from_problem
from opferry.wire.whole import Parted, Unfilled, joined, part, part_message, read, take_data

__all__ = [
    "CHUNK_BYTES",
    "DEVICE_LEASE_KEY",
    "FARM_SERVICE_NAME",
    "SERVICE_NAME",
    "Chunk",
    "Method",
    "Parted",
    "Unfilled",
    "all_methods",
    "attributes_message",
    "call_from_header",
    "call_from_plan_request",
    "call_from_unary",
    "check_data",
    "chunk_bytes",
    "chunk_frame",
    "execution_from_message",
    "execution_message",
    "farm_methods",
    "header_message",
    "joined",
    "methods",
    "part",
    "part_message",
    "plan_from_response",
    "plan_request",
    "plan_response",
    "problem_from_status",
    "read",
    "read_request_frame",
    "read_response_frame",
    "refuse_unknown_fields",
    "region_from_header",
    "result_message",
    "server_info_from_message",
    "server_info_message",
    "spec_from_message",
    "spec_message",
    "status_from_problem",
    "take_data",
    "tensor_without_data",
    "unary_request",
]
