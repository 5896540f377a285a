#include "core/pool/token_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/scope_exit.hpp"
#include "core/ort/value.hpp"

namespace ortmulti {
namespace {

template <typename Number>
void fill_in(TokenModel::Kind kind, const TokenRows::Tokens& tokens, Number* to) {
  const std::size_t length = tokens.ids.size();
  const auto copy = [to](const auto& from) {
    std::ranges::transform(from, to, [](std::int64_t number) { return static_cast<Number>(number); });
  };
  switch (kind) {
    case TokenModel::Kind::ids:
      return copy(tokens.ids);
    case TokenModel::Kind::types:
      return tokens.types.empty() ? static_cast<void>(std::fill_n(to, length, Number{0})) : copy(tokens.types);
    case TokenModel::Kind::mask:
      return static_cast<void>(std::fill_n(to, length, Number{1}));
    case TokenModel::Kind::positions:
      return std::iota(to, to + length, Number{0});
  }
}

template <typename Number>
std::vector<float> converted(const void* data, std::size_t count) {
  const std::span<const Number> numbers(static_cast<const Number*>(data), count);
  std::vector<float> floats(count);
  std::ranges::transform(numbers, floats.begin(), [](const Number& number) {
    if constexpr (std::is_arithmetic_v<Number>) {
      return static_cast<float>(number);
    } else {
      return number.ToFloat();
    }
  });
  return floats;
}

// Floats over memory that is there, or that they keep.
struct Floats {
  std::vector<float> own;
  const float* data = nullptr;
};

Floats to_floats(ONNXTensorElementDataType type, const void* data, std::size_t count) {
  Floats floats;
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      floats.data = static_cast<const float*>(data);
      return floats;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      floats.own = converted<Ort::Float16_t>(data, count);
      break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      floats.own = converted<Ort::BFloat16_t>(data, count);
      break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      floats.own = converted<double>(data, count);
      break;
    default:
      throw Error(ErrorKind::invalid_argument, "the output of a text is no tensor of floats: choose another one");
  }
  floats.data = floats.own.data();
  return floats;
}

// to[i] += weight * from[i], in steps of a fixed size, which compilers turn into wide instructions.
void add(float weight, const float* from, std::size_t count, float* to) {
  constexpr std::size_t step = 16;
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    for (std::size_t k = 0; k < step; ++k) {
      to[i + k] += weight * from[i + k];
    }
  }
  for (; i < count; ++i) {
    to[i] += weight * from[i];
  }
}

// Makes one vector of those of a text's tokens, `skip` of which are left out.
void pool(TokenModel::Pooling pooling, const float* tokens, std::size_t count, std::size_t width, std::size_t skip,
          float* to) {
  using Pooling = TokenModel::Pooling;
  const float* const first = tokens + skip * width;
  const float* const end = tokens + count * width;
  if (pooling == Pooling::cls || pooling == Pooling::last) {
    std::copy_n(pooling == Pooling::cls ? first : end - width, width, to);
    return;
  }
  if (pooling == Pooling::max) {
    std::copy_n(first, width, to);
    for (const float* token = first + width; token < end; token += width) {
      for (std::size_t i = 0; i < width; ++i) {
        to[i] = token[i] > to[i] || std::isnan(token[i]) ? token[i] : to[i];
      }
    }
    return;
  }
  std::fill_n(to, width, 0.0F);
  float total = 0;
  std::size_t place = skip;
  for (const float* token = first; token < end; token += width) {
    ++place;
    const float weight = pooling == Pooling::weightedmean ? static_cast<float>(place) : 1.0F;
    total += weight;
    add(weight, token, width, to);
  }
  const float divisor = pooling == Pooling::mean_sqrt_len ? std::sqrt(total) : total;
  for (std::size_t i = 0; i < width; ++i) {
    to[i] /= divisor;
  }
}

}  // namespace

