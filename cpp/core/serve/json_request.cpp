#include "core/serve/json_request.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "core/serve/json_events.hpp"

namespace ortmulti::serve {
namespace {

using Kind = SentValue::Kind;

constexpr std::size_t max_depth = 256;

std::string printed(double value) {
  std::string text;
  append_json_number(text, value);
  return text == "NaN" ? "nan" : text == "Infinity" ? "inf" : text == "-Infinity" ? "-inf" : text;
}

class RequestReader : public JsonEvents<RequestReader> {
 public:
  RequestReader(JsonRequest& into, std::size_t most_tensors) : into_(into), most_(most_tensors) { places_.reserve(8); }

  bool key(const std::string& name) {
    note_child();
    slot_ = slot_of(places_.back().place, name);
    return true;
  }
  bool string(std::string& text) {
    if (next() == Slot::element) {
      into_.input.back().values.characters += text.size();
      return value({Kind::text});
    }
    return next() == Slot::ignored ? value({Kind::text})
                                   : value({Kind::text, !text.empty(), std::nullopt, std::move(text)});
  }
  bool number(auto number) {
    constexpr bool real = std::is_same_v<decltype(number), double>;
    if (next() == Slot::element || next() == Slot::ignored) {
      return value({real ? Kind::real : Kind::integer});
    }
    if constexpr (real) {
      return value({Kind::real, number != 0, std::nullopt, printed(number)});
    } else {
      const auto fits = std::in_range<std::int64_t>(number);
      const auto integer = fits ? std::optional(static_cast<std::int64_t>(number)) : std::nullopt;
      return value({Kind::integer, number != 0, integer, std::to_string(number)});
    }
  }
  bool large_integer(double /*value*/, const std::string& token) {
    return value({Kind::integer, true, std::nullopt, token});
  }

  bool value(SentValue sent) {
    note_child();
    const Slot slot = next();
    if (slot == Slot::element) {
      add_element(sent.kind);
    } else if (slot == Slot::dimension) {
      add_dimension(sent);
    } else if (SentValue* const part = begin(slot)) {
      *part = std::move(sent);
    }
    return true;
  }
  bool open(Kind kind) {
    note_child();
    const Slot slot = next();
    Place place = Place::other;
    SentValue* part = nullptr;
    if (slot == Slot::element) {
      if (add_element(kind)) {
        place = Place::data;
        ++data_depth_;
      }
    } else if (slot == Slot::dimension) {
      add_dimension({kind});
    } else {
      part = begin(slot);
    }
    if (part != nullptr) {
      *part = {kind};
      place = place_of(slot, kind == Kind::list);
      data_depth_ = 0;
    }
    if (places_.size() == max_depth) {
      return fail("it is nested too deeply");
    }
    places_.push_back({place, part});
    if (place == Place::data) {
      cursor().read_numbers([this](const JsonNumber& number) {
        note_child();
        add_element(number.real ? Kind::real : Kind::integer);
      });
    }
    return true;
  }
  bool close() {
    if (places_.back().place == Place::data && data_depth_ > 0) {
      --data_depth_;
    }
    places_.pop_back();
    return true;
  }

 private:
  // Where a value is, that is a list or an object.
  enum class Place : std::uint8_t {
    other,
    request,
    parameters,
    inputs,
    input,
    input_parameters,
    shape,
    data,
    outputs,
    output,
    output_parameters
  };
  // What a value is.
  enum class Slot : std::uint8_t {
    ignored,
    request,
    id,
    parameters,
    timeout,
    priority,
    binary_data_output,
    inputs,
    input,
    name,
    datatype,
    shape,
    dimension,
    input_parameters,
    binary_data_size,
    input_shared_memory,
    data,
    element,
    outputs,
    output,
    output_name,
    output_parameters,
    output_shared_memory,
    classification,
    binary_data
  };
  struct Open {
    Place place;
    SentValue* part;  // where it is noted, to say whether it is empty
  };

  static Slot slot_of(Place place, std::string_view name) {
    struct Member {
      std::string_view name;
      Place place;
      Slot slot;
    };
    static constexpr Member members[] = {
        {"id", Place::request, Slot::id},
        {"parameters", Place::request, Slot::parameters},
        {"inputs", Place::request, Slot::inputs},
        {"outputs", Place::request, Slot::outputs},
        {"timeout", Place::parameters, Slot::timeout},
        {"priority", Place::parameters, Slot::priority},
        {"binary_data_output", Place::parameters, Slot::binary_data_output},
        {"name", Place::input, Slot::name},
        {"datatype", Place::input, Slot::datatype},
        {"shape", Place::input, Slot::shape},
        {"parameters", Place::input, Slot::input_parameters},
        {"data", Place::input, Slot::data},
        {"binary_data_size", Place::input_parameters, Slot::binary_data_size},
        {"shared_memory_region", Place::input_parameters, Slot::input_shared_memory},
        {"name", Place::output, Slot::output_name},
        {"parameters", Place::output, Slot::output_parameters},
        {"shared_memory_region", Place::output_parameters, Slot::output_shared_memory},
        {"classification", Place::output_parameters, Slot::classification},
        {"binary_data", Place::output_parameters, Slot::binary_data},
    };
    const auto* const found = std::ranges::find_if(
        members, [&](const Member& member) { return member.place == place && member.name == name; });
    return found == std::end(members) ? Slot::ignored : found->slot;
  }

