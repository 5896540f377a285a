#include "core/base/callers.hpp"

#include <iterator>
#include <map>

#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"

namespace ortmulti {

std::optional<std::size_t> Callers::thread_of_caller() const {
  struct Place {
    std::weak_ptr<Places> of;
    std::optional<std::size_t> thread;
  };
  struct Taken : NonCopyable {
    ~Taken() {
      for (const auto& [key, place] : by_object) {
        const auto places = place.of.lock();
        if (places && !place.thread) {
          places->themselves.fetch_sub(1);
        }
      }
    }
    std::map<const Places*, Place> by_object;
  };
  thread_local Taken taken;
  auto& known = taken.by_object;
  if (const auto found = known.find(places_.get()); found != known.end() && !found->second.of.expired()) {
    return found->second.thread;
  }
  for (auto place = known.begin(); place != known.end();) {  // also another object's that had the same address
    place = place->second.of.expired() ? known.erase(place) : std::next(place);
  }
  Place& place = known[places_.get()];
  place.of = places_;
  if (places_->themselves.fetch_add(1) >= most_themselves) {
    places_->themselves.fetch_sub(1);
    place.thread = places_->others.fetch_add(1) % most_threads;
  }
  return place.thread;
}

bool Callers::call(const std::function<void()>& work) {
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
  const std::optional<std::size_t> thread = thread_of_caller();
  if (!thread) {
    begin();
    return true;
  }
  try {
    threads_.at(*thread).call(begin);
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

void Callers::close() {
  for (AsyncRuns& thread : threads_) {
    thread.close(false);
  }
}

}  // namespace ortmulti
