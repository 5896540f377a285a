"""The messages of the Open Inference Protocol as its clients over gRPC have them, infer's among them."""

from __future__ import annotations

from typing import Any

from ortmulti.serve import messages

__all__ = ["ALL", "message"]

_INFER = {
    "InferParameter": "bool_param=1:bool| int64_param=2:int64| string_param=3:string| double_param=4:double| "
    "uint64_param=5:uint64|",
    "InferTensorContents": "bool_contents=1:bool* int_contents=2:int32* int64_contents=3:int64* "
    "uint_contents=4:uint32* uint64_contents=5:uint64* fp32_contents=6:float* fp64_contents=7:double* "
    "bytes_contents=8:bytes*",
    "ModelInferRequest": "model_name=1:string model_version=2:string id=3:string parameters=4:InferParameter{} "
    "inputs=5:InferInputTensor* outputs=6:InferRequestedOutputTensor* raw_input_contents=7:bytes*",
    "ModelInferRequest.InferInputTensor": "name=1:string datatype=2:string shape=3:int64* "
    "parameters=4:InferParameter{} contents=5:InferTensorContents",
    "ModelInferRequest.InferRequestedOutputTensor": "name=1:string parameters=2:InferParameter{}",
    "ModelInferResponse": "model_name=1:string model_version=2:string id=3:string parameters=4:InferParameter{} "
    "outputs=5:InferOutputTensor* raw_output_contents=6:bytes*",
    "ModelInferResponse.InferOutputTensor": "name=1:string datatype=2:string shape=3:int64* "
    "parameters=4:InferParameter{} contents=5:InferTensorContents",
    "ModelStreamInferResponse": "error_message=1:string infer_response=2:ModelInferResponse",
}
ALL = {**messages.MESSAGES, **_INFER}
_POOL = messages.describe(ALL)


def message(name: str) -> Any:
    """Return the class of a message, by its name without the package."""
    return messages.message(name, _POOL)
