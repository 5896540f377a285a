// The sessions of the process.
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "core/base/fork.hpp"
#include "core/memory/device_memory.hpp"
#include "core/ort/session.hpp"

namespace ortmulti {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<Session>> sessions;
  std::shared_ptr<HasMemory> arenas;  // of these, once there was one

  std::vector<std::shared_ptr<Session>> all() {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<Session>> all;
    for (const auto& session : sessions) {
      if (auto there = session.lock()) {
        all.push_back(std::move(there));
      }
    }
    return all;
  }
};

Registry& live_sessions() { return process_singleton<Registry>(); }

class Arenas : public HasMemory {
 public:
  void add_uses(const Device& device, MemoryUses& uses) override {
    std::set<const void*> seen;
    for (const auto& session : live_sessions().all()) {
      const auto arena = session->device() == device ? session->arena() : std::nullopt;
      if (arena && seen.insert(arena->session).second) {
        const MemoryUse use = session->compute_stream() == nullptr ? MemoryUse::arenas : MemoryUse::graphs;
        uses.at(static_cast<std::size_t>(use)) += arena->held;
      }
    }
  }
};

}  // namespace

void register_for_shutdown(const std::shared_ptr<Session>& session) {
  Registry& live = live_sessions();
  {
    const std::lock_guard lock(live.mutex);
    auto& sessions = live.sessions;
    std::erase_if(sessions, [](const auto& each) { return each.expired(); });
    sessions.push_back(session);
    if (!live.arenas) {
      live.arenas = std::make_shared<Arenas>();
      device_memory::add(live.arenas);
    }
  }
  // Handlers run in reverse order: one registered after a device's start runs before that driver's own.
  static std::once_flag with_cpu;
  static std::once_flag with_cuda;
  std::call_once(session->device().is_cuda() ? with_cuda : with_cpu, [] { std::atexit(close_all_sessions); });
}

void close_all_sessions() {
  std::vector<std::weak_ptr<Session>> sessions;
  {
    Registry& live = live_sessions();
    const std::lock_guard lock(live.mutex);
    sessions.swap(live.sessions);
  }
  for (const auto& entry : sessions) {
    if (const std::shared_ptr<Session> session = entry.lock()) {
      session->free_session(true);
    }
  }
}

}  // namespace ortmulti
