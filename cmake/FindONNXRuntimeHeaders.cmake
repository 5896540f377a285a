# Finds the headers of ONNX Runtime's C and C++ API: see OrtmultiFindHeaders. ONNXRuntimeHeaders_VERSION is the API's number,
# 21 for release 1.21.

include(OrtmultiFindHeaders)
ortmulti_find_headers(
  ONNXRuntimeHeaders
  VARIABLE ONNXRUNTIME_INCLUDE_DIR
  HEADERS onnxruntime_cxx_api.h onnxruntime_c_api.h
  VERSION_FILES onnxruntime_c_api.h
  VERSION_MACROS ORT_API_VERSION
  SUFFIXES onnxruntime onnxruntime/core/session
  PACKAGE libonnxruntime-dev
  PACKAGE_DIR usr/include/onnxruntime
  TARGET ONNXRuntime::headers
  DEFINITIONS ORT_API_MANUAL_INIT # it is looked up in the library that was opened, not at static initialization
  SOURCES "include/ of an archive from ONNX Runtime's releases page"
)
