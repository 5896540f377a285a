#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "bindings/gil.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/cuda/memory_taken.hpp"
#include "core/repository/repository.hpp"

namespace ortmulti::bindings {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

std::string state_of(const Repository::ResidentStats& resident) {
  constexpr std::array names = {"", "waking", "falling asleep"};  // in the order of the values
  const std::string name = names.at(static_cast<std::size_t>(resident.state));
  return name.empty() ? to_string(resident.model.level) : name;
}

std::shared_ptr<Repository> make_repository(const Repository::Budgets& budgets) {
  std::vector<Device> devices;
  for (const auto& [device, bytes] : budgets) {
    devices.push_back(device);
  }
  const ReleaseGil nogil;
  return std::make_shared<Repository>(budgets, memory_taken_from_now(CudaStartup::instance(), devices));
}

// Waits for room, and lets Python handle signals meanwhile.
std::shared_ptr<Repository::Reservation> reserve(Repository& repository, const std::string& name, const Device& device,
                                                 std::uint64_t bytes) {
  const auto reserved = without_gil([&] { return freed_without_gil(repository.reserve(name, device, bytes)); });
  try {
    wait_until([&](auto until) { return Repository::Reservation::wait_until(reserved, until); });
  } catch (...) {
    const ReleaseGil nogil;
    reserved->cancel();
    throw;
  }
  return reserved;
}

std::optional<std::int64_t> unaccounted(Repository& repository, const Device& device, double timeout) {
  std::optional<std::int64_t> bytes;
  wait_until(
      [&](auto until) {
        bytes = repository.unaccounted(device, until);
        return bytes.has_value();
      },
      timeout);
  return bytes;
}

py::dict to_dict(const Repository::ResidentStats& resident) {
  const std::uint64_t kept = resident.model.bytes_at(SleepLevel::weights);
  return py::dict("name"_a = resident.name, "device"_a = resident.device, "state"_a = state_of(resident),
                  "pinned"_a = resident.model.pinned, "weights"_a = resident.model.bytes - kept, "kept"_a = kept,
                  "rate"_a = resident.rate, "evictions"_a = resident.evicted, "refusal"_a = resident.refusal,
                  "failure"_a = resident.failure);
}

py::dict to_dict(const Repository::DeviceUse& device) {
  return py::dict("device"_a = device.device, "budget"_a = device.budget, "used"_a = device.used,
                  "models"_a = device.models, "waking"_a = device.waking);
}

// Those that `list` gives without the GIL.
template <typename List>
py::list to_list(const List& list) {
  const auto all = without_gil([&] { return list(); });
  py::list result;
  for (const auto& each : all) {
    result.append(to_dict(each));
  }
  return result;
}

py::tuple to_tuple(const ResidencyPolicy::Decision& decision) {
  constexpr std::array kinds = {"wake", "evict", "wait", "impossible"};  // in the order of the values
  py::list evictions;
  for (const auto& eviction : decision.evictions) {
    evictions.append(py::make_tuple(eviction.model, eviction.to));
  }
  return py::make_tuple(kinds.at(static_cast<std::size_t>(decision.kind)), evictions, decision.until);
}

}  // namespace

void register_repository(py::module_& module) {
  py::class_<ResidencyPolicy::Model>(module, "ResidencyModel")
      .def(py::init([](std::uint64_t bytes, const std::map<SleepLevel, std::pair<std::uint64_t, double>>& sleeps,
                       bool pinned, SleepLevel level, bool protect) {
             ResidencyPolicy::Model model{bytes, {}, pinned, protect, false, level};
             for (const auto& [at, asleep] : sleeps) {
               model.sleeps[at] = {asleep.first, asleep.second};
             }
             return model;
           }),
           py::arg("bytes"), py::arg("sleeps"), py::arg("pinned") = false, py::arg("level") = "awake",
           py::arg("protect") = false);
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
          "falls", [](ResidencyPolicy& self, ResidencyPolicy::Id id, SleepLevel level) { self.falls({id, level}); },
          py::arg("id"), py::arg("level"))
      .def("fell", &ResidencyPolicy::fell, py::arg("id"), py::arg("level"))
      .def("woke", &ResidencyPolicy::woke, py::arg("id"), py::arg("now"), py::arg("seconds"))
      .def("used", &ResidencyPolicy::used);
  const py::class_<Repository::Resident, std::shared_ptr<Repository::Resident>> resident(module, "Resident");
  py::class_<Repository::Reservation, std::shared_ptr<Repository::Reservation>>(module, "Reservation")
      .def("cancel", &Repository::Reservation::cancel, Nogil());
  py::class_<Repository, std::shared_ptr<Repository>>(module, "Repository")
      .def(py::init(&make_repository), py::arg("budgets"))
      .def("reserve", &reserve, py::arg("name"), py::arg("device"), py::arg("bytes"))
      .def("remove", &Repository::remove, py::arg("resident"), Nogil())
      .def("pin", &Repository::pin, py::arg("resident"), py::arg("pinned"), Nogil())
      .def("set_kept", &Repository::set_kept, py::arg("resident"), py::arg("level"), py::arg("bytes"), Nogil())
      .def("unaccounted", &unaccounted, py::arg("device"), py::arg("timeout"))
      .def("measure", &Repository::measure, py::arg("device"), Nogil())
      .def("residents", [](const Repository& self) { return to_list([&] { return self.residents(); }); })
      .def("devices", [](const Repository& self) { return to_list([&] { return self.devices(); }); });
}

}  // namespace ortmulti::bindings