class TokenRows::OneRequest : public Request {
 public:
  OneRequest(std::shared_ptr<const TokenModel> model, const Tokens& tokens, std::size_t index)
      : index_(index), model_(std::move(model)) {
    const std::size_t length = tokens.ids.size();
    memory_ = std::make_unique_for_overwrite<std::int64_t[]>(model_->inputs.size() * length);
    inputs.reserve(model_->inputs.size());
    std::int64_t* to = memory_.get();
    for (const auto& [name, kind, type] : model_->inputs) {
      if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
        fill_in(kind, tokens, reinterpret_cast<std::int32_t*>(to));
      } else {
        fill_in(kind, tokens, to);
      }
      HostTensor tensor{.type = type, .rank = 2, .shape = {}, .data = to};
      tensor.shape[0] = 1;
      tensor.shape[1] = static_cast<std::int64_t>(length);
      inputs.add(name.c_str(), tensor);
      to += length;
    }
    output_names = {model_->output.c_str()};
    endable = true;
    takes_rows = true;
  }
  ~OneRequest() override { inputs = RunInputs(); }  // before the memory in which they lie

  std::size_t index() const noexcept { return index_; }

 private:
  const std::size_t index_;
  const std::shared_ptr<const TokenModel> model_;  // has the names
  std::unique_ptr<std::int64_t[]> memory_;         // NOLINT(modernize-avoid-c-arrays): is filled once
};

TokenRows::TokenRows(std::shared_ptr<const TokenModel> model, std::size_t skip)
    : model_(std::move(model)), skip_(skip) {}

void TokenRows::fill(std::vector<Tokens> all, const std::function<void(Request&)>& apply) {
  lengths_.reserve(all.size());
  waiting_.reserve(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    lengths_.push_back(all[i].ids.size());
    waiting_.push_back(std::make_shared<OneRequest>(model_, all[i], i));
    apply(*waiting_.back());
  }
  std::ranges::stable_sort(waiting_, [this](const auto& one, const auto& other) {
    return lengths_[one->index()] < lengths_[other->index()];
  });
  left_ = all.size();
}

bool TokenRows::submit(const std::shared_ptr<Pool>& pool, const std::optional<Clock::time_point>& wait_until) {
  while (!waiting_.empty()) {
    const auto request = waiting_.back();
    if (cancelled()) {
      break;
    }
    request->receiver = shared_from_this();
    bool accepted = false;
    const ScopeExit end_cycle([&] {
      if (!accepted) {
        request->receiver = nullptr;  // which has it
      }
    });
    accepted = pool->submit(request, wait_until);
    if (!accepted) {
      return false;
    }
    waiting_.pop_back();
    MutexLock lock(mutex_);
    submitted_.emplace_back(request, pool);
    if (cancelled_) {  // meanwhile
      lock.unlock();
      pool->cancel(request);
    }
  }
  fail(nullptr);
  return true;
}

bool TokenRows::run_here(Pool& pool, bool interruptible) {
  if (waiting_.size() != 1 || !pool.run_here(*waiting_.front(), interruptible)) {
    return false;
  }
  const auto request = std::move(waiting_.back());
  waiting_.clear();
  answer(*request);
  end({0});
  return true;
}

void TokenRows::fail(const std::exception_ptr& error) {
  const auto unsubmitted = std::move(waiting_);
  waiting_.clear();
  if (lengths_.empty() && error) {  // never filled
    add_error(0, error);
    return complete();
  }
  std::vector<std::size_t> rows;
  rows.reserve(unsubmitted.size());
  for (const auto& request : unsubmitted) {
    add_error(request->index(), error);
    rows.push_back(request->index());
  }
  end(rows);
}

void TokenRows::cancel() {
  std::vector<std::pair<std::weak_ptr<Request>, std::weak_ptr<Pool>>> submitted;
  {
    const MutexLock lock(mutex_);
    cancelled_ = true;
    submitted = std::move(submitted_);
    submitted_.clear();
  }
  for (const auto& [weak_request, weak_pool] : submitted) {
    const auto request = weak_request.lock();
    const auto pool = weak_pool.lock();
    if (request && pool) {
      pool->cancel(request);
    }
  }
}

bool TokenRows::cancelled() {
  const MutexLock lock(mutex_);
  return cancelled_;
}

void TokenRows::receive(Requests finished) noexcept {
  std::vector<std::size_t> rows;
  rows.reserve(finished.size());
  for (const auto& request : finished) {
    auto& one = static_cast<OneRequest&>(*request);
    answer(one);
    rows.push_back(one.index());
  }
  finished.clear();  // their outputs' memory may be the device's
  end(rows);
}

void TokenRows::answer(OneRequest& request) noexcept {
  if (request.outcome != Request::Outcome::done) {
    const bool given_up = request.outcome == Request::Outcome::cancelled && cancelled();
    add_error(request.index(), given_up ? nullptr : request.error);  // the error is why cancel() was called
    return;
  }
  try {
    write(request);
  } catch (const std::exception&) {
    add_error(request.index(), std::current_exception());
  }
}

