#include "core/serve/infer.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/ort/value.hpp"
#include "core/serve/answer.hpp"
#include "core/serve/asked.hpp"
#include "core/serve/infer_grpc.hpp"
#include "core/serve/infer_http.hpp"
#include "core/serve/public_text.hpp"
#include "core/serve/route.hpp"
#include "core/serve/tensors.hpp"

namespace ortmulti::serve {
namespace {

constexpr const char* gone = "the client has gone";
constexpr std::size_t small_answer = std::size_t{64} << 10;  // is not worth to be expected
// To hand a request over takes the loop about as long, and a switch of threads that others pay for.
constexpr std::chrono::microseconds longest_run_here{30};
// A model with so many runs that took so long, though they are short, is never run here again: its input may decide.
constexpr std::chrono::milliseconds much_too_long{1};
constexpr int most_surprises = 3;
constexpr std::size_t largest_run_here = std::size_t{64} << 10;  // in bytes: a larger one may take longer than others

Begun python_answers() {
  Begun begun;
  begun.not_mine = true;
  return begun;
}

Begun answered(Reply reply) {
  Begun begun;
  begun.reply = std::make_unique<Reply>(std::move(reply));
  return begun;
}

// Null: Python is to answer.
std::shared_ptr<const ServedModel> find_model(const ServedModels& models, std::string_view name,
                                              std::string_view version) {
  std::shared_ptr<const ServedModel> model = models.find(name);
  const bool fits = model && (version.empty() || version == model->version);
  return fits ? std::move(model) : nullptr;
}

std::uint64_t number_of(const std::string& peer) {
  return peer.empty() ? 0 : std::max(std::uint64_t{std::hash<std::string>()(peer)}, std::uint64_t{1});
}

// The value of gRPC's header grpc-timeout: at most eight digits, and a unit.
std::optional<std::chrono::nanoseconds> call_timeout(const Call& call) {
  using std::chrono::nanoseconds;
  const std::string* const header = find(call.headers, "grpc-timeout");
  constexpr std::size_t most_digits = 8;
  if (header == nullptr || header->size() < 2 || header->size() > most_digits + 1) {
    return std::nullopt;
  }
  const auto count = whole_number<std::int64_t>(std::string_view(*header).substr(0, header->size() - 1));
  if (!count) {
    return std::nullopt;
  }
  constexpr nanoseconds most = std::chrono::hours(24 * 365);
  const auto times = [&](nanoseconds unit) { return *count > most / unit ? most : *count * unit; };
  switch (header->back()) {
    case 'H':
      return times(std::chrono::hours(1));
    case 'M':
      return times(std::chrono::minutes(1));
    case 'S':
      return times(std::chrono::seconds(1));
    case 'm':
      return times(std::chrono::milliseconds(1));
    case 'u':
      return times(std::chrono::microseconds(1));
    case 'n':
      return nanoseconds(*count);
    default:
      return std::nullopt;
  }
}

void set_deadline_of_call(InferRequest& request) {
  if (request.call->protocol != Protocol::grpc) {
    return;
  }
  if (const auto timeout = call_timeout(*request.call)) {
    const Request::Clock::time_point end = request.call->since + *timeout;
    request.deadline_of_call = !request.deadline || end < *request.deadline;
    request.deadline = request.deadline_of_call ? end : *request.deadline;
  }
}

Reply refused(const InferRequest& request, const std::exception_ptr& error) {
  if (request.deadline_of_call && kind_of(error) == ErrorKind::deadline) {
    return refused(*request.call, 504, "Deadline Exceeded", request.id);
  }
  const PublicError found = public_error(error);
  return refused(*request.call, found.status, found.text, request.id);
}

// Whether a run takes less of this thread's time than to hand the request over.
bool is_short(const InferRequest& request) {
  const std::chrono::nanoseconds known = request.model->run_time.load(std::memory_order_relaxed);
  return known.count() > 0 && known < longest_run_here && request.model->surprises < most_surprises &&
         request.call->body.size() <= largest_run_here;
}

void note_run(const InferRequest& request) {
  if (request.ran_on != Device::cpu()) {
    return;
  }
  constexpr int share = 8;  // of a run in the average
  std::atomic<std::chrono::nanoseconds>& average = request.model->run_time;
  const std::chrono::nanoseconds known = average.load(std::memory_order_relaxed);
  const std::chrono::nanoseconds run = std::max(request.ended - request.started, Request::Clock::duration(share));
  if (known.count() > 0 && known < longest_run_here && run > much_too_long) {
    ++request.model->surprises;
  }
  // A run that was interrupted says little.
  const std::chrono::nanoseconds change = (std::min(run, 2 * known) - known) / share;
  average.store(known.count() == 0 ? run : known + change, std::memory_order_relaxed);
}

std::size_t bytes_of(const Ort::Value& output) {
  if (!output || !output.IsTensor()) {
    return 0;
  }
  const auto info = output.GetTensorTypeAndShapeInfo();
  if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    return tensor_bytes(output);
  }
  // With its binary form, which is made in two steps.
  const std::size_t characters = output.GetStringTensorDataLength();
  constexpr std::size_t each = sizeof(std::size_t) + sizeof(std::uint32_t);
  return string_tensor_bytes(info.GetElementCount(), characters) + info.GetElementCount() * each + 2 * characters;
}

// Submits a request to the model's pool.
Begun submit(const std::shared_ptr<Call>& call, std::shared_ptr<const ServedModel> model, const Asked& asked,
             const std::shared_ptr<Receiver>& receiver) {
  const std::shared_ptr<Pool> pool = model->pool.lock();
  if (!pool) {
    return python_answers();
  }
  const auto request = std::make_shared<InferRequest>(call, std::move(model));
  Begun begun;
  request->counted = call->bytes.count();
  request->id = asked.id;
  call->id = asked.id.substr(0, Call::most_of_id);
  try {
    request->memory->body = {call->body.memory(), call->body.size()};
    fill_in(*request, asked);
    set_deadline_of_call(*request);
    if (!request->expect_answer()) {
      throw Refused(503, no_memory_for_answers);
    }
    if (call->gone) {
      throw Refused(499, gone);
    }
    request->endable = true;
    request->takes_rows = true;
    request->caller = number_of(call->peer);
    request->receiver = receiver;
    if (is_short(*request) && pool->run_here(*request, true)) {
      begun.ended = true;
      request->count_answer();
    } else if (!pool->submit(request, Request::Clock::now())) {
      throw pool->reject();
    }
  } catch (const Refused& wrong) {
    return answered(refused(*call, wrong.status, wrong.text, request->id));
  } catch (const std::exception&) {
    const std::exception_ptr error = std::current_exception();
    if (kind_of(error) == ErrorKind::closed) {
      call->bytes.resize_down(request->counted);
      return python_answers();
    }
    return answered(refused(*request, error));
  }
  begun.request = request;
  return begun;
}

Begun begin_http(const std::shared_ptr<Call>& call, const ServedModels& models, const Limits& limits,
                 const std::shared_ptr<Receiver>& receiver) {
  const auto target = target_of(*call);
  auto model = target ? find_model(models, target->model, target->version) : nullptr;
  if (!model || find(call->headers, "content-encoding") != nullptr) {
    return python_answers();
  }
  return submit(call, std::move(model), read_http(*call, limits), receiver);
}

Begun begin_grpc(const std::shared_ptr<Call>& call, const ServedModels& models, const Limits& limits,
                 const std::shared_ptr<Receiver>& receiver) {
  if (route_of(*call) != Route::infer) {
    return python_answers();
  }
  GrpcRequest sent;
  try {
    sent = read_grpc(call->body.text(), limits.tensors);
  } catch (const Error&) {
    return answered(refusal(Protocol::grpc, 500, "Exception deserializing request!"));
  }
  auto model = find_model(models, sent.model, sent.version);
  const std::string id = sent.id;
  try {
    const Asked asked = check_grpc(std::move(sent), limits.tensors);
    return model ? submit(call, std::move(model), asked, receiver) : python_answers();
  } catch (const Refused& wrong) {
    return answered(refused(*call, wrong.status, wrong.text, id));
  }
}

std::int64_t milliseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

void ServedModels::put(const std::shared_ptr<ServedModel>& model) {
  std::shared_ptr<const ServedModel> before;  // freed without the lock
  const MutexLock lock(mutex_);
  std::shared_ptr<const ServedModel>& place = models_[model->name];
  if (place) {
    model->counts = place->counts;
  }
  before = std::exchange(place, model);
}

std::shared_ptr<const ServedModel> ServedModels::find(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto found = models_.find(name);
  return found == models_.end() ? nullptr : found->second;
}

void CountedAnswers::receive(Requests finished) noexcept {
  for (const auto& request : finished) {
    static_cast<InferRequest&>(*request).count_answer();
  }
  receiver_->receive(std::move(finished));
}

std::size_t string_tensor_bytes(std::size_t count, std::size_t characters) noexcept {
  // Strings of up to 15 bytes lie in themselves. Longer ones have up to 48 bytes, or 24 more than they need.
  constexpr std::size_t own = 24;
  constexpr std::size_t most_for_one = 3;
  return count * sizeof(std::string) + std::min(most_for_one * characters, characters + own * count);
}

void InferRequest::prepare(const std::shared_ptr<Session>& /*session*/) {
  if (!expect_answer()) {
    answer_dropped = true;
    throw Error(ErrorKind::queue_full, no_memory_for_answers);
  }
}

bool InferRequest::expect_answer() noexcept {
  // One that takes more is computed where there is nothing else: only the last answers may have been so large.
  const std::size_t most = call->bytes.limit() / 2;
  const bool has_text = std::ranges::any_of(wanted, [](const Output& output) { return !output.binary; });
  const std::size_t text = has_text ? std::min(model->text_size.expected(input_bytes), most / 2) : 0;
  const std::size_t expected = std::min(model->answer_size.expected(input_bytes), most) + text;
  if (expected <= small_answer) {
    return true;
  }
  text_bytes = text;
  return answer_bytes.grow_to(expected);
}

void InferRequest::count_answer() noexcept {
  if (outcome != Outcome::done) {  // of a request that was given up, the run may still write outputs
    return;
  }
  try {
    std::size_t bytes = 0;
    for (const Ort::Value& output : outputs) {
      bytes += bytes_of(output);
    }
    if (rows.outputs) {
      for (const JointOutputs::Output& output : rows.outputs->tensors) {
        bytes += rows.count * output.row_bytes;
      }
    }
    model->answer_size.note(input_bytes, bytes);
    bytes += text_bytes;
    answer_dropped = bytes > small_answer && !answer_bytes.grow_to(bytes);
    answer_bytes.resize_down(bytes);
    text_bytes = std::min(text_bytes, answer_bytes.count());
  } catch (const std::exception&) {  // for lack of memory
    answer_dropped = true;
  }
  if (answer_dropped) {
    clear_outputs();
    answer_bytes.resize_down(0);
  }
}

bool InferRequest::Memory::has(const void* address) const noexcept {
  const auto within = [address = static_cast<const std::byte*>(address)](const Block& block) {
    const std::less<> before;
    return !before(address, block.memory.get()) && before(address, block.memory.get() + block.size);
  };
  return address != nullptr && (within(body) || std::ranges::any_of(blocks, within));
}

std::optional<Target> target_of(const Call& call) {
  if (route_of(call) != Route::infer) {
    return std::nullopt;
  }
  if (call.protocol == Protocol::http) {
    auto path = infer_path(call.path);
    return path ? std::optional<Target>({std::move(path->model), std::move(path->version), {}}) : std::nullopt;
  }
  Target target;
  if (call.compressed) {
    return target;
  }
  try {
    GrpcRequest sent = read_grpc(call.body.text(), 0);
    target = {std::move(sent.model), std::move(sent.version), std::move(sent.id)};
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): begin_infer() says so
  }
  return target;
}

