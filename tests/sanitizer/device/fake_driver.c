/* A driver without a card: handles are numbers, and a launch calls back with its parameters. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } Dim3;
typedef struct { Dim3 grid, block; unsigned shared; void *stream, *attributes; unsigned count; } Config;
typedef int (*Launch)(const char *name, const unsigned *sides, void **parameters);
static Launch launch;
void fake_set_launch(Launch hook) { launch = hook; }

/* A handle of what was unloaded is the next one's. */
static void *unloaded, *old_function, *last_function;
static int unload_result;
void fake_set_unload(int result) { unload_result = result; }

static int make(void **handle) {
  *handle = unloaded ? unloaded : malloc(64);
  unloaded = NULL;
  return 0;
}
int cuInit(unsigned flags) { return flags == 7 ? 77 : 100; }
int cuModuleLoadData(void **handle, const void *image) { return make(handle); }
int cuModuleLoad(void **handle, const char *file) { return make(handle); }
int cuModuleUnload(void *module) {
  if (unload_result) return unload_result;
  unloaded = module;
  old_function = last_function;
  return 0;
}
int cuLibraryLoadData(void **handle, const void *image, int *a, void **b, unsigned c, int *d,
                      void **e, unsigned f) { return make(handle); }
int cuLibraryLoadFromFile(void **handle, const char *file, int *a, void **b, unsigned c, int *d,
                          void **e, unsigned f) { return make(handle); }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  last_function = *function = old_function ? old_function : strdup(name);
  old_function = NULL;
  return 0;
}
int cuKernelGetName(const char **name, void *kernel) { return (*name = kernel) ? 0 : 1; }
int cuFuncGetName(const char **name, void *function) { return (*name = function) ? 0 : 1; }
int cuLibraryGetKernelCount(unsigned *count, void *library) { return (*count = 1) ? 0 : 1; }
int cuModuleGetFunctionCount(unsigned *count, void *module) { return (*count = 1) ? 0 : 1; }
int cuLibraryEnumerateKernels(void **kernels, unsigned count, void *library) {
  return (kernels[0] = strdup(last_function)) ? 0 : 1;
}
int cuModuleEnumerateFunctions(void **functions, unsigned count, void *module) {
  return (functions[0] = strdup(last_function)) ? 0 : 1;
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
int cuLaunchKernel_ptsz(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, void *stream,
                        void **parameters, void **extra) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, void *stream,
                              void **parameters) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}
int cuLaunchCooperativeKernel_ptsz(void *function, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   void *stream, void **parameters) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, NULL);
}
int cuLaunchKernelEx_ptsz(const Config *config, void *function, void **parameters, void **extra) {
  return cuLaunchKernelEx(config, function, parameters, extra);
}
#define ACCEPT(api) int api(void) { return 0; }
ACCEPT(cuGraphAddKernelNode)
ACCEPT(cuGraphAddKernelNode_v2)
ACCEPT(cuGraphAddNode)
ACCEPT(cuGraphAddNode_v2)
ACCEPT(cuGraphKernelNodeSetParams)
ACCEPT(cuGraphKernelNodeSetParams_v2)
ACCEPT(cuGraphNodeSetParams)
ACCEPT(cuGraphExecKernelNodeSetParams)
ACCEPT(cuGraphExecKernelNodeSetParams_v2)
ACCEPT(cuGraphExecNodeSetParams)
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  *function = strcmp(name, "cuKernelGetFunction") ? NULL : (void *)cuKernelGetFunction;
  if (!strncmp(name, "cuGraph", 7)) *function = (void *)cuGraphAddNode;
  return *function ? 0 : 500; /* not found */
}
