#include "core/serve/nghttp2.hpp"

#include <dlfcn.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.hpp"

namespace ortmulti::serve {
namespace {

constexpr const char* advice = "; install nghttp2's library (Debian and Ubuntu: libnghttp2-14, Fedora: libnghttp2)";

template <typename Function>
bool look_up(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Nghttp2 load_nghttp2(const char* library_name) {
  void* const library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);  // it stays open
  if (library == nullptr) {
    const char* const reason = dlerror();
    throw Error(ErrorKind::library,
                std::string("gRPC needs nghttp2: ") + (reason == nullptr ? library_name : reason) + advice);
  }
  Nghttp2 nghttp2;
  const char* missing = nullptr;
#define ORTMULTI_FIND(function) \
  missing = look_up(library, nghttp2.function, "nghttp2_" #function) ? missing : "nghttp2_" #function
  ORTMULTI_NGHTTP2_FUNCTIONS(ORTMULTI_FIND)
#undef ORTMULTI_FIND
  if (missing != nullptr) {
    throw Error(ErrorKind::library, std::string("gRPC needs a newer nghttp2: ") + library_name + " has no " + missing +
                                        " of release 1.50" + advice);
  }
  look_up(library, nghttp2.option_set_stream_reset_rate_limit, "nghttp2_option_set_stream_reset_rate_limit");
  return nghttp2;
}

Nghttp2 load_nghttp2(const std::vector<std::string>& names) {
  std::optional<Error> first;
  for (const std::string& name : names) {
    try {
      return load_nghttp2(name.c_str());
    } catch (const Error& error) {
      first = first ? first : error;
    }
  }
  throw first.value_or(Error(ErrorKind::library, "gRPC needs nghttp2"));
}

std::string bundled_nghttp2() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&why_no_http2), &found) == 0 || found.dli_fname == nullptr) {
    return {};
  }
  const std::string ours = found.dli_fname;
  const std::size_t end = ours.rfind('/');
  return end == std::string::npos ? "" : ours.substr(0, end + 1) + "libortmulti_nghttp2.so";
}

const Nghttp2* find_nghttp2(std::string* reason) {
  static std::once_flag once;
  static std::optional<Nghttp2> nghttp2;
  static std::string why_not;
  std::call_once(once, [] {
    try {
      // The system's first: it gets the distribution's fixes.
      nghttp2 = load_nghttp2({"libnghttp2.so.14", bundled_nghttp2()});
    } catch (const Error& error) {
      why_not = error.what();
    }
  });
  if (reason != nullptr) {
    *reason = why_not;
  }
  return nghttp2 ? &*nghttp2 : nullptr;
}

std::string why_no_http2() {
  std::string reason;
  find_nghttp2(&reason);
  return reason;
}

}  // namespace ortmulti::serve
