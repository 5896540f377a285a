# Finds nlohmann/json, a parser of JSON in one header (3.10 or newer).
#
# Searched in this order:
#   1. NLOHMANN_JSON_INCLUDE_DIR, a CMake variable or an environment variable: the folder above nlohmann/json.hpp;
#   2. the system's (Debian's package nlohmann-json3-dev);
#   3. nlohmann-json3-dev of ORTMULTI_DEBIAN_SUITE (trixie), unpacked below a cache folder: see FetchDebianPackage.
#
# Defines NlohmannJson_FOUND, NlohmannJson_INCLUDE_DIR, NlohmannJson_VERSION and the target NlohmannJson::headers.

include(FetchDebianPackage)

set(NLOHMANN_JSON_INCLUDE_DIR "" CACHE PATH "Folder above nlohmann/json.hpp; empty to search for it")
set(_json_reason "")

# Newer releases have their version in a file of its own.
function(_json_version dir out)
  set(${out} "" PARENT_SCOPE)
  if(NOT EXISTS "${dir}/nlohmann/json.hpp")
    return()
  endif()
  set(version "")
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    foreach(file IN ITEMS nlohmann/detail/abi_macros.hpp nlohmann/json.hpp)
      if(EXISTS "${dir}/${file}")
        file(STRINGS "${dir}/${file}" line REGEX "^#define NLOHMANN_JSON_VERSION_${part} [0-9]+" LIMIT_COUNT 1)
        if(line MATCHES "VERSION_${part} ([0-9]+)")
          list(APPEND version "${CMAKE_MATCH_1}")
          break()
        endif()
      endif()
    endforeach()
  endforeach()
  list(JOIN version "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

# What was named explicitly is taken or refused, never replaced by something else.
set(_json_dir "${NLOHMANN_JSON_INCLUDE_DIR}")
if(NOT _json_dir)
  set(_json_dir "$ENV{NLOHMANN_JSON_INCLUDE_DIR}")
endif()
if(_json_dir)
  _json_version("${_json_dir}" NlohmannJson_VERSION)
  if(NOT NlohmannJson_VERSION)
    set(_json_reason "NLOHMANN_JSON_INCLUDE_DIR is ${_json_dir}, which has no nlohmann/json.hpp.")
  endif()
else()
  find_path(_json_system_dir nlohmann/json.hpp NO_CACHE)
  if(_json_system_dir)
    _json_version("${_json_system_dir}" NlohmannJson_VERSION)
    if(NlohmannJson_VERSION AND NOT NlohmannJson_VERSION VERSION_LESS "${NlohmannJson_FIND_VERSION}")
      set(_json_dir "${_json_system_dir}")
    endif()
  endif()
  if(NOT _json_dir)
    ortmulti_fetch_debian_package(nlohmann-json3-dev "${ORTMULTI_DEBIAN_SUITE}" _json_package _json_reason)
    if(_json_package)
      set(_json_dir "${_json_package}/usr/include")
    endif()
    _json_version("${_json_dir}" NlohmannJson_VERSION)
  endif()
endif()

set(NlohmannJson_INCLUDE_DIR "")
if(NlohmannJson_VERSION)
  set(NlohmannJson_INCLUDE_DIR "${_json_dir}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NlohmannJson
  REQUIRED_VARS NlohmannJson_INCLUDE_DIR
  VERSION_VAR NlohmannJson_VERSION
  REASON_FAILURE_MESSAGE
    "\n${_json_reason}\nThe header nlohmann/json.hpp (${NlohmannJson_FIND_VERSION} or newer) can come from any of:\n\
  - a folder of your own: set NLOHMANN_JSON_INCLUDE_DIR (environment or -D) to the one that holds nlohmann/json.hpp\n\
  - the system: apt-get install nlohmann-json3-dev (Debian 12 or newer)\n\
  - on Debian, as any user: tools/fetch_debian_package.sh nlohmann-json3-dev ${ORTMULTI_DEBIAN_SUITE} DIR, which the build\n\
    has just tried by itself, then NLOHMANN_JSON_INCLUDE_DIR=DIR/usr/include\n"
)

if(NlohmannJson_FOUND AND NOT TARGET NlohmannJson::headers)
  add_library(NlohmannJson::headers INTERFACE IMPORTED)
  set_target_properties(
    NlohmannJson::headers
    PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${NlohmannJson_INCLUDE_DIR}"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${NlohmannJson_INCLUDE_DIR}"
  )
endif()
