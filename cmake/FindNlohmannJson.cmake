# Finds nlohmann/json, a parser of JSON in headers: see OrtmultiFindHeaders.

include(OrtmultiFindHeaders)
ortmulti_find_headers(
  NlohmannJson
  VARIABLE NLOHMANN_JSON_INCLUDE_DIR
  HEADERS nlohmann/json.hpp
  VERSION_FILES nlohmann/detail/abi_macros.hpp nlohmann/json.hpp # newer and older releases
  VERSION_MACROS NLOHMANN_JSON_VERSION_MAJOR NLOHMANN_JSON_VERSION_MINOR NLOHMANN_JSON_VERSION_PATCH
  PACKAGE nlohmann-json3-dev
  TARGET NlohmannJson::headers
  WITHOUT "The library is built without a server. "
)
