# Finds the headers of ONNX Runtime's C and C++ API; the library itself is opened at run time and not needed here.
#
# Searched in this order:
#   1. ONNXRUNTIME_INCLUDE_DIR, a CMake variable or an environment variable: the folder of onnxruntime_cxx_api.h;
#   2. the system's (Debian's package libonnxruntime-dev, or /usr/local);
#   3. libonnxruntime-dev of ORTMULTI_DEBIAN_SUITE (trixie), unpacked below a cache folder: see FetchDebianPackage.
#
# Defines ONNXRuntimeHeaders_FOUND, ONNXRuntimeHeaders_INCLUDE_DIR, ONNXRuntimeHeaders_VERSION (the API's number, 21 for
# release 1.21) and the target ONNXRuntime::headers.

include(FetchDebianPackage)

set(ONNXRUNTIME_INCLUDE_DIR "" CACHE PATH "Folder of onnxruntime_cxx_api.h; empty to search for it")
set(_ort_reason "")

function(_ort_headers_version dir out)
  set(${out} "" PARENT_SCOPE)
  if(EXISTS "${dir}/onnxruntime_cxx_api.h" AND EXISTS "${dir}/onnxruntime_c_api.h")
    file(STRINGS "${dir}/onnxruntime_c_api.h" line REGEX "^#define ORT_API_VERSION [0-9]+" LIMIT_COUNT 1)
    if(line MATCHES "([0-9]+)$")
      set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# What was named explicitly is taken or refused, never replaced by something else.
set(_ort_dir "${ONNXRUNTIME_INCLUDE_DIR}")
if(NOT _ort_dir)
  set(_ort_dir "$ENV{ONNXRUNTIME_INCLUDE_DIR}")
endif()
if(_ort_dir)
  _ort_headers_version("${_ort_dir}" ONNXRuntimeHeaders_VERSION)
  if(NOT ONNXRuntimeHeaders_VERSION)
    set(_ort_reason "ONNXRUNTIME_INCLUDE_DIR is ${_ort_dir}, which has no onnxruntime_cxx_api.h and onnxruntime_c_api.h.")
  endif()
else()
  find_path(
    _ort_system_dir onnxruntime_cxx_api.h
    PATH_SUFFIXES onnxruntime onnxruntime/core/session
    NO_CACHE
  )
  if(_ort_system_dir)
    _ort_headers_version("${_ort_system_dir}" ONNXRuntimeHeaders_VERSION)
    if(ONNXRuntimeHeaders_VERSION AND NOT ONNXRuntimeHeaders_VERSION LESS "${ONNXRuntimeHeaders_FIND_VERSION}")
      set(_ort_dir "${_ort_system_dir}")
    endif()
  endif()
  if(NOT _ort_dir)
    ortmulti_fetch_debian_package(libonnxruntime-dev "${ORTMULTI_DEBIAN_SUITE}" _ort_package _ort_reason)
    if(_ort_package)
      set(_ort_dir "${_ort_package}/usr/include/onnxruntime")
    endif()
    _ort_headers_version("${_ort_dir}" ONNXRuntimeHeaders_VERSION)
  endif()
endif()

set(ONNXRuntimeHeaders_INCLUDE_DIR "")
if(ONNXRuntimeHeaders_VERSION)
  set(ONNXRuntimeHeaders_INCLUDE_DIR "${_ort_dir}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  ONNXRuntimeHeaders
  REQUIRED_VARS ONNXRuntimeHeaders_INCLUDE_DIR
  VERSION_VAR ONNXRuntimeHeaders_VERSION
  REASON_FAILURE_MESSAGE
    "\n${_ort_reason}\nThe ONNX Runtime C++ API headers (API ${ONNXRuntimeHeaders_FIND_VERSION} or newer) can come from any of:\n\
  - a folder of your own: set ONNXRUNTIME_INCLUDE_DIR (environment or -D) to the one that holds onnxruntime_cxx_api.h,\n\
    for example include/ of an archive from ONNX Runtime's releases page\n\
  - the system: apt-get install libonnxruntime-dev (Debian 13 or newer)\n\
  - on Debian, as any user: tools/fetch_debian_package.sh libonnxruntime-dev ${ORTMULTI_DEBIAN_SUITE} DIR, which the build\n\
    has just tried by itself, then ONNXRUNTIME_INCLUDE_DIR=DIR/usr/include/onnxruntime\n"
)

if(ONNXRuntimeHeaders_FOUND AND NOT TARGET ONNXRuntime::headers)
  add_library(ONNXRuntime::headers INTERFACE IMPORTED)
  # The API is looked up in the library that was opened, not at static initialization.
  set_target_properties(
    ONNXRuntime::headers
    PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${ONNXRuntimeHeaders_INCLUDE_DIR}"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${ONNXRuntimeHeaders_INCLUDE_DIR}"
      INTERFACE_COMPILE_DEFINITIONS ORT_API_MANUAL_INIT
  )
endif()
