// A CUDA driver of three GPUs for tests in Python: their memory is the host's, and a copy is done when it is asked for.
// The declarations are the driver's own, reduced to plain types. It writes a line for each call that matters into the
// file that FAKE_DRIVER_LOG names. live() counts what was not freed, copies() the copies from the host,
// frees_with_gil() the calls of cuMemFree by a thread that held the GIL. The last GPU reaches no other.
// FAKE_DRIVER_FULL names a GPU without memory; FAKE_DRIVER_INTERRUPT is the copy at which this process gets a SIGINT,
// after which a copy takes a millisecond. INIT_MS and CONTEXT_MS are the milliseconds that the first cuInit and each
// context take, one after another as the real driver makes them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRIVER __attribute__((visibility("default")))

static atomic_int lives, copied, freed_with_gil;
static _Thread_local void* current;

DRIVER int live(void) { return lives; }
DRIVER int copies(void) { return copied; }
DRIVER int frees_with_gil(void) { return freed_with_gil; }

static int setting(const char* name) {
  const char* value = getenv(name);
  return value == NULL ? -1 : atoi(value);
}
static void say(const char* format, ...) {
  FILE* log = fopen(getenv("FAKE_DRIVER_LOG"), "a");
  va_list arguments;
  va_start(arguments, format);
  vfprintf(log, format, arguments);
  va_end(arguments);
  fclose(log);
}
static int succeed(void) { return 0; }
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static void sleep_in_turn(const char* name) {
  const int milliseconds = setting(name);
  if (milliseconds > 0) {
    pthread_mutex_lock(&turn);
    usleep((useconds_t)milliseconds * 1000);
    pthread_mutex_unlock(&turn);
  }
}
static pthread_once_t started = PTHREAD_ONCE_INIT;
static void start(void) { sleep_in_turn("INIT_MS"); }
DRIVER int cuInit(unsigned flags) {
  say("init %u\n", flags);
  pthread_once(&started, start);
  return 0;
}
static int not_supported(void) {
  say("unexpected\n");
  return 801;
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
static int device_name(char* text, int length, int handle) {
  snprintf(text, (size_t)length, "memory %d", handle);
  return 0;
}
static int device_uuid(void* uuid, int handle) {
  memset(uuid, handle, 16);
  return 0;
}
static int total_memory(size_t* bytes, int handle) {
  (void)handle;
  *bytes = (size_t)1 << 30;
  return 0;
}
static int device_attribute(int* value, int attribute, int handle) {
  (void)attribute, (void)handle;
  *value = 9;
  return 0;
}
static int can_access_peer(int* can, int device, int peer) {
  *can = device != 2 && peer != 2;
  return 0;
}
DRIVER int cuDevicePrimaryCtxRetain(void** context, int handle) {
  say("context %d\n", handle);
  sleep_in_turn("CONTEXT_MS");
  *context = (void*)(intptr_t)(handle + 1);
  return 0;
}
DRIVER int cuCtxSetCurrent(void* context) {
  current = context;
  return 0;
}
DRIVER int cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}
static int memory_info(size_t* available, size_t* total) {
  *available = *total = (size_t)1 << 30;
  return 0;
}
static char* allocated;
DRIVER int cuMemAlloc_v2(uint64_t* address, size_t size) {
  say("allocate %zu\n", size);
  if ((intptr_t)current == setting("FAKE_DRIVER_FULL") + 1) {
    return 2;
  }
  ++lives;
  allocated = aligned_alloc(256, (size + 255) / 256 * 256);
  *address = (uint64_t)(uintptr_t)allocated;
  return 0;
}
DRIVER int cuMemFree_v2(uint64_t address) {
  say("free\n");
  int (*holds_gil)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
  freed_with_gil += holds_gil != NULL && holds_gil();
  --lives;
  free((void*)(uintptr_t)address);
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
static int begin(void** object) {  // of streams and events
  ++lives;
  *object = malloc(1);
  return 0;
}
static int end(void* object) {
  --lives;
  free(object);
  return 0;
}
DRIVER int cuStreamCreate(void** stream, unsigned flags) {
  say("stream %u\n", flags);
  return begin(stream);
}
DRIVER int cuStreamDestroy_v2(void* stream) {
  say("end of stream\n");
  return end(stream);
}
DRIVER int cuStreamSynchronize(void* stream) {
  say(stream == NULL ? "wrong stream\n" : "wait\n");
  return 0;
}
DRIVER int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t size, void* stream) {
  const size_t offset = (size_t)((char*)(uintptr_t)target - allocated);
  say(stream == NULL ? "wrong stream\n" : "copy %zu to %zu\n", size, offset);
  const int interrupt = setting("FAKE_DRIVER_INTERRUPT");
  const int number = ++copied;
  if (number == interrupt) {
    kill(getpid(), SIGINT);
  } else if (interrupt >= 0 && number > interrupt) {
    usleep(1000);
  }
  memcpy((void*)(uintptr_t)target, source, size);
  return 0;
}
static int copy_to_host(void* target, uint64_t source, size_t size) {
  memcpy(target, (void*)(uintptr_t)source, size);
  return 0;
}
static int copy_from_peer(uint64_t target, void* context, uint64_t source, void* peer, size_t size) {
  (void)context, (void)peer;
  memcpy((void*)(uintptr_t)target, (void*)(uintptr_t)source, size);
  return 0;
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
      {"cuDeviceGetName", (void*)device_name},
      {"cuDeviceGetPCIBusId", (void*)device_name},
      {"cuDeviceGetUuid", (void*)device_uuid},
      {"cuDeviceTotalMem", (void*)total_memory},
      {"cuDeviceGetAttribute", (void*)device_attribute},
      {"cuDeviceCanAccessPeer", (void*)can_access_peer},
      {"cuDevicePrimaryCtxRetain", (void*)cuDevicePrimaryCtxRetain},
      {"cuCtxSetCurrent", (void*)cuCtxSetCurrent},
      {"cuCtxGetCurrent", (void*)cuCtxGetCurrent},
      {"cuCtxEnablePeerAccess", (void*)succeed},
      {"cuMemGetInfo", (void*)memory_info},
      {"cuMemAlloc", (void*)cuMemAlloc_v2},
      {"cuMemFree", (void*)cuMemFree_v2},
      {"cuMemHostRegister", (void*)succeed},
      {"cuMemHostUnregister", (void*)succeed},
      {"cuMemcpyHtoDAsync", (void*)cuMemcpyHtoDAsync_v2},
      {"cuMemcpyDtoHAsync", (void*)copy_to_host},
      {"cuMemcpyPeerAsync", (void*)copy_from_peer},
      {"cuStreamCreate", (void*)cuStreamCreate},
      {"cuStreamDestroy", (void*)cuStreamDestroy_v2},
      {"cuStreamSynchronize", (void*)cuStreamSynchronize},
      {"cuEventCreate", (void*)begin},
      {"cuEventRecord", (void*)succeed},
      {"cuEventSynchronize", (void*)succeed},
      {"cuEventQuery", (void*)succeed},
      {"cuEventDestroy", (void*)end},
  };
  (void)version, (void)flags;
  *function = (void*)not_supported;
  *found = 0;
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
    if (strcmp(functions[i].name, name) == 0) {
      *function = functions[i].function;
    }
  }
  return 0;
}
