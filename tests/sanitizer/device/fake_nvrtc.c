/* NVRTC without a compiler: every program is the kernel of SCALE, a file of PTX. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int is_for_card; char text[1 << 14]; size_t size; } Program;
int nvrtcCreateProgram(Program **program, const char *source, const char *name, int count,
                       const char *const *headers, const char *const *names) {
  Program *made = *program = calloc(1, sizeof *made);
  FILE *file = fopen(SCALE, "r");
  made->size = fread(made->text, 1, sizeof made->text - 1, file) + 1;
  return fclose(file);
}
int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
  for (int i = 0; i < count; ++i)
    if (strstr(options[i], "sm_")) program->is_for_card = 1;
  return 0;
}
int nvrtcDestroyProgram(Program **program) { return free(*program), 0; }
int nvrtcAddNameExpression(Program *program, const char *name) { return 0; }
int nvrtcGetLoweredName(Program *program, const char *name, const char **lowered) {
  return (*lowered = "_Z5scaleIfEvPT_PKS0_i") ? 0 : 1;
}
int nvrtcGetPTXSize(Program *program, size_t *size) { return (*size = program->size) ? 0 : 1; }
int nvrtcGetPTX(Program *program, char *text) {
  return memcpy(text, program->text, program->size) ? 0 : 1;
}
int nvrtcGetCUBINSize(Program *program, size_t *size) {
  *size = program->is_for_card ? sizeof "plain" : 0;
  return 0;
}
int nvrtcGetCUBIN(Program *program, char *code) { return strcpy(code, "plain") ? 0 : 1; }
