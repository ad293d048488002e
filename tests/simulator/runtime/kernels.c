/* Runs an operator's kernel, and spoils its outputs as a fault rule says. */
#include "tasks.h"

#include <stdlib.h>
#include <string.h>

/* How much of either end of a workspace a kernel is sure to write over. */
#define SCRIBBLE ((size_t)4096)
#define OVERRUN ((size_t)64)

/* How many bytes a view reaches over, from its first element to its last. */
static size_t output_bytes(const struct sim_kernel_call *call, int index)
{
    const struct sim_view *view = &call->views[index];
    int64_t last = 0;
    for (int i = 0; i < view->rank; i++)
        last += (view->dims[i] - 1) * view->strides[i];
    return (size_t)(last + 1) * sim_type_bytes(view->type);
}

/* The element in the middle of a view. */
static unsigned char *middle_of(const struct sim_kernel_call *call, int index)
{
    const struct sim_view *view = &call->views[index];
    int64_t at = 0, elements = 1;
    for (int i = 0; i < view->rank; i++)
        elements *= view->dims[i];
    int64_t number = elements / 2;
    for (int i = view->rank - 1; i >= 0; i--) {
        at += number % view->dims[i] * view->strides[i];
        number /= view->dims[i];
    }
    return call->data[index] + (size_t)at * sim_type_bytes(view->type);
}

/* The position of the output that a rule names, or -1. Inputs that are overwritten come first. */
static int find_output(const struct sim_kernel_call *call, int number_plus_one)
{
    int number = number_plus_one - 1, overwritten = call->kernel->overwritten_count;
    int index = number < overwritten ? number : call->kernel->input_count + number - overwritten;
    if (number < 0 || index >= call->kernel->tensor_count || call->data[index] == NULL)
        return -1;
    return index;
}

static void scribble(const struct sim_kernel_call *call)
{
    size_t bytes = (size_t)call->workspace_bytes, part = bytes < SCRIBBLE ? bytes : SCRIBBLE;
    if (call->workspace == NULL)
        return;
    memset(call->workspace, 0xC3, part);
    memset(call->workspace + bytes - part, 0x3C, part);
}

void sim_run_kernel(const struct sim_kernel_call *call, const struct sim_effects *effects)
{
    int unwritten = find_output(call, effects->unwritten);
    int partial = find_output(call, effects->partial);
    int corrupt = find_output(call, effects->corrupt);
    int overrun = find_output(call, effects->overrun);
    int kept = unwritten >= 0 ? unwritten : partial;
    size_t kept_bytes = kept < 0 ? 0 : output_bytes(call, kept);
    unsigned char *before = NULL;
    if (kept >= 0) {
        before = malloc(kept_bytes);
        memcpy(before, call->data[kept], kept_bytes);
    }
    scribble(call);
    call->kernel->run(call);
    if (kept >= 0) {
        /* All of it stays unwritten, or its last element alone. */
        size_t item = sim_type_bytes(call->views[kept].type);
        size_t from = unwritten >= 0 ? 0 : kept_bytes - item;
        memcpy(call->data[kept] + from, before + from, kept_bytes - from);
        free(before);
    }
    if (corrupt >= 0) {
        size_t item = sim_type_bytes(call->views[corrupt].type);
        /* The byte with the exponent: far outside any tolerance. */
        middle_of(call, corrupt)[item - 1] ^= 0x40;
    }
    if (overrun >= 0) {
        unsigned char *behind = call->data[overrun] + output_bytes(call, overrun);
        size_t room = (size_t)(call->data_ends[overrun] - behind);
        memset(behind, 0xEE, room < OVERRUN ? room : OVERRUN);
    }
}