  static Place place_of(Slot slot, bool list) {
    switch (slot) {
      case Slot::inputs:
        return list ? Place::inputs : Place::other;
      case Slot::outputs:
        return list ? Place::outputs : Place::other;
      case Slot::shape:
        return list ? Place::shape : Place::other;
      case Slot::data:
        return list ? Place::data : Place::other;
      case Slot::request:
        return list ? Place::other : Place::request;
      case Slot::parameters:
        return list ? Place::other : Place::parameters;
      case Slot::input:
        return list ? Place::other : Place::input;
      case Slot::input_parameters:
        return list ? Place::other : Place::input_parameters;
      case Slot::output:
        return list ? Place::other : Place::output;
      case Slot::output_parameters:
        return list ? Place::other : Place::output_parameters;
      default:
        return Place::other;
    }
  }

  Slot next() const {
    if (places_.empty()) {
      return Slot::request;
    }
    switch (places_.back().place) {
      case Place::other:
        return Slot::ignored;
      case Place::inputs:
        return Slot::input;
      case Place::outputs:
        return Slot::output;
      case Place::shape:
        return Slot::dimension;
      case Place::data:
        return Slot::element;
      default:
        return slot_;
    }
  }

  void note_child() {
    if (!places_.empty() && places_.back().part != nullptr) {
      places_.back().part->truthy = true;
    }
  }

  // Where the value is noted, with all of an earlier one forgotten; null: it is not noted.
  SentValue* begin(Slot slot);
  static SentValue* begin(Slot slot, JsonRequest::Input& input);
  static SentValue* begin(Slot slot, JsonRequest::Output& output);

  void add_dimension(const SentValue& sent) {
    SentShape& sizes = into_.input.back().sizes;
    const bool plain = sent.is(Kind::integer) && sent.integer;
    if (!plain && sizes.count < SentShape::max_dimensions) {
      sizes.odd.emplace_back(sizes.count, shortened(sent.is(Kind::text) ? sent.text : repr(sent), 20));
    }
    sizes.add(plain ? *sent.integer : -1);
  }

  // Whether it is a list whose values are elements, too.
  bool add_element(Kind kind) {
    JsonRequest::Input& input = into_.input.back();
    using First = JsonRequest::Input::First;
    if (data_depth_ >= input.first.size()) {
      input.values.add(kind);
      return false;
    }
    First& first = input.first.at(data_depth_);
    const bool list = kind == Kind::list;
    if (first == First::unknown) {
      first = list ? First::list : First::value;
    }
    if (first == First::value) {
      input.values.add(kind);
      return false;
    }
    input.values.uneven = input.values.uneven || !list;
    return list;
  }

  JsonRequest& into_;
  const std::size_t most_;
  std::vector<Open> places_;
  Slot slot_ = Slot::ignored;   // of the key that was read last
  std::size_t data_depth_ = 0;  // how many lists of `data` are open but for the outermost
};

SentValue* RequestReader::begin(Slot slot) {
  if (slot >= Slot::output_name) {
    return begin(slot, into_.output.back());
  }
  switch (slot) {
    case Slot::ignored:
      return nullptr;
    case Slot::request:
      return &into_.self;
    case Slot::id:
      return &into_.id;
    case Slot::parameters:
      into_.timeout = into_.priority = into_.binary_data_output = {};
      return &into_.parameters;
    case Slot::timeout:
      return &into_.timeout;
    case Slot::priority:
      return &into_.priority;
    case Slot::binary_data_output:
      return &into_.binary_data_output;
    case Slot::inputs:
      into_.input.clear();
      into_.input_count = 0;
      return &into_.inputs;
    case Slot::input:
      return ++into_.input_count > most_ ? nullptr : &into_.input.emplace_back().self;
    case Slot::outputs:
      into_.output.clear();
      into_.output_count = 0;
      return &into_.outputs;
    case Slot::output:
      return ++into_.output_count > most_ ? nullptr : &into_.output.emplace_back().self;
    default:
      return begin(slot, into_.input.back());
  }
}

SentValue* RequestReader::begin(Slot slot, JsonRequest::Input& input) {
  switch (slot) {
    case Slot::name:
      return &input.name;
    case Slot::datatype:
      return &input.datatype;
    case Slot::shape:
      input.sizes = {};
      return &input.shape;
    case Slot::data:
      input.values = {};
      input.first = {};
      return &input.data;
    case Slot::input_parameters:
      input.shared_memory = false;
      input.binary_data_size = {};
      return &input.parameters;
    case Slot::binary_data_size:
      return &input.binary_data_size;
    default:  // input_shared_memory
      input.shared_memory = true;
      return nullptr;
  }
}

SentValue* RequestReader::begin(Slot slot, JsonRequest::Output& output) {
  switch (slot) {
    case Slot::output_name:
      return &output.name;
    case Slot::output_parameters:
      output.shared_memory = false;
      output.classification = output.binary_data = {};
      return &output.parameters;
    case Slot::classification:
      return &output.classification;
    case Slot::binary_data:
      return &output.binary_data;
    default:  // output_shared_memory
      output.shared_memory = true;
      return nullptr;
  }
}

}  // namespace

JsonRequest read_json(std::string_view text, std::size_t most_tensors) {
  JsonRequest request;
  RequestReader(request, most_tensors).read(text);
  return request;
}

}  // namespace ortmulti::serve
