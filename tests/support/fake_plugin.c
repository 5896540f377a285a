// A plug-in of execution providers that takes no node of a model, so that ONNX Runtime's own CPU provider runs all. By
// its macros: PROVIDER is its provider's name, DEVICES how many devices it has on the CPU, NUMBERED whether they have
// numbers as CUDA's have, API the version of ONNX Runtime's API that it needs. As some real plug-ins, it does not look
// whether ONNX Runtime has that.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef PROVIDER
#define PROVIDER "FakeExecutionProvider"
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef NUMBERED
#define NUMBERED 0
#endif
#ifndef API
#define API 23
#endif

// ONNX Runtime's tables, as far as they are used, by the places of their functions.
typedef struct {
  const void* const* (*get_api)(uint32_t version);
  const char* (*get_version)(void);
} ApiBase;
enum { create_pairs_at = 295, add_pair_at = 296, release_pairs_at = 300, hardware_type_at = 307, ep_api_at = 317 };
enum { create_device_at = 0 };  // of the table of ep_api_at

typedef struct Provider {
  uint32_t version;
  const char* (*name)(const struct Provider*);
  void* (*capability)(struct Provider*, const void* graph, void* info);
  void* unused[60];
} Provider;

typedef struct Factory {
  uint32_t version;
  const char* (*name)(const struct Factory*);
  const char* (*vendor)(const struct Factory*);
  void* (*devices)(struct Factory*, const void* const* hardware, size_t hardware_count, void** devices, size_t most,
                   size_t* count);
  void* (*create)(struct Factory*, const void* const* hardware, const void* const* metadata, size_t count,
                  const void* options, const void* logger, Provider** provider);
  void (*release)(struct Factory*, Provider* provider);
  uint32_t (*vendor_id)(const struct Factory*);
  const char* (*provider_version)(const struct Factory*);
  void* check_compiled;
  void* create_allocator;
  void* release_allocator;
  void* (*data_transfer)(struct Factory*, void** transfer);
  int8_t (*has_streams)(const struct Factory*);
  void* unused[60];
} Factory;

static const void* const* api;

static const char* provider_name(const Provider* provider) {
  (void)provider;
  return PROVIDER;
}

static void* take_no_node(Provider* provider, const void* graph, void* info) {
  (void)provider, (void)graph, (void)info;
  return NULL;
}

static const char* factory_name(const Factory* factory) {
  (void)factory;
  return PROVIDER;
}

static const char* vendor(const Factory* factory) {
  (void)factory;
  return "nobody";
}

static uint32_t vendor_id(const Factory* factory) {
  (void)factory;
  return 0xABCD;
}

static const char* version(const Factory* factory) {
  (void)factory;
  return "1.2.3";
}

static void* no_data_transfer(Factory* factory, void** transfer) {
  (void)factory;
  *transfer = NULL;
  return NULL;
}

static int8_t no_streams(const Factory* factory) {
  (void)factory;
  return 0;
}

static void* list_devices(Factory* factory, const void* const* hardware, size_t hardware_count, void** devices,
                          size_t most, size_t* count) {
  int (*type_of)(const void*) = (int (*)(const void*))(uintptr_t)api[hardware_type_at];
  const void* const* (*get_ep_api)(void) = (const void* const* (*)(void))(uintptr_t)api[ep_api_at];
  void* (*create)(Factory*, const void*, const void*, const void*, void**) =
      (void* (*)(Factory*, const void*, const void*, const void*, void**))(uintptr_t)get_ep_api()[create_device_at];
  void (*create_pairs)(void**) = (void (*)(void**))(uintptr_t)api[create_pairs_at];
  void (*add_pair)(void*, const char*, const char*) =
      (void (*)(void*, const char*, const char*))(uintptr_t)api[add_pair_at];
  void (*release_pairs)(void*) = (void (*)(void*))(uintptr_t)api[release_pairs_at];
  *count = 0;
  for (size_t i = 0; i < hardware_count; ++i) {
    for (int copy = 0; type_of(hardware[i]) == 0 && copy < DEVICES && *count < most; ++copy) {
      void* options = NULL;
      const char number[] = {(char)('0' + copy), '\0'};
      create_pairs(&options);
      if (NUMBERED) {
        add_pair(options, "device_id", number);
      }
      void* status = create(factory, hardware[i], NULL, options, &devices[(*count)++]);
      release_pairs(options);
      if (status != NULL) {
        return status;
      }
    }
  }
  return NULL;
}

static void* create_provider(Factory* factory, const void* const* hardware, const void* const* metadata, size_t count,
                             const void* options, const void* logger, Provider** provider) {
  (void)factory, (void)hardware, (void)metadata, (void)count, (void)options, (void)logger;
  *provider = calloc(1, sizeof(Provider));
  (*provider)->version = 23;
  (*provider)->name = provider_name;
  (*provider)->capability = take_no_node;
  return NULL;
}

static void release_provider(Factory* factory, Provider* provider) {
  (void)factory;
  free(provider);
}

void* CreateEpFactories(const char* name, const ApiBase* base, const void* logger, Factory** factories, size_t most,
                        size_t* count) {
  (void)name, (void)logger, (void)most;
  api = base->get_api(API);
  volatile const void* first = api[0];  // the end of a process whose ONNX Runtime is too old
  (void)first;
  factories[0] = calloc(1, sizeof(Factory));
  factories[0]->version = 23;
  factories[0]->name = factory_name;
  factories[0]->vendor = vendor;
  factories[0]->devices = list_devices;
  factories[0]->create = create_provider;
  factories[0]->release = release_provider;
  factories[0]->vendor_id = vendor_id;
  factories[0]->provider_version = version;
  factories[0]->data_transfer = no_data_transfer;
  factories[0]->has_streams = no_streams;
  *count = 1;
  return NULL;
}

void* ReleaseEpFactory(Factory* factory) {
  free(factory);
  return NULL;
}
