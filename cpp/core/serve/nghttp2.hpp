#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ortmulti::serve {

/// Why make_http2() cannot work in this process, and what to do; empty: it can.
std::string why_no_http2();

/// nghttp2's functions that a server calls, without their prefix.
#define ORTMULTI_NGHTTP2_FUNCTIONS(each)                      \
  each(option_new);                                           \
  each(option_del);                                           \
  each(option_set_no_auto_window_update);                     \
  each(option_set_no_closed_streams);                         \
  each(session_callbacks_new);                                \
  each(session_callbacks_del);                                \
  each(session_callbacks_set_on_begin_headers_callback);      \
  each(session_callbacks_set_on_header_callback);             \
  each(session_callbacks_set_on_frame_recv_callback);         \
  each(session_callbacks_set_on_invalid_frame_recv_callback); \
  each(session_callbacks_set_on_data_chunk_recv_callback);    \
  each(session_callbacks_set_on_frame_send_callback);         \
  each(session_callbacks_set_on_stream_close_callback);       \
  each(session_callbacks_set_send_data_callback);             \
  each(session_server_new2);                                  \
  each(session_del);                                          \
  each(session_mem_recv);                                     \
  each(session_mem_send);                                     \
  each(session_want_read);                                    \
  each(session_want_write);                                   \
  each(session_get_outbound_queue_size);                      \
  each(session_get_last_proc_stream_id);                      \
  each(session_consume_connection);                           \
  each(session_consume_stream);                               \
  each(session_set_local_window_size);                        \
  each(session_resume_data);                                  \
  each(session_terminate_session);                            \
  each(submit_settings);                                      \
  each(submit_response);                                      \
  each(submit_trailer);                                       \
  each(submit_rst_stream);                                    \
  each(submit_goaway);

/// These functions of nghttp2, looked up at run time.
struct Nghttp2 {
// NOLINTNEXTLINE(bugprone-macro-parentheses): it declares
#define ORTMULTI_MEMBER(function) decltype(&nghttp2_##function) function = nullptr
  ORTMULTI_NGHTTP2_FUNCTIONS(ORTMULTI_MEMBER)
#undef ORTMULTI_MEMBER
  /// Null before release 1.57. Beyond the rate the library ends the connection.
  void (*option_set_stream_reset_rate_limit)(nghttp2_option*, std::uint64_t burst, std::uint64_t rate) = nullptr;
};

/// The machine's library, or else the bundled one, opened at the first call; null without one, and then `reason` says
/// what is missing.
const Nghttp2* find_nghttp2(std::string* reason);

/// Opens `library_name` and looks all functions up; throws Error with ErrorKind::library.
Nghttp2 load_nghttp2(const char* library_name);
/// The first of these that can be used; throws the error of the first one.
Nghttp2 load_nghttp2(const std::vector<std::string>& names);

/// Where a wheel has its own copy: beside the file that this code is in. Empty: that file has no known folder.
std::string bundled_nghttp2();

}  // namespace ortmulti::serve
