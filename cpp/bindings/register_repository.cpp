#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "core/base/error.hpp"
#include "core/cuda/startup.hpp"
#include "core/repository/repository.hpp"

namespace py = pybind11;

namespace ortmulti::bindings {
namespace {

using Decision = ResidencyPolicy::Decision;

std::string state_of(const ResidencyPolicy::Model& model, ResidencyPolicy::State state) {
  switch (state) {
    case ResidencyPolicy::State::waking:
      return "waking";
    case ResidencyPolicy::State::falling:
      return "falling asleep";
    case ResidencyPolicy::State::resting:
      break;
  }
  return to_string(model.level);
}

// What this process has taken of a GPU's memory since then, and what others took: the driver does not tell them apart.
std::function<std::optional<std::uint64_t>(const Device&)> taken_since(const std::vector<Device>& devices) {
  std::map<std::string, std::uint64_t> free;
  for (const Device& device : devices) {
    if (device.is_cuda()) {
      free[to_string(device)] = CudaStartup::instance().memory(device.index).free;
    }
  }
  return [free](const Device& device) -> std::optional<std::uint64_t> {
    const auto before = free.find(to_string(device));
    if (before == free.end()) {
      return std::nullopt;
    }
    try {
      return before->second -
             std::min<std::uint64_t>(before->second, CudaStartup::instance().memory(device.index).free);
    } catch (const Error&) {  // a broken device, which its pool reports
      return std::nullopt;
    }
  };
}

std::shared_ptr<Repository> make_repository(const std::vector<std::pair<std::string, std::uint64_t>>& budgets) {
  std::vector<std::pair<Device, std::uint64_t>> parsed;
  std::vector<Device> devices;
  for (const auto& [device, bytes] : budgets) {
    parsed.emplace_back(parse_device(device), bytes);
    devices.push_back(parsed.back().first);
  }
  const ReleaseGil nogil;
  return std::make_shared<Repository>(parsed, taken_since(devices));
}

// Waits for room, and lets Python handle signals meanwhile.
std::shared_ptr<Repository::Reservation> reserve(Repository& repository, const std::string& name,
                                                 const std::string& device, std::uint64_t bytes) {
  const Device parsed = parse_device(device);
  std::shared_ptr<Repository::Reservation> reserved;
  std::future<void> waited;
  {
    const ReleaseGil nogil;
    reserved = freed_without_gil(repository.reserve(name, parsed, bytes));
    waited = std::async(std::launch::async, [reserved] { reserved->wait(); });
  }
  try {
    wait_until([&] { return waited.wait_for(signal_interval) == std::future_status::ready; });
  } catch (...) {
    const ReleaseGil nogil;
    reserved->cancel();
    try {  // a model that was to make room may run for long
      std::thread([ends = std::move(waited)] {}).detach();
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): then it was waited for
    }
    throw;
  }
  const ReleaseGil nogil;
  waited.get();
  return reserved;
}

std::optional<std::int64_t> unaccounted(Repository& repository, const std::string& device, double timeout) {
  const Device parsed = parse_device(device);
  const auto give_up = Repository::Clock::now() +
                       std::chrono::duration_cast<Repository::Clock::duration>(std::chrono::duration<double>(timeout));
  std::optional<std::int64_t> bytes;
  wait_until([&] {
    const auto now = Repository::Clock::now();
    bytes = repository.unaccounted(parsed, std::min(give_up, now + signal_interval));
    return bytes || now >= give_up;
  });
  return bytes;
}

py::list to_list(const std::vector<Repository::ResidentStats>& residents) {
  py::list list;
  for (const auto& resident : residents) {
    py::dict entry;
    entry["name"] = resident.name;
    entry["device"] = to_string(resident.device);
    entry["state"] = state_of(resident.model, resident.state);
    entry["pinned"] = resident.model.pinned;
    entry["weights"] = resident.model.weights;
    entry["kept"] = resident.model.kept;
    entry["rate"] = resident.rate;
    entry["evictions"] = resident.evicted;
    list.append(std::move(entry));
  }
  return list;
}

py::list to_list(const std::vector<Repository::DeviceUse>& devices) {
  py::list list;
  for (const auto& device : devices) {
    py::dict entry;
    entry["device"] = to_string(device.device);
    entry["budget"] = device.budget;
    entry["used"] = device.used;
    entry["models"] = device.models;
    entry["waking"] = device.waking;
    list.append(std::move(entry));
  }
  return list;
}

py::tuple to_tuple(const Decision& decision) {
  const char* kind = "wait";
  switch (decision.kind) {
    case Decision::Kind::wake:
      kind = "wake";
      break;
    case Decision::Kind::evict:
      kind = "evict";
      break;
    case Decision::Kind::impossible:
      kind = "impossible";
      break;
    case Decision::Kind::wait:
      break;
  }
  py::list evictions;
  for (const auto& eviction : decision.evictions) {
    evictions.append(py::make_tuple(eviction.model, to_string(eviction.to)));
  }
  return py::make_tuple(kind, evictions, decision.until);
}

}  // namespace

