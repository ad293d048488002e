#ifndef OPFERRY_SIM_MESSAGES_H
#define OPFERRY_SIM_MESSAGES_H

#include "../aclnn_sim.h"
#include "base.h"

#define SIM_MESSAGE_BYTES 1024

/* What the runtime keeps for each thread of the program. */
struct sim_thread {
    uint64_t number;
    uint64_t context; /* serial number of the current context; 0: none */
    aclError last_error;
    char message[SIM_MESSAGE_BYTES];
    char *returned;
};

void sim_messages_open(void);
struct sim_thread *sim_thread(void);

#endif
