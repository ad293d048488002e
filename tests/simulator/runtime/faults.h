#ifndef OPFERRY_SIM_FAULTS_H
#define OPFERRY_SIM_FAULTS_H

#include "base.h"

/* Reads the rules of the environment; ends the process if it does not understand them. */
void sim_faults_open(void);
/* Adds to *effects* what the rules say of this call, and counts it. *device* is physical. */
void sim_fault_match(enum sim_function function, enum sim_copy_kind kind, int device,
                     struct sim_effects *effects);
/* The same for rules that wait for a content: the first element of a kernel's first input. */
void sim_fault_match_content(enum sim_function function, int device, float content,
                             struct sim_effects *effects);

/* ---- between the two halves of the module ---- */

enum sim_fault_origin { SIM_FAULT_ENVIRONMENT, SIM_FAULT_FILE, SIM_FAULT_INJECTED };

struct sim_fault_rule {
    struct sim_fault_rule *next;
    enum sim_fault_origin origin;
    enum sim_function function;
    enum sim_copy_kind kind;
    int device;            /* -1: any */
    bool by_content;
    float content;
    int64_t first, last;   /* calls, counted from 1 */
    int64_t calls;
    char token[256];       /* a file to be used up; empty: none */
    struct sim_effects effects;
};

extern struct sim_fault_rule *sim_fault_rules;
/* Returns rules in order, or null and in *why* what is wrong; "" gives null and an empty *why*. */
struct sim_fault_rule *sim_fault_parse(const char *spec, enum sim_fault_origin origin,
                                       char why[256]);

#endif
