#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>

#include "core/base/error.hpp"
#include "core/serve/tls.hpp"

namespace ortmulti::serve {
namespace {

// OpenSSL's numbers.
constexpr int ctrl_mode = 33;
constexpr int ctrl_session_cache_mode = 44;
constexpr int ctrl_least_version = 123;
constexpr long mode_release_buffers = 0x10;
constexpr long session_cache_off = 0;
constexpr long tls_1_2 = 0x0303;
constexpr std::uint64_t option_no_renegotiation = std::uint64_t{1} << 30;
constexpr int file_pem = 1;
constexpr int alpn_chosen = 0;
constexpr int alpn_fatal_alert = 2;

const OpenSsl& openssl_or_throw() {
  std::string reason;
  const OpenSsl* const openssl = find_openssl(&reason);
  if (openssl == nullptr) {
    throw Error(ErrorKind::library, reason);
  }
  return *openssl;
}

// Returns the reason of the first failure, which caused the others: "error:0480006C:PEM routines::no start line".
std::string reason_of_failure(const OpenSsl& openssl) {
  std::array<char, 256> text{};
  openssl.err_error_string_n(openssl.err_get_error(), text.data(), text.size());
  const std::string_view whole(text.data());
  const std::size_t at = whole.find("::");
  return std::string(at == std::string_view::npos ? whole : whole.substr(at + 2));
}

/// `protocol` and `offered`: names, each behind a byte that says how long it is.
int choose_protocol(std::string_view protocol, std::string_view offered, const unsigned char** chosen,
                    unsigned char* size) {
  while (!offered.empty()) {
    const std::string_view name = offered.substr(0, std::size_t{1} + static_cast<unsigned char>(offered.front()));
    if (name == protocol) {
      *chosen = reinterpret_cast<const unsigned char*>(protocol.data()) + 1;
      *size = static_cast<unsigned char>(protocol.size() - 1);
      return alpn_chosen;
    }
    offered.remove_prefix(name.size());
  }
  return alpn_fatal_alert;
}

}  // namespace

TlsContext::TlsContext(const std::string& certificate, const std::string& key, const std::string& protocol)
    : openssl_(openssl_or_throw()),
      protocol_(std::string(1, static_cast<char>(protocol.size())) + protocol),
      context_(openssl_.ssl_ctx_new(openssl_.tls_server_method()), openssl_.ssl_ctx_free) {
  if (context_ == nullptr) {
    throw std::bad_alloc();
  }
  load(certificate, key);
  openssl_.ssl_ctx_ctrl(get(), ctrl_least_version, tls_1_2, nullptr);
  openssl_.ssl_ctx_ctrl(get(), ctrl_mode, mode_release_buffers, nullptr);
  openssl_.ssl_ctx_ctrl(get(), ctrl_session_cache_mode, session_cache_off, nullptr);  // tickets need none
  openssl_.ssl_ctx_set_options(get(), option_no_renegotiation);
  openssl_.ssl_ctx_set_alpn_select_cb(
      get(),
      [](Ssl*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered, unsigned offered_size,
         void* ours) {
        const std::string_view names(reinterpret_cast<const char*>(offered), offered_size);
        return choose_protocol(*static_cast<const std::string*>(ours), names, chosen, size);
      },
      &protocol_);
}

void TlsContext::load(const std::string& certificate, const std::string& key) {
  // OpenSSL would ask for a password at the terminal.
  openssl_.ssl_ctx_set_default_passwd_cb(get(), [](char*, int, int, void*) { return -1; });
  openssl_.err_clear_error();
  if (openssl_.ssl_ctx_use_certificate_chain_file(get(), certificate.c_str()) != 1) {
    throw Error(ErrorKind::invalid_argument,
                "cannot use the certificate in " + certificate + ": " + reason_of_failure(openssl_));
  }
  openssl_.err_clear_error();
  if (openssl_.ssl_ctx_use_private_key_file(get(), key.c_str(), file_pem) != 1) {
    throw Error(ErrorKind::invalid_argument, "cannot use the private key in " + key + " for the certificate in " +
                                                 certificate + ": " + reason_of_failure(openssl_));
  }
}

}  // namespace ortmulti::serve
