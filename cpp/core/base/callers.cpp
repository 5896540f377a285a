#include "core/base/callers.hpp"

#include <iterator>
#include <map>

#include "core/base/error.hpp"

namespace ortmulti {

bool Callers::have_place() const {
  struct Taken : NonCopyable {
    ~Taken() {
      for (const auto& [key, place] : by_object) {
        if (const auto places = place.lock()) {
          places->fetch_sub(1);
        }
      }
    }
    std::map<const Places*, std::weak_ptr<Places>> by_object;
  };
  thread_local Taken taken;
  const auto found = taken.by_object.find(places_.get());
  if (found != taken.by_object.end() && !found->second.expired()) {  // else it was another object's
    return true;
  }
  if (places_->load() >= most_themselves) {
    return false;
  }
  for (auto place = taken.by_object.begin(); place != taken.by_object.end();) {
    place = place->second.expired() ? taken.by_object.erase(place) : std::next(place);
  }
  const auto place = taken.by_object.emplace(places_.get(), places_).first;
  if (places_->fetch_add(1) >= most_themselves) {
    places_->fetch_sub(1);
    taken.by_object.erase(place);
    return false;
  }
  return true;
}

void Callers::call(const std::function<void()>& work) {
  if (have_place()) {
    work();
  } else {
    threads_.call(work, most_threads);
  }
}

}  // namespace ortmulti
