// A plug-in of execution providers over another one, the file REAL, which is told that all hardware is its vendor's
// (VENDOR). So OpenVINO's, which takes Intel's processors alone, can be tried on others too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

// ONNX Runtime's OrtApiBase. Its OrtApi is a table of functions: only the place of one of them matters here, and no
// release has more than so many.
typedef struct {
  const void* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
} ApiBase;
enum { vendor_id_at = 308, most_functions = 640 };

static const ApiBase* their_base;
static void* functions[most_functions];

static uint32_t vendor_id(const void* hardware) {
  (void)hardware;
  return VENDOR;
}

static const void* get_api(uint32_t version) {
  const void* api = their_base->get_api(version);
  if (api == NULL) {
    return NULL;
  }
  memcpy(functions, api, sizeof(functions));
  uint32_t (*function)(const void*) = vendor_id;
  memcpy(&functions[vendor_id_at], &function, sizeof(function));
  return functions;
}

static void* in_real(const char* name) {
  static void* real;
  if (real == NULL) {
    real = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  }
  return real == NULL ? NULL : dlsym(real, name);
}

void* CreateEpFactories(const char* name, const ApiBase* base, const void* logger, void** factories, size_t most,
                        size_t* count) {
  static ApiBase ours;
  their_base = base;
  ours.get_api = get_api;
  ours.get_version = base->get_version;
  void* (*create)(const char*, const ApiBase*, const void*, void**, size_t, size_t*) = NULL;
  *(void**)&create = in_real("CreateEpFactories");
  return create(name, &ours, logger, factories, most, count);
}

void* ReleaseEpFactory(void* factory) {
  void* (*release)(void*) = NULL;
  *(void**)&release = in_real("ReleaseEpFactory");
  return release(factory);
}
