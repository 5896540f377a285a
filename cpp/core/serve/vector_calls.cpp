#include "core/serve/vector_calls.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/serve/json_rows.hpp"

namespace ortmulti::serve {
namespace {

// The most characters of a group of texts: they are tokenized in few milliseconds.
constexpr std::size_t most_characters = std::size_t{64} << 10;

std::string with_tokens(const std::string& text, std::size_t tokens) {
  std::string written;
  for (const char letter : text) {
    if (letter == '\0') {
      written += std::to_string(tokens);
    } else {
      written += letter;
    }
  }
  return written;
}

std::size_t size_of(const std::vector<std::string>& texts) {
  return std::accumulate(texts.begin(), texts.end(), std::size_t{0},
                         [](std::size_t size, const std::string& text) { return size + text.size(); });
}

}  // namespace

bool VectorGroup::reserve(std::size_t bytes_a_text) {
  return std::ranges::all_of(
      members_, [&](const Member& member) { return reserve_texts(*member.call, member.texts * bytes_a_text); });
}

void VectorGroup::leave() {
  for (const Member& member : members_) {
    if (calls_->forget(*member.call)) {
      calls_->python_.ask(member.call);
    }
  }
}

void VectorGroup::run_by(const std::shared_ptr<TokenRows>& rows) {
  {
    const MutexLock lock(calls_->mutex_);
    rows_ = rows;
    if (left_ > 0) {
      return;
    }
  }
  rows->cancel();
}

void VectorGroup::work(const std::function<void()>& task) { calls_->work(task); }

std::vector<std::size_t> VectorGroup::note(const std::vector<std::size_t>& texts) {
  std::vector<std::size_t> complete;
  for (const std::size_t text : texts) {
    const auto member = std::prev(std::ranges::upper_bound(members_, text, {}, &Member::first));
    if (member->left.fetch_sub(1) == 1) {
      complete.push_back(static_cast<std::size_t>(member - members_.begin()));
    }
  }
  return complete;
}

void VectorGroup::answer(const std::vector<std::size_t>& members, TokenRows& rows, const VectorForm& form) {
  for (const std::size_t member : members) {
    answer(members_[member], rows, form);
  }
}

void VectorGroup::fail(const std::exception_ptr& error) {
  for (const Member& member : members_) {
    if (calls_->forget(*member.call)) {
      calls_->python_.fail(member.call, error);
    }
  }
}

void VectorGroup::answer(const Member& member, TokenRows& rows, const VectorForm& form) {
  if (member.call->gone) {
    return;
  }
  if (const auto error = rows.error_of(member.first, member.texts)) {
    if (calls_->forget(*member.call)) {
      calls_->python_.fail(member.call, *error);
    }
    return;
  }
  const std::size_t width = rows.width();
  const std::size_t dimensions = form.dimensions == 0 ? width : std::min(form.dimensions, width);
  float* const table = rows.table() + member.first * width;
  for (std::size_t row = 1; dimensions < width && row < member.texts; ++row) {
    std::copy_n(table + row * width, dimensions, table + row * dimensions);
  }
  const auto begin = rows.lengths().begin() + static_cast<std::ptrdiff_t>(member.first);
  const auto tokens = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(member.texts), std::size_t{0});
  write({table, member.texts * dimensions}, dimensions, member, tokens, form);
}

void VectorGroup::write(std::span<float> numbers, std::size_t width, const Member& member, std::size_t tokens,
                        const VectorForm& form) {
  if (form.normalize) {
    normalize_rows(numbers, width);
  }
  const std::string tail = with_tokens(form.tail, tokens);
  const JsonRows writer{.numbers = numbers,
                        .columns = width,
                        .form = wish_.base64 ? JsonRows::Form::base64 : JsonRows::Form::numbers,
                        .head = form.head,
                        .tail = tail,
                        .before = form.before,
                        .behind_number = form.behind_number,
                        .behind = form.behind};
  if (!writer.is_finite() || width < form.dimensions) {  // Python says so
    if (calls_->forget(*member.call)) {
      calls_->python_.ask(member.call);
    }
    return;
  }
  std::string body(writer.most_bytes(), '\0');
  body.resize(static_cast<std::size_t>(writer.write(body.data()) - body.data()));
  body.shrink_to_fit();
  static_cast<void>(member.call->reserve(body.size()));  // the vectors are soon gone
  Reply reply{.status = 200, .headers = form.headers, .body = {}, .message = {}};
  reply.body.push_back(piece_of(std::move(body)));
  calls_->reply(member.call, std::move(reply), form.name, {member.texts, tokens});
}

