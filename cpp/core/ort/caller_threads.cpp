#include "core/ort/caller_threads.hpp"

#include <map>

#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"

namespace ortmulti {

std::optional<std::size_t> CallerThreads::helper_of_caller() const {
  struct Assignment {
    std::weak_ptr<Counts> object;
    std::optional<std::size_t> helper;
  };
  struct Assignments : NonCopyable {
    ~Assignments() {
      for (const auto& [key, assignment] : by_object) {
        const auto counts = assignment.object.lock();
        if (counts && !assignment.helper) {
          counts->direct.fetch_sub(1);
        }
      }
    }
    std::map<const Counts*, Assignment> by_object;
  };
  thread_local Assignments assignments;
  auto& known = assignments.by_object;
  if (const auto found = known.find(counts_.get()); found != known.end() && !found->second.object.expired()) {
    return found->second.helper;
  }
  // Also the assignment of another object that had the same address.
  std::erase_if(known, [](const auto& each) { return each.second.object.expired(); });
  Assignment& made = known[counts_.get()];
  made.object = counts_;
  if (counts_->direct.fetch_add(1) >= max_direct_callers) {
    counts_->direct.fetch_sub(1);
    made.helper = counts_->helped.fetch_add(1) % max_helpers;
  }
  return made.helper;
}

bool CallerThreads::call(const std::function<void()>& work) {
  thread_local bool works = false;
  if (works) {
    work();
    return true;
  }
  bool begun = false;
  const auto begin = [&] {
    begun = true;
    works = true;
    const ScopeExit ended([] { works = false; });
    work();
  };
  const std::optional<std::size_t> helper = helper_of_caller();
  if (!helper) {
    begin();
    return true;
  }
  try {
    helpers_.at(*helper).call(begin);
    return true;
  } catch (const Error& error) {
    if (begun) {
      throw;
    }
    if (error.kind() == ErrorKind::closed) {
      return false;
    }
  }
  begin();  // no thread can be started
  return true;
}

void CallerThreads::close() {
  for (AsyncRuns& helper : helpers_) {
    helper.close(false);
  }
}

}  // namespace ortmulti
