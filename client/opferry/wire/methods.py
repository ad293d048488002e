"""The service's methods as the schema describes them, so that no stub is written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from opferry.v1 import farm_service_pb2, operator_service_pb2
from opferry.wire.whole import carries_tensors

_SERVICE = operator_service_pb2.DESCRIPTOR.services_by_name["OperatorService"]
_FARM_SERVICE = farm_service_pb2.DESCRIPTOR.services_by_name["FarmService"]

SERVICE_NAME: str = _SERVICE.full_name
"""The service's full name, as health checks and reflection know it."""

FARM_SERVICE_NAME: str = _FARM_SERVICE.full_name
"""The farm service's full name."""


DEVICE_LEASE_KEY = "x-opferry-device-lease"
"""The metadata in which a request carries the token of the lease of a device."""


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
    replies: bool
    """Whether one request has a stream of responses."""
    as_bytes: bool
    """Whether gRPC leaves its messages as they are, and `wire` reads and writes them: the frames of
    streams, and messages that carry whole tensors."""


def _methods_of(service: ServiceDescriptor) -> Mapping[str, Method]:
    """Return a service's methods by name."""
    return {
        method.name: Method(
            name=method.name,
            path=f"/{service.full_name}/{method.name}",
            request=message_factory.GetMessageClass(method.input_type),
            response=message_factory.GetMessageClass(method.output_type),
            streaming=method.client_streaming,
            replies=method.server_streaming and not method.client_streaming,
            as_bytes=method.client_streaming
            or carries_tensors(message_factory.GetMessageClass(method.input_type)),
        )
        for method in service.methods
    }


methods = _methods_of(_SERVICE)
"""Every method of the operator service by name."""

farm_methods = _methods_of(_FARM_SERVICE)
"""Every method of the farm service by name."""

all_methods = {**methods, **farm_methods}
"""Every method of both by name."""