void VectorCalls::open(Front& front) {
  const MutexLock lock(mutex_);
  front_ = &front;
}

bool VectorCalls::add(const std::shared_ptr<Call>& call) {
  std::optional<AskedVectors> asked = read_vectors(*call);
  if (!asked || !reserve_texts(*call)) {
    return false;
  }
  const MutexLock lock(mutex_);
  if (closed_) {
    return false;
  }
  known_.emplace(call.get(), nullptr);
  waiting_.push_back({call, std::move(*asked)});
  changed_.notify_one();
  return true;
}

bool VectorCalls::gone(const Call& call) {
  std::shared_ptr<TokenRows> unwanted;
  {
    const MutexLock lock(mutex_);
    const auto found = known_.find(&call);
    if (found == known_.end()) {
      return false;
    }
    const auto group = found->second;
    forget_locked(call);
    if (group == nullptr) {
      std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.call.get() == &call; });
    } else if (group->left_ == 0) {
      unwanted = group->rows_.lock();
    }
  }
  if (unwanted) {
    unwanted->cancel();
  }
  return true;
}

std::shared_ptr<VectorGroup> VectorCalls::take(std::size_t most) {
  std::shared_ptr<VectorGroup> group;
  for (bool closed = false; group == nullptr && !closed;) {
    std::vector<std::shared_ptr<Call>> longer;
    MutexLock lock(mutex_);
    changed_.wait(mutex_, [this]() ORTMULTI_REQUIRES(mutex_) { return closed_ || !waiting_.empty(); });
    closed = closed_;
    std::size_t characters = 0;
    for (auto each = waiting_.begin(); each != waiting_.end();) {
      auto& [wish, texts] = each->asked;
      const std::size_t size = size_of(texts);
      if (texts.size() > most) {
        forget_locked(*each->call);
        longer.push_back(std::move(each->call));
        each = waiting_.erase(each);
        continue;
      }
      if (group == nullptr) {
        group = std::make_shared<VectorGroup>(shared_from_this(), std::move(wish));
      } else if (group->wish_ != wish || group->texts_.size() + texts.size() > most ||
                 characters + size > most_characters) {
        ++each;
        continue;
      }
      characters += size;
      known_[each->call.get()] = group;
      ++group->left_;
      group->members_.emplace_back(std::move(each->call), group->texts_.size(), texts.size(), texts.size());
      std::ranges::move(texts, std::back_inserter(group->texts_));
      each = waiting_.erase(each);
      if (group->texts_.size() == most) {
        break;
      }
    }
    lock.unlock();
    for (auto& call : longer) {
      python_.ask(std::move(call));
    }
  }
  return group;
}

void VectorCalls::close() {
  decltype(waiting_) waiting;
  decltype(known_) known;  // which know this
  const MutexLock lock(mutex_);
  closed_ = true;
  front_ = nullptr;
  waiting.swap(waiting_);
  known.swap(known_);
  changed_.notify_all();
}

void VectorCalls::work(const std::function<void()>& task) {
  {
    const MutexLock lock(mutex_);
    if (front_ == nullptr || front_->work(task)) {
      return;
    }
  }
  task();
}

std::map<std::string, VectorCalls::Counts> VectorCalls::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

bool VectorCalls::forget(const Call& call) {
  const MutexLock lock(mutex_);
  return forget_locked(call);
}

bool VectorCalls::forget_locked(const Call& call) {
  const auto found = known_.find(&call);
  if (found == known_.end()) {
    return false;
  }
  if (found->second != nullptr) {
    --found->second->left_;
  }
  known_.erase(found);
  return true;
}

void VectorCalls::reply(const std::shared_ptr<Call>& call, Reply reply, const std::string& model,
                        const Counts& counts) {
  const MutexLock lock(mutex_);
  if (front_ == nullptr || !forget_locked(*call)) {
    return;
  }
  Counts& counted = counts_[model];
  counted.texts += counts.texts;
  counted.tokens += counts.tokens;
  front_->reply(call, std::move(reply));
}

}  // namespace ortmulti::serve
