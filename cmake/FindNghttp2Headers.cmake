# Finds the headers of nghttp2; the library itself is opened at run time and not needed here. Without them the build
# goes on, and `ortmulti serve` has no gRPC over HTTP/2 of its own.
#
# Searched in this order:
#   1. NGHTTP2_INCLUDE_DIR, a CMake variable or an environment variable: the folder of nghttp2/nghttp2.h;
#   2. the system's (Debian's package libnghttp2-dev, or /usr/local);
#   3. libnghttp2-dev of ORTMULTI_DEBIAN_SUITE (trixie), unpacked below a cache folder: see FetchDebianPackage.
#
# Defines Nghttp2Headers_FOUND, Nghttp2Headers_INCLUDE_DIR, Nghttp2Headers_VERSION (1.64.0) and the target
# Nghttp2::headers, also where there are none: it defines the macro ORTMULTI_HAS_NGHTTP2 as 1 or 0.

include(FetchDebianPackage)

set(NGHTTP2_INCLUDE_DIR "" CACHE PATH "Folder of nghttp2/nghttp2.h; empty to search for it")
set(_nghttp2_reason "")

function(_nghttp2_headers_version dir out)
  set(${out} "" PARENT_SCOPE)
  if(EXISTS "${dir}/nghttp2/nghttp2.h" AND EXISTS "${dir}/nghttp2/nghttp2ver.h")
    file(STRINGS "${dir}/nghttp2/nghttp2ver.h" line REGEX "^#define NGHTTP2_VERSION \"[0-9.]+" LIMIT_COUNT 1)
    if(line MATCHES "\"([0-9.]+)")
      set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

# What was named explicitly is taken or refused, never replaced by something else.
set(_nghttp2_dir "${NGHTTP2_INCLUDE_DIR}")
if(NOT _nghttp2_dir)
  set(_nghttp2_dir "$ENV{NGHTTP2_INCLUDE_DIR}")
endif()
if(_nghttp2_dir)
  _nghttp2_headers_version("${_nghttp2_dir}" Nghttp2Headers_VERSION)
  if(NOT Nghttp2Headers_VERSION)
    set(_nghttp2_reason "NGHTTP2_INCLUDE_DIR is ${_nghttp2_dir}, which has no nghttp2/nghttp2.h and nghttp2/nghttp2ver.h.")
  endif()
else()
  find_path(_nghttp2_system_dir nghttp2/nghttp2.h NO_CACHE)
  if(_nghttp2_system_dir)
    _nghttp2_headers_version("${_nghttp2_system_dir}" Nghttp2Headers_VERSION)
    if(Nghttp2Headers_VERSION AND NOT Nghttp2Headers_VERSION VERSION_LESS "${Nghttp2Headers_FIND_VERSION}")
      set(_nghttp2_dir "${_nghttp2_system_dir}")
    endif()
  endif()
  if(NOT _nghttp2_dir)
    ortmulti_fetch_debian_package(libnghttp2-dev "${ORTMULTI_DEBIAN_SUITE}" _nghttp2_package _nghttp2_reason)
    if(_nghttp2_package)
      set(_nghttp2_dir "${_nghttp2_package}/usr/include")
    endif()
    _nghttp2_headers_version("${_nghttp2_dir}" Nghttp2Headers_VERSION)
  endif()
endif()

set(Nghttp2Headers_INCLUDE_DIR "")
if(Nghttp2Headers_VERSION)
  set(Nghttp2Headers_INCLUDE_DIR "${_nghttp2_dir}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Nghttp2Headers
  REQUIRED_VARS Nghttp2Headers_INCLUDE_DIR
  VERSION_VAR Nghttp2Headers_VERSION
  REASON_FAILURE_MESSAGE
    "\n${_nghttp2_reason}\nThe server is built without gRPC. nghttp2's headers (${Nghttp2Headers_FIND_VERSION} or newer) can come from any of:\n\
  - the system: apt-get install libnghttp2-dev\n\
  - a folder of your own: set NGHTTP2_INCLUDE_DIR (environment or -D) to the one that holds nghttp2/nghttp2.h\n\
  - on Debian, as any user: tools/fetch_debian_package.sh libnghttp2-dev ${ORTMULTI_DEBIAN_SUITE} DIR, which the build has\n\
    just tried by itself, then NGHTTP2_INCLUDE_DIR=DIR/usr/include\n"
)

if(NOT TARGET Nghttp2::headers)
  add_library(Nghttp2::headers INTERFACE IMPORTED)
  if(Nghttp2Headers_FOUND)
    set_target_properties(
      Nghttp2::headers
      PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${Nghttp2Headers_INCLUDE_DIR}"
        INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Nghttp2Headers_INCLUDE_DIR}"
        INTERFACE_COMPILE_DEFINITIONS ORTMULTI_HAS_NGHTTP2=1
    )
  else()
    set_target_properties(Nghttp2::headers PROPERTIES INTERFACE_COMPILE_DEFINITIONS ORTMULTI_HAS_NGHTTP2=0)
  endif()
endif()
