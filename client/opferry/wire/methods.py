"""The service's methods as the schema describes them, so that no stub is written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import message_factory
from google.protobuf.message import Message

from opferry.v1 import operator_service_pb2
from opferry.wire.whole import carries_tensors

_SERVICE = operator_service_pb2.DESCRIPTOR.services_by_name["OperatorService"]

SERVICE_NAME: str = _SERVICE.full_name
"""The service's full name, as health checks and reflection know it."""


@dataclass(frozen=True)
class Method:
    """One remote call."""

    name: str
    """Its name in the schema."""
    path: str
    """Its path on the wire, for example "/opferry.v1.OperatorService/Plan"."""
    request: type[Message]
    """The class of its request."""
    response: type[Message]
    """The class of its response."""
    streaming: bool
    """Whether it is a bidirectional stream."""
    as_bytes: bool
    """Whether gRPC leaves its messages as they are, and `wire` reads and writes them: the frames of
    streams, and messages that carry whole tensors."""


methods: Mapping[str, Method] = {
    method.name: Method(
        name=method.name,
        path=f"/{_SERVICE.full_name}/{method.name}",
        request=message_factory.GetMessageClass(method.input_type),
        response=message_factory.GetMessageClass(method.output_type),
        streaming=method.client_streaming,
        as_bytes=method.client_streaming
        or carries_tensors(message_factory.GetMessageClass(method.input_type)),
    )
    for method in _SERVICE.methods
}
"""Every method by name."""
