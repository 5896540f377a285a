#pragma once

#include <onnxruntime_cxx_api.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "core/ort/value.hpp"

namespace ortmulti {

/// What one run is fed, as ONNX Runtime takes it: values that are freed with it, and others', which must outlive it.
class RunInputs {
 public:
  RunInputs() = default;
  ~RunInputs() {
    for (const std::size_t index : borrowed_) {
      static_cast<void>(values_[index].release());
    }
  }
  RunInputs(const RunInputs&) = delete;
  RunInputs& operator=(const RunInputs&) = delete;
  RunInputs(RunInputs&&) noexcept = default;
  RunInputs& operator=(RunInputs&& other) noexcept {
    std::swap(names_, other.names_);
    std::swap(values_, other.values_);
    std::swap(borrowed_, other.borrowed_);
    return *this;
  }

  void reserve(std::size_t count) {
    names_.reserve(count);
    values_.reserve(count);
  }

  /// The name must outlive this.
  void add(const char* name, Ort::Value value) {
    names_.push_back(name);
    values_.push_back(std::move(value));
  }
  void add(const char* name, const Value& value) {
    names_.push_back(name);
    values_.emplace_back(nullptr);
    borrowed_.push_back(values_.size() - 1);
    // Last, so that nothing that throws frees what is others'.
    const OrtValue* const held = value.get();
    values_.back() = Ort::Value(const_cast<OrtValue*>(held));  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  }

  const std::vector<const char*>& names() const noexcept { return names_; }
  const Ort::Value* values() const noexcept { return values_.data(); }
  std::size_t size() const noexcept { return values_.size(); }

 private:
  std::vector<const char*> names_;
  std::vector<Ort::Value> values_;
  std::vector<std::size_t> borrowed_;  // their indices
};

}  // namespace ortmulti
