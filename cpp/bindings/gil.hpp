#pragma once

#include <Python.h>
#include <unistd.h>

namespace ortmulti::bindings {

/// Releases the GIL for its lifetime, as pybind11's gil_scoped_release does, in daemon threads too: when one of these
/// asks for the GIL of an interpreter that is ending, Python before 3.14 ends the thread by unwinding its stack, which
/// C++ turns into the process's abort. Here the thread waits for the process's end, as with newer Python.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {  // the unwinding; it must not be left
      for (;;) {
        pause();
      }
    }
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace ortmulti::bindings
