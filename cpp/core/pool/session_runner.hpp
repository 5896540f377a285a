#pragma once

#include <memory>
#include <string>

#include "core/ort/session.hpp"
#include "core/pool/runner.hpp"

namespace ortmulti {

/// Runs requests with a session.
class SessionRunner : public Runner {
 public:
  explicit SessionRunner(std::shared_ptr<Session> session)
      : session_(std::move(session)), device_name_(to_string(session_->device())) {}

  const Device& device() const noexcept override { return session_->device(); }
  void run(Request& request) override;
  void terminate(Request& request) noexcept override;
  const void* session() const noexcept override { return session_.get(); }
  /// A GPU whose context refuses everything after a fault in a kernel, in whichever session.
  std::string why_broken() noexcept override;

 protected:
  /// For spans.
  const std::string& device_name() const noexcept { return device_name_; }

 private:
  std::shared_ptr<Session> session_;
  std::string device_name_;
};

}  // namespace ortmulti
