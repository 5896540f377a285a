#include "bindings/token_block.hpp"

#include <pybind11/numpy.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "bindings/errors.hpp"
#include "bindings/gil.hpp"
#include "bindings/text.hpp"
#include "core/base/async_runs.hpp"
#include "core/base/error.hpp"

namespace ortmulti::bindings {
namespace {

std::vector<std::int64_t> to_numbers(const py::handle& given) {
  std::vector<std::int64_t> numbers;
  if (PyList_Check(given.ptr()) != 0) {
    const py::ssize_t size = PyList_GET_SIZE(given.ptr());
    numbers.reserve(static_cast<std::size_t>(size));
    for (py::ssize_t i = 0; i < size; ++i) {
      const std::int64_t number = PyLong_AsLongLong(PyList_GET_ITEM(given.ptr(), i));
      if (number == -1 && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
      }
      numbers.push_back(number);
    }
    return numbers;
  }
  const auto array = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>::ensure(given);
  if (!array || array.ndim() != 1) {
    PyErr_Clear();
    throw Error(ErrorKind::invalid_type, "tokens are a list or an array of ints, not " + class_name(given));
  }
  numbers.assign(array.data(), array.data() + array.size());
  return numbers;
}

}  // namespace

TokenBlock::~TokenBlock() {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  if ((python_.future || !python_.followers.empty()) && !has_gil()) {
    free_without_gil(std::make_shared<Python>(std::move(python_)));
  }
}

void TokenBlock::fill(const py::list& items, const Call& call, std::optional<double> timeout, double begin) {
  std::vector<Tokens> all;
  all.reserve(items.size());
  for (const py::handle item : items) {
    const auto pair = py::reinterpret_borrow<py::tuple>(item);
    const py::object ids = pair[0];
    const py::object types = pair[1];
    all.push_back({to_numbers(ids), types.is_none() ? std::vector<std::int64_t>() : to_numbers(types)});
    if (all.back().ids.empty() || (!types.is_none() && all.back().types.size() != all.back().ids.size())) {
      throw Error(ErrorKind::invalid_argument, "a text has tokens, and as many types");
    }
  }
  TokenRows::fill(std::move(all), [&](Request& request) {
    call.apply_to(request);
    if (timeout) {
      request.timed_from =
          Clock::time_point(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(begin)));
      request.deadline = request.timed_from + to_duration(*timeout);
    }
  });
}

py::object TokenBlock::take_table() {
  auto table = TokenRows::take_table();
  if (!table) {
    return py::none();
  }
  const auto rows = static_cast<py::ssize_t>(count());
  const auto columns = static_cast<py::ssize_t>(width());
  float* const data = table.get();
  const py::capsule owner(data, [](void* memory) { delete[] static_cast<float*>(memory); });
  static_cast<void>(table.release());  // NOLINT(bugprone-unused-return-value): the capsule's now
  return py::array_t<float>({rows, columns}, data, owner);
}

py::tuple TokenBlock::take() {
  py::list failed;
  for (const auto& [index, error] : errors()) {
    failed.append(py::make_tuple(index, error ? to_python(error) : py::none()));
  }
  return py::make_tuple(take_table(), failed);
}

void TokenBlock::follow(py::object follower) {
  python_.followers.push_back(std::move(follower));
  static_cast<void>(without_gil([this] { return arrival_.follow(); }));
}

py::object TokenBlock::future() {
  auto [loop, answers] = running_loop();
  if (!answers) {
    return py::none();
  }
  loop_ = std::move(answers);
  python_.future = new_future(loop);
  return python_.future;
}

void TokenBlock::answer_future() {
  if (const py::object future = std::exchange(python_.future, py::object())) {
    bindings::answer_future(future, [this] {
      for (const auto& [index, error] : errors()) {
        if (error) {  // else it was cancelled after another one's error
          std::rethrow_exception(error);
        }
      }
      return take_table();
    });
  }
}

void TokenBlock::complete() noexcept {  // NOLINT(bugprone-exception-escape): out of memory ends the process
  if (loop_) {
    loop_->add(self());
  }
  if (arrival_.finish()) {
    completions().push([block = self()] { block->deliver(); });
  }
  arrival_.arrive();
}

void TokenBlock::deliver() noexcept {
  for (const py::object& follower : std::exchange(python_.followers, {})) {
    try {
      const auto& failed = errors();
      const bool cancelled = !failed.empty() && !failed.front().second;
      const py::object error = failed.empty() || cancelled ? py::none() : to_python(failed.front().second);
      follower(py::none(), error, cancelled, py::none());
    } catch (const std::exception&) {
      discard_as_unraisable(follower);
    }
  }
}

}  // namespace ortmulti::bindings
