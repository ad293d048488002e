#ifndef OPFERRY_SIM_TASKS_H
#define OPFERRY_SIM_TASKS_H

#include "objects.h"

uint64_t sim_digest(const unsigned char *bytes, size_t count);
void sim_count_copy(enum sim_copy_kind kind, size_t bytes);
void sim_run_kernel(const struct sim_kernel_call *call, const struct sim_effects *effects);

#endif
