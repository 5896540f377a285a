# Finds cuda.h and cudaTypedefs.h: types and signatures of the CUDA driver, which itself is opened at run time.
#
# Searched in this order:
#   1. CUDA_DRIVER_INCLUDE_DIR, a CMake variable or an environment variable;
#   2. the Python package nvidia-cuda-runtime, in the interpreter that builds (a build requirement of ours);
#   3. a CUDA toolkit: CUDA_HOME, CUDA_PATH, /usr/local/cuda.
#
# Defines CUDADriverHeaders_FOUND, CUDADriverHeaders_INCLUDE_DIR, CUDADriverHeaders_VERSION (13.0) and the target
# CUDADriver::headers.

set(CUDA_DRIVER_INCLUDE_DIR "" CACHE PATH "Folder of cuda.h and cudaTypedefs.h; empty to search for it")

function(_cuda_headers_in_python out)
  set(${out} "" PARENT_SCOPE)
  find_package(Python 3.11 COMPONENTS Interpreter QUIET)
  if(NOT Python_EXECUTABLE)
    return()
  endif()
  # sys.path, not the site-packages folder: an isolated build puts its requirements elsewhere. Newest layout first.
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import pathlib, sys\n\
found = [d for p in sys.path for n in ('cu*', 'cuda_runtime') for d in sorted(pathlib.Path(p or '.').glob(f'nvidia/{n}/include'), reverse=True) if (d / 'cudaTypedefs.h').is_file()]\n\
print(found[0] if found else '')"
    OUTPUT_VARIABLE dir
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
  )
  set(${out} "${dir}" PARENT_SCOPE)
endfunction()

set(_cuda_dir "${CUDA_DRIVER_INCLUDE_DIR}")
if(NOT _cuda_dir)
  set(_cuda_dir "$ENV{CUDA_DRIVER_INCLUDE_DIR}")
endif()
if(NOT _cuda_dir)
  _cuda_headers_in_python(_cuda_dir)
endif()
if(NOT _cuda_dir)
  find_path(
    _cuda_toolkit_dir cudaTypedefs.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda
    PATH_SUFFIXES include targets/x86_64-linux/include
    NO_CACHE
  )
  if(_cuda_toolkit_dir)
    set(_cuda_dir "${_cuda_toolkit_dir}")
  endif()
endif()

set(CUDADriverHeaders_INCLUDE_DIR "")
set(CUDADriverHeaders_VERSION "")
if(_cuda_dir AND EXISTS "${_cuda_dir}/cuda.h" AND EXISTS "${_cuda_dir}/cudaTypedefs.h")
  set(CUDADriverHeaders_INCLUDE_DIR "${_cuda_dir}")
  file(STRINGS "${_cuda_dir}/cuda.h" _cuda_line REGEX "^#define CUDA_VERSION [0-9]+" LIMIT_COUNT 1)
  if(_cuda_line MATCHES "([0-9]+)$")
    math(EXPR _cuda_major "${CMAKE_MATCH_1} / 1000")
    math(EXPR _cuda_minor "${CMAKE_MATCH_1} % 1000 / 10")
    set(CUDADriverHeaders_VERSION "${_cuda_major}.${_cuda_minor}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  CUDADriverHeaders
  REQUIRED_VARS CUDADriverHeaders_INCLUDE_DIR
  VERSION_VAR CUDADriverHeaders_VERSION
  REASON_FAILURE_MESSAGE
    "\ncuda.h and cudaTypedefs.h can come from any of:\n\
  - python3 -m pip install nvidia-cuda-runtime, in the interpreter that builds (pip install does it by itself)\n\
  - a CUDA toolkit: set CUDA_HOME\n\
  - a folder of your own: set CUDA_DRIVER_INCLUDE_DIR (environment or -D)\n"
)

if(CUDADriverHeaders_FOUND AND NOT TARGET CUDADriver::headers)
  add_library(CUDADriver::headers INTERFACE IMPORTED)
  set_target_properties(
    CUDADriver::headers
    PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${CUDADriverHeaders_INCLUDE_DIR}"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${CUDADriverHeaders_INCLUDE_DIR}"
  )
endif()