void TokenRows::write(const OneRequest& request) {
  std::vector<std::int64_t> shape;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const void* data = nullptr;
  std::size_t rows = 1;
  if (request.rows.outputs) {
    const JointOutputs::Output& joint = request.rows.outputs->tensors.front();
    rows = request.rows.count;
    type = joint.type;
    shape = joint.shape;
    shape.front() = static_cast<std::int64_t>(rows);
    data = joint.data + request.rows.first * joint.row_bytes;
  } else {
    HostTensor tensor;
    if (!describe(request.outputs.front(), tensor)) {
      throw Error(ErrorKind::invalid_argument, "the output of a text is no tensor of floats: choose another one");
    }
    type = tensor.type;
    shape.assign(tensor.shape.begin(), tensor.shape.begin() + static_cast<std::ptrdiff_t>(tensor.rank));
    data = tensor.data;
  }
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    count *= static_cast<std::size_t>(size);
  }
  const bool of_tokens = shape.size() == 3;
  if (shape.size() > 3 || (of_tokens && (model_->pooling.empty() || shape[0] != 1 || shape[1] == 0))) {
    HostTensor wrong;
    wrong.rank = std::min(shape.size(), wrong.shape.size());
    std::copy_n(shape.begin(), wrong.rank, wrong.shape.begin());
    throw Error(ErrorKind::invalid_argument,
                "the output has the shape " + shape_text(wrong) +
                    " for one text, and it should be (1, n): it is no model of this task, so say task= or pooling=");
  }
  const Floats floats = to_floats(type, data, count);
  if (!of_tokens) {
    std::copy_n(floats.data, count, row(request.index(), count));
    return;
  }
  const auto tokens = static_cast<std::size_t>(shape[1]);
  const auto width = static_cast<std::size_t>(shape[2]);
  float* to = row(request.index(), width * model_->pooling.size());
  for (const TokenModel::Pooling pooling : model_->pooling) {
    pool(pooling, floats.data, tokens, width, std::min(skip_, tokens - 1), to);
    to += width;
  }
}

float* TokenRows::row(std::size_t index, std::size_t width) {
  const MutexLock lock(mutex_);
  if (!table_) {
    table_ = std::make_unique_for_overwrite<float[]>(lengths_.size() * width);
    width_ = width;
  }
  if (width != width_) {
    throw Error(ErrorKind::invalid_argument, "texts have rows of " + std::to_string(width_) + " and of " +
                                                 std::to_string(width) + " numbers: choose another output");
  }
  return table_.get() + index * width;
}

void TokenRows::add_error(std::size_t index, std::exception_ptr error) noexcept {
  const MutexLock lock(mutex_);
  errors_.emplace_back(index, std::move(error));
}

float* TokenRows::table() noexcept {
  const MutexLock lock(mutex_);
  return table_.get();
}

std::optional<std::exception_ptr> TokenRows::error_of(std::size_t first, std::size_t count) noexcept {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(
      errors_, [&](const auto& error) { return error.first >= first && error.first < first + count; });
  return found == errors_.end() ? std::nullopt : std::optional(found->second);
}

void TokenRows::end(const std::vector<std::size_t>& rows) noexcept {
  if (rows.empty()) {
    return;
  }
  answered(rows);
  if (left_.fetch_sub(rows.size()) != rows.size()) {
    return;
  }
  {
    const MutexLock lock(mutex_);
    std::ranges::sort(errors_, {}, [](const auto& one) { return one.first; });
  }
  complete();
}

void normalize_rows(std::span<float> table, std::size_t width) noexcept {
  float* row = table.data();
  for (const float* const end = row + table.size(); row < end; row += width) {
    std::array<float, 16> squares{};  // as many sums, which compilers put into wide registers
    std::size_t i = 0;
    for (; i + squares.size() <= width; i += squares.size()) {
      for (std::size_t k = 0; k < squares.size(); ++k) {
        squares[k] += row[i + k] * row[i + k];
      }
    }
    for (; i < width; ++i) {
      squares[0] += row[i] * row[i];
    }
    constexpr float tiny = 1e-12F;
    const float length = std::max(tiny, std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0F)));
    for (std::size_t k = 0; k < width; ++k) {
      row[k] /= length;
    }
  }
}

}  // namespace ortmulti
