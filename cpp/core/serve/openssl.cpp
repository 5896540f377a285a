#include "core/serve/openssl.hpp"

#include <dlfcn.h>

#include <mutex>
#include <optional>

#include "core/base/error.hpp"

namespace ortmulti::serve {
namespace {

constexpr const char* advice = "; install OpenSSL 3 (Debian and Ubuntu: libssl3, Fedora: openssl-libs)";

// Without this flag OpenSSL would free at the end of the process what threads may still use.
constexpr std::uint64_t init_no_atexit = 0x00080000;

template <typename Function>
bool look_up(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

OpenSsl load_openssl(const char* library_name) {
  void* const library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);  // it stays open
  if (library == nullptr) {
    const char* const reason = dlerror();
    throw Error(ErrorKind::library,
                std::string("TLS needs OpenSSL: ") + (reason == nullptr ? library_name : reason) + advice);
  }
  OpenSsl openssl;
  const char* missing = nullptr;
  // Those of libcrypto are found too: dlsym() looks into what the library needs, which is the libcrypto that fits it.
#define ORTMULTI_FIND(member, function, result, arguments) \
  missing = look_up(library, openssl.member, #function) ? missing : #function
  ORTMULTI_OPENSSL_FUNCTIONS(ORTMULTI_FIND)
#undef ORTMULTI_FIND
  if (missing != nullptr) {
    throw Error(ErrorKind::library,
                std::string("TLS needs OpenSSL 3: ") + library_name + " has no " + missing + advice);
  }
  if (openssl.openssl_init_ssl(init_no_atexit, nullptr) != 1) {
    throw Error(ErrorKind::library, std::string("TLS needs OpenSSL: ") + library_name + " cannot be initialized");
  }
  return openssl;
}

const OpenSsl* find_openssl(std::string* reason) {
  static std::once_flag once;
  static std::optional<OpenSsl> openssl;
  static std::string why_not;
  std::call_once(once, [] {
    try {
      openssl = load_openssl("libssl.so.3");
    } catch (const Error& error) {
      why_not = error.what();
    }
  });
  if (reason != nullptr) {
    *reason = why_not;
  }
  return openssl ? &*openssl : nullptr;
}

}  // namespace ortmulti::serve
