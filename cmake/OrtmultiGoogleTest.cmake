# ortmulti_find_googletest(): the targets GTest::gtest and GTest::gtest_main, from the first of
#   1. ORTMULTI_GOOGLETEST_DIR: GoogleTest's sources (the folder with its CMakeLists.txt);
#   2. the system's GoogleTest (or GTest_ROOT), unless a sanitizer wants it built with the same flags;
#   3. Debian's package googletest, unpacked below a cache folder: see FetchDebianPackage.

include_guard(GLOBAL)
include(FetchDebianPackage)

set(ORTMULTI_GOOGLETEST_DIR "" CACHE PATH "Sources of GoogleTest; empty to search for it")

function(ortmulti_find_googletest)
  set(sources "${ORTMULTI_GOOGLETEST_DIR}")
  if(NOT sources AND NOT ORTMULTI_SANITIZE)
    find_package(GTest QUIET)
    if(TARGET GTest::gtest_main)
      # An imported target belongs to the folder that found it; the tests lie in another one.
      set_target_properties(GTest::gtest GTest::gtest_main PROPERTIES IMPORTED_GLOBAL TRUE)
      return()
    endif()
  endif()
  if(NOT sources AND EXISTS /usr/src/googletest/CMakeLists.txt)
    set(sources /usr/src/googletest)
  endif()
  if(NOT sources)
    ortmulti_fetch_debian_package(googletest "${ORTMULTI_DEBIAN_SUITE}" package reason)
    if(NOT package)
      message(
        FATAL_ERROR
        "${reason}\nGoogleTest can come from the system (Debian: libgtest-dev), from GTest_ROOT, or from its sources: "
        "set ORTMULTI_GOOGLETEST_DIR. Or build without ORTMULTI_BUILD_TESTS."
      )
    endif()
    set(sources "${package}/usr/src/googletest")
  endif()

  set(BUILD_GMOCK OFF)
  set(INSTALL_GTEST OFF)
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
  add_subdirectory("${sources}" "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL)
  if(ORTMULTI_SANITIZE)
    foreach(target IN ITEMS gtest gtest_main)
      target_compile_options(${target} PRIVATE -fsanitize=${ORTMULTI_SANITIZE} -fno-omit-frame-pointer -g)
    endforeach()
  endif()
endfunction()