void register_repository(py::module_& module) {
  py::class_<ResidencyPolicy::Model>(module, "ResidencyModel")
      .def(py::init([](std::uint64_t weights, std::uint64_t kept, double wake, double create, bool sleeps, bool pinned,
                       const std::string& level) {
             ResidencyPolicy::Model model;
             model.weights = weights;
             model.kept = kept;
             model.wake = wake;
             model.create = create;
             model.sleeps = sleeps;
             model.pinned = pinned;
             model.level = parse_sleep_level(level);
             return model;
           }),
           py::arg("weights"), py::arg("kept"), py::arg("wake"), py::arg("create"), py::arg("sleeps") = true,
           py::arg("pinned") = false, py::arg("level") = "awake");
  // Not thread-safe; for simulations and tests.
  py::class_<ResidencyPolicy>(module, "ResidencyPolicy")
      .def(py::init<std::uint64_t>(), py::arg("budget"))
      .def("add", &ResidencyPolicy::add, py::arg("model"), py::arg("name"), py::arg("now"))
      .def(
          "observe",
          [](ResidencyPolicy& self, ResidencyPolicy::Id id, std::uint64_t arrived, std::size_t busy,
             std::size_t waiting, double run, double now) { self.observe(id, {arrived, busy, waiting, run}, now); },
          py::arg("id"), py::arg("arrived"), py::arg("busy"), py::arg("waiting"), py::arg("run"), py::arg("now"))
      .def(
          "decide",
          [](ResidencyPolicy& self, ResidencyPolicy::Id id, double now) { return to_tuple(self.decide(id, now)); },
          py::arg("id"), py::arg("now"))
      .def(
          "falls",
          [](ResidencyPolicy& self, ResidencyPolicy::Id id, const std::string& level) {
            self.falls({id, parse_sleep_level(level)});
          },
          py::arg("id"), py::arg("level"))
      .def(
          "fell",
          [](ResidencyPolicy& self, ResidencyPolicy::Id id, const std::string& level) {
            self.fell(id, parse_sleep_level(level));
          },
          py::arg("id"), py::arg("level"))
      .def("woke", &ResidencyPolicy::woke, py::arg("id"), py::arg("now"), py::arg("seconds"))
      .def("used", &ResidencyPolicy::used);
  const py::class_<Repository::Resident, std::shared_ptr<Repository::Resident>> resident(module, "Resident");
  py::class_<Repository::Reservation, std::shared_ptr<Repository::Reservation>>(module, "Reservation")
      .def("cancel", &Repository::Reservation::cancel, py::call_guard<ReleaseGil>());
  py::class_<Repository, std::shared_ptr<Repository>>(module, "Repository")
      .def(py::init(&make_repository), py::arg("budgets"))
      .def("reserve", &reserve, py::arg("name"), py::arg("device"), py::arg("bytes"))
      .def("remove", &Repository::remove, py::arg("resident"), py::call_guard<ReleaseGil>())
      .def("pin", &Repository::pin, py::arg("resident"), py::arg("pinned"), py::call_guard<ReleaseGil>())
      .def("resize", &Repository::resize, py::arg("resident"), py::arg("weights"), py::arg("kept"),
           py::call_guard<ReleaseGil>())
      .def("unaccounted", &unaccounted, py::arg("device"), py::arg("timeout"))
      .def("residents",
           [](const Repository& self) {
             const auto residents = [&] {
               const ReleaseGil nogil;
               return self.residents();
             }();
             return to_list(residents);
           })
      .def("devices", [](const Repository& self) {
        const auto devices = [&] {
          const ReleaseGil nogil;
          return self.devices();
        }();
        return to_list(devices);
      });
}

}  // namespace ortmulti::bindings
