// A CUDA driver of three GPUs for tests in Python: its memory is the host's, and it writes a line for each call that
// matters into the file that FAKE_DRIVER_LOG names. The declarations are the driver's own, reduced to plain types.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER __attribute__((visibility("default")))

static void say(const char* format, ...) {
  FILE* log = fopen(getenv("FAKE_DRIVER_LOG"), "a");
  va_list arguments;
  va_start(arguments, format);
  vfprintf(log, format, arguments);
  va_end(arguments);
  fclose(log);
}

DRIVER int cuInit(unsigned flags) {
  say("init %u\n", flags);
  return 0;
}
static int driver_version(int* version) {
  *version = 12000;
  return 0;
}
static int device_count(int* count) {
  *count = 3;
  return 0;
}
DRIVER int cuDeviceGet(int* handle, int index) {
  *handle = index;
  return 0;
}
DRIVER int cuDevicePrimaryCtxRetain(void** context, int handle) {
  say("context %d\n", handle);
  *context = (void*)(intptr_t)(handle + 1);
  return 0;
}
static __thread void* current;
DRIVER int cuCtxSetCurrent(void* context) {
  current = context;
  return 0;
}
DRIVER int cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}
static int memory(size_t* available, size_t* total) {
  *available = *total = (size_t)1 << 30;
  return 0;
}
DRIVER int cuMemHostAlloc(void** memory, size_t size, unsigned flags) {
  say("pin %zu %u\n", size, flags);
  *memory = malloc(size);
  return 0;
}
DRIVER int cuMemFreeHost(void* memory) {
  say("unpin\n");
  free(memory);
  return 0;
}
static char* allocated;
DRIVER int cuMemAlloc_v2(uint64_t* address, size_t size) {
  say("allocate %zu\n", size);
  allocated = malloc(size);
  *address = (uint64_t)(uintptr_t)allocated;
  return 0;
}
DRIVER int cuMemFree_v2(uint64_t address) {
  say("free\n");
  free((void*)(uintptr_t)address);
  return 0;
}
DRIVER int cuStreamCreate(void** stream, unsigned flags) {
  say("stream %u\n", flags);
  *stream = &allocated;
  return 0;
}
DRIVER int cuStreamDestroy_v2(void* stream) {
  say(stream == &allocated ? "end of stream\n" : "wrong stream\n");
  return 0;
}
DRIVER int cuStreamSynchronize(void* stream) {
  say(stream == &allocated ? "wait\n" : "wrong stream\n");
  return 0;
}
DRIVER int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t size, void* stream) {
  const size_t offset = (size_t)((char*)(uintptr_t)target - allocated);
  say(stream == &allocated ? "copy %zu to %zu\n" : "wrong stream\n", size, offset);
  memcpy((char*)(uintptr_t)target, source, size);
  return 0;
}

static int not_expected(void) {
  say("unexpected\n");
  return 801;
}

DRIVER int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* found) {
  static const struct {
    const char* name;
    void* function;
  } functions[] = {
      {"cuInit", (void*)cuInit},
      {"cuDriverGetVersion", (void*)driver_version},
      {"cuDeviceGetCount", (void*)device_count},
      {"cuDeviceGet", (void*)cuDeviceGet},
      {"cuDevicePrimaryCtxRetain", (void*)cuDevicePrimaryCtxRetain},
      {"cuCtxSetCurrent", (void*)cuCtxSetCurrent},
      {"cuCtxGetCurrent", (void*)cuCtxGetCurrent},
      {"cuMemGetInfo", (void*)memory},
  };
  (void)version, (void)flags;
  *function = (void*)not_expected;
  *found = 0;
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
    if (strcmp(functions[i].name, name) == 0) {
      *function = functions[i].function;
    }
  }
  return 0;
}
