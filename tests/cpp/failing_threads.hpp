#pragma once

namespace ortmulti::tests {

/// While it exists, the calling thread can start no thread.
class NoThreads {
 public:
  NoThreads();
  ~NoThreads();
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
};

}  // namespace ortmulti::tests
