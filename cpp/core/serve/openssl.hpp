#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ortmulti::serve {

/// OpenSSL's objects, of which only the library knows what is in them.
struct SslMethod;
struct SslContext;
struct Ssl;
struct BioMethod;
struct Bio;

using SslPassword = int (*)(char* text, int size, int writes, void* user);
using SslChooseProtocol = int (*)(Ssl*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                                  unsigned offered_size, void* user);

/// OpenSSL's functions that a server calls, as release 3.0 has them; they stay so until release 4.
#define ORTMULTI_OPENSSL_FUNCTIONS(each)                                                                         \
  each(openssl_init_ssl, OPENSSL_init_ssl, int, (std::uint64_t, const void*));                                   \
  each(tls_server_method, TLS_server_method, const SslMethod*, ());                                              \
  each(ssl_ctx_new, SSL_CTX_new, SslContext*, (const SslMethod*));                                               \
  each(ssl_ctx_free, SSL_CTX_free, void, (SslContext*));                                                         \
  each(ssl_ctx_ctrl, SSL_CTX_ctrl, long, (SslContext*, int, long, void*));                                       \
  each(ssl_ctx_set_options, SSL_CTX_set_options, std::uint64_t, (SslContext*, std::uint64_t));                   \
  each(ssl_ctx_use_certificate_chain_file, SSL_CTX_use_certificate_chain_file, int, (SslContext*, const char*)); \
  each(ssl_ctx_use_private_key_file, SSL_CTX_use_PrivateKey_file, int, (SslContext*, const char*, int));         \
  each(ssl_ctx_set_default_passwd_cb, SSL_CTX_set_default_passwd_cb, void, (SslContext*, SslPassword));          \
  each(ssl_ctx_set_alpn_select_cb, SSL_CTX_set_alpn_select_cb, void, (SslContext*, SslChooseProtocol, void*));   \
  each(ssl_new, SSL_new, Ssl*, (SslContext*));                                                                   \
  each(ssl_free, SSL_free, void, (Ssl*));                                                                        \
  each(ssl_set0_rbio, SSL_set0_rbio, void, (Ssl*, Bio*));                                                        \
  each(ssl_set0_wbio, SSL_set0_wbio, void, (Ssl*, Bio*));                                                        \
  each(ssl_set_accept_state, SSL_set_accept_state, void, (Ssl*));                                                \
  each(ssl_do_handshake, SSL_do_handshake, int, (Ssl*));                                                         \
  each(ssl_read, SSL_read, int, (Ssl*, void*, int));                                                             \
  each(ssl_write, SSL_write, int, (Ssl*, const void*, int));                                                     \
  each(ssl_shutdown, SSL_shutdown, int, (Ssl*));                                                                 \
  each(ssl_get_error, SSL_get_error, int, (const Ssl*, int));                                                    \
  each(bio_s_mem, BIO_s_mem, const BioMethod*, ());                                                              \
  each(bio_new, BIO_new, Bio*, (const BioMethod*));                                                              \
  each(bio_free, BIO_free, int, (Bio*));                                                                         \
  each(bio_read, BIO_read, int, (Bio*, void*, int));                                                             \
  each(bio_write, BIO_write, int, (Bio*, const void*, int));                                                     \
  each(bio_ctrl_pending, BIO_ctrl_pending, std::size_t, (Bio*));                                                 \
  each(err_clear_error, ERR_clear_error, void, ());                                                              \
  each(err_get_error, ERR_get_error, unsigned long, ());                                                         \
  each(err_error_string_n, ERR_error_string_n, void, (unsigned long, char*, std::size_t));

/// These functions of OpenSSL, looked up at run time.
struct OpenSsl {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares
#define ORTMULTI_MEMBER(member, function, result, arguments) result(*member) arguments = nullptr
  ORTMULTI_OPENSSL_FUNCTIONS(ORTMULTI_MEMBER)
#undef ORTMULTI_MEMBER
};

/// The machine's library, opened at the first call; null without one, and then `reason` says what is missing.
const OpenSsl* find_openssl(std::string* reason);

/// Opens `library_name` and looks all functions up; throws Error with ErrorKind::library.
OpenSsl load_openssl(const char* library_name);

}  // namespace ortmulti::serve
