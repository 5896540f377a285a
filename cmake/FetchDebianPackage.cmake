# ortmulti_fetch_debian_package(PACKAGE SUITE OUT_DIR OUT_REASON)
#
# The folder with the unpacked Debian package in OUT_DIR, or an empty string there and the reason in OUT_REASON.
# Unpacked packages are kept in ORTMULTI_CACHE_DIR (CMake variable or environment; by default ortmulti below
# XDG_CACHE_HOME or ~/.cache, or the build folder where no home is writable), so that isolated builds, which start from
# an empty build folder each time, fetch once.

include_guard(GLOBAL)

function(_ortmulti_cache_dir out)
  foreach(candidate IN ITEMS "${ORTMULTI_CACHE_DIR}" "$ENV{ORTMULTI_CACHE_DIR}")
    if(candidate)
      set(${out} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(base "$ENV{XDG_CACHE_HOME}")
  else()
    set(base "$ENV{HOME}/.cache")
  endif()
  execute_process(COMMAND mkdir -p "${base}/ortmulti" RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(${out} "${PROJECT_BINARY_DIR}/cache" PARENT_SCOPE)
  else()
    set(${out} "${base}/ortmulti" PARENT_SCOPE)
  endif()
endfunction()

function(ortmulti_fetch_debian_package package suite out_dir out_reason)
  _ortmulti_cache_dir(cache)
  set(dest "${cache}/debian/${suite}-${CMAKE_HOST_SYSTEM_PROCESSOR}/${package}")
  set(reason "")
  if(NOT IS_DIRECTORY "${dest}")
    message(STATUS "Fetching ${package} (${suite}) from this machine's Debian mirror, into ${dest}")
    execute_process(
      COMMAND "${PROJECT_SOURCE_DIR}/tools/fetch_debian_package.sh" "${package}" "${suite}" "${dest}"
      RESULT_VARIABLE failed
      ERROR_VARIABLE reason
      OUTPUT_QUIET
    )
    if(failed)
      set(dest "")
      string(STRIP "${reason}" reason)
      string(REPLACE ";" "," reason "${reason}")
    endif()
  endif()
  set(${out_dir} "${dest}" PARENT_SCOPE)
  set(${out_reason} "${reason}" PARENT_SCOPE)
endfunction()
