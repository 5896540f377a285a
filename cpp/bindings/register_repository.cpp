#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/gil.hpp"
#include "bindings/python_call.hpp"
#include "bindings/python_pool.hpp"
#include "bindings/registrations.hpp"
#include "bindings/signals.hpp"
#include "bindings/text.hpp"
#include "core/base/error.hpp"
#include "core/cuda/gpu_memory.hpp"
#include "core/pool/runners.hpp"
#include "core/repository/repository.hpp"
#include "core/repository/tenant.hpp"

namespace ortmulti::bindings {

using namespace py::literals;  // NOLINT(google-build-using-namespace): "name"_a

namespace {

std::string state_of(const Repository::ResidentStats& resident) {
  constexpr std::array names = {"", "waking", "falling asleep"};  // in the order of the values
  const std::string name = names.at(static_cast<std::size_t>(resident.state));
  return name.empty() ? to_string(resident.model.level) : name;
}

std::shared_ptr<Repository> make_repository(const Repository::Budgets& budgets, std::uint64_t host_budget) {
  const auto uncounted = [](const Device& device) -> std::optional<UncountedMemory> {
    if (!device.is_cuda()) {
      return std::nullopt;
    }
    try {
      return gpu_memory(CudaStartup::instance(), device.index).uncounted();
    } catch (const Error&) {
      return std::nullopt;  // its pool reports it
    }
  };
  const ReleaseGil nogil;
  return std::make_shared<Repository>(budgets, uncounted, host_budget);
}

// Calls it in a thread of its own, and lets Python handle signals meanwhile. If it fails, or a signal raises, the
// tenant is released; then the thread ends as soon as a model that makes room for it lets it.
void call_apart(std::shared_ptr<Tenant> tenant, std::function<void(Tenant&)> call) {
  std::promise<void> done;
  const auto ended = done.get_future().share();
  const auto release = [&] { without_gil([&] { tenant->release(); }); };
  try {
    std::thread([tenant, call = std::move(call), done = std::move(done)]() mutable {
      std::exception_ptr error;
      try {
        call(*tenant);
      } catch (...) {
        error = std::current_exception();
      }
      call = nullptr;
      tenant.reset();  // nobody else may have it any more: its bytes are free when the wait ends
      error ? done.set_exception(error) : done.set_value();
    }).detach();
    wait_until([&](auto until) { return ended.wait_until(until) == std::future_status::ready; });
    ended.get();
  } catch (const std::system_error& error) {
    release();
    throw Error(ErrorKind::runtime_exception, std::string("cannot start a thread for a model's memory: ") +
                                                  error.what() + ": allow this process more threads");
  } catch (...) {
    release();
    throw;
  }
}

std::shared_ptr<Tenant> reserve(const std::shared_ptr<Repository>& repository, const std::string& name,
                                const std::vector<Device>& devices, std::uint64_t bytes, bool convolves) {
  auto tenant = freed_without_gil(
      without_gil([&] { return std::make_shared<Tenant>(repository, name, devices, ModelFiles{bytes, convolves}); }));
  call_apart(tenant, [](Tenant& of) { of.reserve(); });
  return tenant;
}

void enter(const std::shared_ptr<Tenant>& tenant, const PythonPool& pool, const std::shared_ptr<Timeline>& timeline,
           const py::object& close, double seconds, bool pinned, bool protect) {
  Repository::Resident loaded;
  loaded.pool = pool.get();
  loaded.sleeper = [of = loaded.pool, timeline](const Device& device, SleepLevel level, HostCopy copy) {
    return make_sleeper(of, device, level, copy, timeline);
  };
  loaded.close = [call = std::make_shared<PythonCall>(close)](const Device& device, SleepLevel level, double timeout) {
    (*call)(device, level, timeout);
  };
  call_apart(tenant, [=](Tenant& of) { of.enter(loaded, seconds, pinned, protect); });
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

// Calls `list` without the GIL, and returns its items as a Python list.
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
                       SleepLevel level) {
             ResidencyPolicy::Model model;
             model.bytes = bytes;
             model.level = level;
             for (const auto& [at, asleep] : sleeps) {
               model.sleeps[at] = {asleep.first, asleep.second};
             }
             return model;
           }),
           py::arg("bytes"), py::arg("sleeps"), py::arg("level") = "awake");
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
  py::class_<Tenant, std::shared_ptr<Tenant>>(module, "Tenant")
      .def("enter", &enter, py::arg("pool"), py::arg("timeline"), py::arg("close"), py::arg("seconds"),
           py::arg("pinned"), py::arg("protect"))
      .def("pin", &Tenant::pin, py::arg("pinned"), Nogil())
      .def_property_readonly("keeps_copy", py::cpp_function(&Tenant::keeps_copy, Nogil()))
      .def("release", &Tenant::release, Nogil());
  py::class_<Repository, std::shared_ptr<Repository>>(module, "Repository")
      .def(py::init(&make_repository), py::arg("budgets"), py::arg("host_budget"))
      .def("reserve", &reserve, py::arg("name"), py::arg("devices"), py::arg("bytes"), py::arg("convolves"))
      .def("why_no_more", &Repository::why_no_more, py::arg("device"), Nogil())
      .def(
          "grow_from_one",
          [](const std::shared_ptr<Repository>& self, const PythonPool& pool) {
            const ReleaseGil nogil;
            pool.get()->grow_from_one([repository = std::weak_ptr(self)](const Device& device) {
              const auto held = repository.lock();
              return held ? std::string(held->why_no_more(device)) : "the repository is closed";
            });
          },
          py::arg("pool"))
      .def("residents", [](const Repository& self) { return to_list([&] { return self.residents(); }); })
      .def("devices", [](const Repository& self) { return to_list([&] { return self.devices(); }); });
}

}  // namespace ortmulti::bindings