Begun begin_infer(const std::shared_ptr<Call>& call, const ServedModels& models, const Limits& limits,
                  const std::shared_ptr<Receiver>& receiver) {
  if (call->gone) {  // it waited for a worker
    return answered(refused(*call, 499, gone));
  }
  try {
    return (call->protocol == Protocol::http ? begin_http : begin_grpc)(call, models, limits, receiver);
  } catch (const Refused& wrong) {
    return answered(refused(*call, wrong.status, wrong.text));
  } catch (const std::exception&) {
    const PublicError found = public_error(std::current_exception());
    return answered(refused(*call, found.status, found.text));
  }
}

std::optional<Reply> reply_of(InferRequest& request) {
  if (request.answer_dropped) {
    return refused(*request.call, 503, no_memory_for_answers, request.id);
  }
  if (request.outcome != Request::Outcome::done) {
    if (kind_of(request.error) == ErrorKind::closed) {
      request.call->bytes.resize_down(request.counted);
      return std::nullopt;
    }
    if (request.outcome == Request::Outcome::cancelled) {
      return refused(*request.call, 499, gone, request.id);
    }
    return refused(request, request.error);
  }
  if (request.call->gone) {  // it waited for a worker
    return refused(*request.call, 499, gone, request.id);
  }
  request.call->bytes.take_over(request.answer_bytes);
  try {
    const std::vector<Answer> answers = take_answers(request);
    Reply reply =
        request.call->protocol == Protocol::http ? write_http(request, answers) : write_grpc(request, answers);
    request.model->counts->inferences += request.row_count;
    request.model->counts->last = milliseconds_now();
    note_run(request);
    request.call->timing = timing_of(request);
    return reply;
  } catch (const std::exception&) {
    return refused(request, std::current_exception());
  }
}

void cancel(const std::shared_ptr<InferRequest>& request) {
  if (const std::shared_ptr<Pool> pool = request->model->pool.lock()) {
    try {
      pool->cancel(request);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the pool is closed, or another process's
    }
  }
}

Reply refused(const Call& call, int status, std::string_view text, std::string_view id) {
  return call.streamed ? stream_error(text, id) : refusal(call.protocol, status, text, call.path);
}

}  // namespace ortmulti::serve
