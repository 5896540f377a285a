"""The messages of the Open Inference Protocol for gRPC that Python answers, in a pool of descriptors of their own.

In protobuf's default pool the same names would clash with those of tritonclient and kserve in one process. A table has
each message's fields: their numbers are the protocol's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["MESSAGES", "describe", "message"]

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "inference"

# "name=number:type"; "*" repeated, "{}" a map with this type of values and strings as keys, "|" one of a choice.
MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live=1:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready=1:bool",
    "ModelReadyRequest": "name=1:string version=2:string",
    "ModelReadyResponse": "ready=1:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name=1:string version=2:string extensions=3:string*",
    "ModelMetadataRequest": "name=1:string version=2:string",
    "ModelMetadataResponse": "name=1:string versions=2:string* platform=3:string inputs=4:TensorMetadata* "
    "outputs=5:TensorMetadata*",
    "ModelMetadataResponse.TensorMetadata": "name=1:string datatype=2:string shape=3:int64*",
    "ModelConfigRequest": "name=1:string version=2:string",
    "ModelConfigResponse": "config=1:ModelConfig",
    "ModelConfig": "name=1:string platform=2:string backend=17:string max_batch_size=4:int32 input=5:ModelInput* "
    "output=6:ModelOutput* instance_group=7:ModelInstanceGroup* default_model_filename=8:string "
    "dynamic_batching=11:ModelDynamicBatching",
    "ModelInput": "name=1:string data_type=2:DataType dims=4:int64*",
    "ModelOutput": "name=1:string data_type=2:DataType dims=3:int64*",
    "ModelInstanceGroup": "name=1:string kind=4:Kind count=2:int32 gpus=3:int32*",
    "ModelDynamicBatching": "preferred_batch_size=1:int32* max_queue_delay_microseconds=2:uint64",
    "ModelStatisticsRequest": "name=1:string version=2:string",
    "ModelStatisticsResponse": "model_stats=1:ModelStatistics*",
    "ModelStatistics": "name=1:string version=2:string last_inference=3:uint64 inference_count=4:uint64 "
    "execution_count=5:uint64 inference_stats=6:InferStatistics",
    "InferStatistics": "success=1:StatisticDuration fail=2:StatisticDuration queue=3:StatisticDuration "
    "compute_input=4:StatisticDuration compute_infer=5:StatisticDuration compute_output=6:StatisticDuration "
    "cache_hit=7:StatisticDuration cache_miss=8:StatisticDuration",
    "StatisticDuration": "count=1:uint64 ns=2:uint64",
    "RepositoryIndexRequest": "repository_name=1:string ready=2:bool",
    "RepositoryIndexResponse": "models=1:ModelIndex*",
    "RepositoryIndexResponse.ModelIndex": "name=1:string version=2:string state=3:string reason=4:string",
    "RepositoryModelLoadRequest": "repository_name=1:string model_name=2:string "
    "parameters=3:ModelRepositoryParameter{}",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name=1:string model_name=2:string "
    "parameters=3:ModelRepositoryParameter{}",
    "RepositoryModelUnloadResponse": "",
    "ModelRepositoryParameter": "bool_param=1:bool| int64_param=2:int64| string_param=3:string| bytes_param=4:bytes|",
}
_ENUMS = {
    "DataType": "INVALID BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING BF16",
    "Kind": "AUTO GPU CPU MODEL",
}
_PREFIXES = {"DataType": "TYPE_", "Kind": "KIND_"}


def _add_field(to: descriptor_pb2.DescriptorProto, text: str) -> None:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(":")
    plain = kind.rstrip("*{}|")
    field = to.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.endswith("*"):
        field.label = _Field.LABEL_REPEATED
    if kind.endswith("|"):
        if not to.oneof_decl:
            to.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if kind.endswith("{}"):
        entry = to.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "key=1:string")
        _add_field(entry, f"value=2:{plain}")
        field.label, field.type, field.type_name = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE, entry.name
    elif plain in _ENUMS:
        field.type, field.type_name = _Field.TYPE_ENUM, plain
    elif plain[0].isupper():
        field.type, field.type_name = _Field.TYPE_MESSAGE, plain
    else:
        field.type = getattr(_Field, f"TYPE_{plain.upper()}")


def describe(messages: Mapping[str, str]) -> descriptor_pool.DescriptorPool:
    """Make a pool of messages, by their tables of fields."""
    file = descriptor_pb2.FileDescriptorProto(name="ortmulti/serve.proto", package=_PACKAGE, syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=_PREFIXES[name] + value, number=number)
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for name, fields in messages.items():
        outer, _, inner = name.rpartition(".")
        made[name] = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        for field in fields.split():
            _add_field(made[name], field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = describe(MESSAGES)


def message(name: str, pool: descriptor_pool.DescriptorPool = _POOL) -> Any:
    """Return the class of a message, by its name without the package."""
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
