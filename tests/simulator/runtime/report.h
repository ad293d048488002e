#ifndef OPFERRY_SIM_REPORT_H
#define OPFERRY_SIM_REPORT_H

#include "base.h"

struct sim_counter {
    char name[56];
    int64_t value;
};

const struct sim_counter *sim_counter_list(int *count);

/* What the process has gone through; written by process.c. */
extern bool sim_initialised;
extern bool sim_finalised;

#endif
