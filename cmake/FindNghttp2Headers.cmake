# Finds the headers of nghttp2: see OrtmultiFindHeaders.

include(OrtmultiFindHeaders)
ortmulti_find_headers(
  Nghttp2Headers
  VARIABLE NGHTTP2_INCLUDE_DIR
  HEADERS nghttp2/nghttp2.h nghttp2/nghttp2ver.h
  VERSION_FILES nghttp2/nghttp2ver.h
  VERSION_MACROS NGHTTP2_VERSION
  PACKAGE libnghttp2-dev
  TARGET Nghttp2::headers
  WITHOUT "The library is built without a server. "
)
