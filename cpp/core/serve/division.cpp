#include "core/serve/division.hpp"

#if defined(__linux__) && defined(__x86_64__)
#include <ucontext.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <limits>

namespace ortmulti::serve {
namespace {

struct sigaction before;

template <typename Number>
Number read(greg_t address) {
  Number number{};
  std::memcpy(&number, reinterpret_cast<const void*>(address), sizeof(Number));  // NOLINT(performance-no-int-to-ptr)
  return number;
}

// Goes on behind the instruction if it is an `idiv` of 32 or 64 bits of the smallest number by -1. False: it is none.
bool divide(greg_t* registers) {
  static constexpr std::array numbers{REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  constexpr unsigned rex_bits = 4, idiv = 0xF7, in_register = 3, sib_follows = 4, no_index = 4, no_base = 5;
  greg_t at = registers[REG_RIP];
  const auto next = [&at] { return unsigned{read<std::uint8_t>(at++)}; };
  const auto general = [&](unsigned low, unsigned high) { return registers[numbers[(low & 7U) | high << 3U]]; };
  unsigned rex = 0;
  unsigned byte = next();
  if (byte >> 4U == rex_bits) {
    rex = byte;
    byte = next();
  }
  const unsigned operand = next();
  if (byte != idiv || (operand >> 3U & 7U) != 7U) {
    return false;
  }
  const bool wide = (rex >> 3U & 1U) != 0;
  const unsigned mode = operand >> 6U;
  greg_t divisor = general(operand, rex & 1U);
  if (mode != in_register) {
    const bool has_sib = (operand & 7U) == sib_follows;
    const unsigned sib = has_sib ? next() : (operand & 7U) | no_index << 3U;
    const bool based = mode != 0 || (sib & 7U) != no_base;
    greg_t address = based ? general(sib, rex & 1U) : 0;
    if (const unsigned high = has_sib ? rex >> 1U & 1U : 0; (sib >> 3U & 7U) != no_index || high != 0) {
      address += general(sib >> 3U, high) * (greg_t{1} << (sib >> 6U));
    }
    if (mode == 1) {
      address += static_cast<std::int8_t>(next());
    } else if (mode == 2 || !based) {
      address += read<std::int32_t>(at);
      at += sizeof(std::int32_t);
    }
    address += based || has_sib ? 0 : at;  // relative to the next instruction
    divisor = wide ? read<std::int64_t>(address) : read<std::int32_t>(address);
  }
  greg_t& low = registers[REG_RAX];
  greg_t& high = registers[REG_RDX];
  const auto number = [wide](greg_t whole) { return wide ? whole : static_cast<std::int32_t>(whole); };
  const greg_t smallest = wide ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int32_t>::min();
  if (number(divisor) != -1 || number(high) != -1 || number(low) != smallest) {
    return false;
  }
  low = wide ? low : static_cast<std::uint32_t>(low);  // which is the quotient
  high = 0;
  registers[REG_RIP] = at;
  return true;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (info->si_code == FPE_INTDIV && divide(static_cast<ucontext_t*>(context)->uc_mcontext.gregs)) {
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else if (before.sa_handler == SIG_DFL || info->si_code > 0) {
    std::signal(signal, SIG_DFL);
    raise(signal);  // which is held back until this has returned
  }
}

}  // namespace

void allow_division_overflow() noexcept {
  [[maybe_unused]] static const bool done = [] {
    struct sigaction ours{};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGFPE, nullptr, &before) == 0 && sigaction(SIGFPE, &ours, nullptr) == 0;
  }();
}

}  // namespace ortmulti::serve
#else
void ortmulti::serve::allow_division_overflow() noexcept {}
#endif
