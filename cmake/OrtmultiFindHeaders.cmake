# ortmulti_find_headers(NAME
#   VARIABLE <name>         a CMake or environment variable: the folder of the headers
#   HEADERS <file>...       which all are in it
#   VERSION_FILES <file>... the first one of these with a macro tells it
#   VERSION_MACROS <macro>...  the parts of the version
#   TARGET <name>           the target that it makes
#   [FIRST <dir>...]        folders before the system's
#   [HINTS <dir>...]        beside the system's folders
#   [SUFFIXES <suffix>...]  of the system's folders
#   [PACKAGE <name>]        of ORTMULTI_DEBIAN_SUITE, where no folder has them: see FetchDebianPackage
#   [PACKAGE_DIR <dir>]     of the headers in it; usr/include by default
#   [DEFINITIONS <text>...] of the target
#   [WITHOUT <text>]        what the build is without them
#   [SOURCES <text>...])    where they can come from beside these
#
# For Find modules: finds headers of a library that is opened at run time. Defines NAME_FOUND, NAME_INCLUDE_DIR,
# NAME_VERSION and the target, where they are found.

include_guard(GLOBAL)
include(FetchDebianPackage)
include(FindPackageHandleStandardArgs)

function(_ortmulti_headers_version dir out)
  set(${out} "" PARENT_SCOPE)
  foreach(header IN LISTS arg_HEADERS)
    if(NOT EXISTS "${dir}/${header}")
      return()
    endif()
  endforeach()
  set(parts "")
  foreach(macro IN LISTS arg_VERSION_MACROS)
    foreach(file IN LISTS arg_VERSION_FILES)
      if(EXISTS "${dir}/${file}")
        file(STRINGS "${dir}/${file}" line REGEX "^#define ${macro} \"?[0-9.]+" LIMIT_COUNT 1)
        if(line MATCHES " \"?([0-9.]+)")
          list(APPEND parts "${CMAKE_MATCH_1}")
          break()
        endif()
      endif()
    endforeach()
  endforeach()
  list(JOIN parts "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

function(ortmulti_find_headers name)
  cmake_parse_arguments(
    PARSE_ARGV
    1
    arg
    ""
    "VARIABLE;TARGET;PACKAGE;PACKAGE_DIR;WITHOUT"
    "HEADERS;VERSION_FILES;VERSION_MACROS;FIRST;HINTS;SUFFIXES;DEFINITIONS;SOURCES"
  )
  if(NOT arg_PACKAGE_DIR)
    set(arg_PACKAGE_DIR usr/include)
  endif()
  list(GET arg_HEADERS 0 header)
  set(${arg_VARIABLE} "" CACHE PATH "Folder of ${header}; empty to search for it")
  set(named "${${arg_VARIABLE}}")
  if(NOT named)
    set(named "$ENV{${arg_VARIABLE}}")
  endif()
  set(reason "")
  if(named) # taken or refused, never replaced by something else
    set(dir "${named}")
    _ortmulti_headers_version("${dir}" version)
    if(NOT version)
      list(JOIN arg_HEADERS " and " headers)
      set(reason "${arg_VARIABLE} is ${dir}, which has no ${headers}.")
    endif()
  else()
    find_path(system "${header}" HINTS ${arg_HINTS} PATH_SUFFIXES ${arg_SUFFIXES} NO_CACHE)
    set(version "")
    foreach(candidate IN LISTS arg_FIRST system)
      set(dir "${candidate}")
      _ortmulti_headers_version("${dir}" version)
      if(version AND NOT version VERSION_LESS "${${name}_FIND_VERSION}")
        break()
      endif()
      set(version "")
    endforeach()
    if(NOT version AND arg_PACKAGE)
      ortmulti_fetch_debian_package("${arg_PACKAGE}" "${ORTMULTI_DEBIAN_SUITE}" package reason)
      set(dir "${package}/${arg_PACKAGE_DIR}")
      _ortmulti_headers_version("${dir}" version)
    endif()
  endif()

  set(${name}_VERSION "${version}")
  set(${name}_INCLUDE_DIR "")
  if(version)
    set(${name}_INCLUDE_DIR "${dir}")
  endif()
  set(sources "${arg_SOURCES}")
  list(APPEND sources "a folder of your own: set ${arg_VARIABLE} (environment or -D) to the one that holds ${header}")
  if(arg_PACKAGE)
    list(
      APPEND sources
      "the system: apt-get install ${arg_PACKAGE}"
      "on Debian, as any user: tools/fetch_debian_package.sh ${arg_PACKAGE} ${ORTMULTI_DEBIAN_SUITE} DIR, which the build tries by itself, then ${arg_VARIABLE}=DIR/${arg_PACKAGE_DIR}"
    )
  endif()
  list(JOIN sources "\n  - " sources)
  find_package_handle_standard_args(
    ${name}
    REQUIRED_VARS ${name}_INCLUDE_DIR
    VERSION_VAR ${name}_VERSION
    REASON_FAILURE_MESSAGE
      "\n${reason}\n${arg_WITHOUT}${header} (${${name}_FIND_VERSION} or newer) can come from any of:\n  - ${sources}\n"
  )
  foreach(result IN ITEMS FOUND INCLUDE_DIR VERSION)
    set(${name}_${result} "${${name}_${result}}" PARENT_SCOPE)
  endforeach()
  if(${name}_FOUND AND NOT TARGET ${arg_TARGET})
    add_library(${arg_TARGET} INTERFACE IMPORTED)
    set_target_properties(
      ${arg_TARGET}
      PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${dir}"
        INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${dir}"
        INTERFACE_COMPILE_DEFINITIONS "${arg_DEFINITIONS}"
    )
  endif()
endfunction()
