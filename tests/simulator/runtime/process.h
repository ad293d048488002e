#ifndef OPFERRY_SIM_PROCESS_H
#define OPFERRY_SIM_PROCESS_H

#include "objects.h"

/* Stops every stream thread; with the lock held, which is let go meanwhile. */
void sim_stop_streams(void);

#endif
