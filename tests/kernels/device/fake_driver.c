/* A driver without a card: handles are numbers, and a launch calls back with its parameters. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { Dim3 grid, block; unsigned shared; void *stream, *attributes; unsigned count; } Config;
typedef int (*Launch)(const char *name, const unsigned *sides, void **parameters);
static Launch launch;
void fake_set_launch(Launch hook) { launch = hook; }

static int make(void **handle) { *handle = malloc(64); return 0; }
int cuInit(unsigned flags) { return flags == 7 ? 77 : 100; /* no device: NVRTC asks for one */ }
int cuModuleLoadData(void **handle, const void *image) { return make(handle); }
int cuModuleLoad(void **handle, const char *file) { return make(handle); }
int cuModuleUnload(void *module) { return 0; }
int cuLibraryLoadData(void **handle, const void *image, int *a, void **b, unsigned c, int *d,
                      void **e, unsigned f) { return make(handle); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  return (*function = strdup(name)) ? 0 : 1;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  return cuModuleGetFunction(kernel, library, name);
}
int cuKernelGetFunction(void **function, void *kernel) {
  return cuModuleGetFunction(function, 0, kernel);
}
int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
  *offset = 8 * index;
  *size = 8;
  return index < 4 ? 0 : 1;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
  unsigned sides[6] = {gx, gy, gz, bx, by, bz};
  return extra ? 99 : launch(function, sides, parameters);
}
int cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
  Dim3 g = config->grid, b = config->block;
  return cuLaunchKernel(function, g.x, g.y, g.z, b.x, b.y, b.z, 0, 0, parameters, extra);
}
int cuGraphAddKernelNode(void **node, void *graph, void *const *others, size_t count,
                         void *const *kernel) { return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  *function = strcmp(name, "cuKernelGetFunction") ? NULL : (void *)cuKernelGetFunction;
  return *function ? 0 : 500; /* not found: NVRTC asks for more, too */
}
