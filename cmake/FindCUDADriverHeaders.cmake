# Finds cuda.h and cudaTypedefs.h, types and signatures of the CUDA driver: see OrtmultiFindHeaders. First in the Python
# package nvidia-cuda-runtime of the interpreter that builds, which is a build requirement of ours, then in a CUDA toolkit.
# CUDADriverHeaders_VERSION is CUDA's number, 13000 for release 13.0.

include(OrtmultiFindHeaders)

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

_cuda_headers_in_python(_cuda_dir)
ortmulti_find_headers(
  CUDADriverHeaders
  VARIABLE CUDA_DRIVER_INCLUDE_DIR
  HEADERS cudaTypedefs.h cuda.h
  VERSION_FILES cuda.h
  VERSION_MACROS CUDA_VERSION
  FIRST ${_cuda_dir}
  HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
  SUFFIXES include targets/x86_64-linux/include
  TARGET CUDADriver::headers
  SOURCES "python3 -m pip install nvidia-cuda-runtime, in the interpreter that builds (pip install does it by itself)"
          "a CUDA toolkit: set CUDA_HOME"
)
