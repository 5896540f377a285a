# ortmulti_target(TARGET): what every target of ours is compiled with. Nothing is set globally, so that code which is
# built beside it (GoogleTest) keeps its own flags.

include_guard(GLOBAL)

function(ortmulti_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(
    ${target}
    PROPERTIES
      CXX_EXTENSIONS OFF
      CXX_VISIBILITY_PRESET hidden
      VISIBILITY_INLINES_HIDDEN ON
      POSITION_INDEPENDENT_CODE ON
  )
  target_compile_options(
    ${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow $<$<BOOL:${ORTMULTI_WERROR}>:-Werror>
  )
  if(ORTMULTI_SANITIZE)
    # An abort at the first finding, with frames that can be named.
    target_compile_options(
      ${target} PRIVATE -fsanitize=${ORTMULTI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g
    )
    target_link_options(${target} PUBLIC -fsanitize=${ORTMULTI_SANITIZE})
  endif()
endfunction()
