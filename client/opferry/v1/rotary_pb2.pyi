from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RotaryMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROTARY_MODE_UNSPECIFIED: _ClassVar[RotaryMode]
    ROTARY_MODE_HALF: _ClassVar[RotaryMode]
    ROTARY_MODE_INTERLEAVE: _ClassVar[RotaryMode]
    ROTARY_MODE_QUARTER: _ClassVar[RotaryMode]

class Layout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAYOUT_UNSPECIFIED: _ClassVar[Layout]
    LAYOUT_BSND: _ClassVar[Layout]
    LAYOUT_SBND: _ClassVar[Layout]
    LAYOUT_BNSD: _ClassVar[Layout]
    LAYOUT_TND: _ClassVar[Layout]
ROTARY_MODE_UNSPECIFIED: RotaryMode
ROTARY_MODE_HALF: RotaryMode
ROTARY_MODE_INTERLEAVE: RotaryMode
ROTARY_MODE_QUARTER: RotaryMode
LAYOUT_UNSPECIFIED: Layout
LAYOUT_BSND: Layout
LAYOUT_SBND: Layout
LAYOUT_BNSD: Layout
LAYOUT_TND: Layout

class ApplyRotaryPosEmbGradAttributes(_message.Message):
    __slots__ = ("rotary_mode", "layout")
    ROTARY_MODE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    rotary_mode: RotaryMode
    layout: Layout
    def __init__(self, rotary_mode: _Optional[_Union[RotaryMode, str]] = ..., layout: _Optional[_Union[Layout, str]] = ...) -> None: ...

class ApplyRotaryPosEmbAttributes(_message.Message):
    __slots__ = ("rotary_mode", "layout")
    ROTARY_MODE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    rotary_mode: RotaryMode
    layout: Layout
    def __init__(self, rotary_mode: _Optional[_Union[RotaryMode, str]] = ..., layout: _Optional[_Union[Layout, str]] = ...) -> None: ...
