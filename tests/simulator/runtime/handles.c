/* Handles. A handle holds its kind and a serial number that is given once in the process's life,
 * so that a handle of the wrong kind, a destroyed one and a made-up one are told apart for ever. */
#include "operator.h"

#include <stdio.h>

#define BUCKETS 4096
/* High bits that no user address has, so that a handle cut to 32 bits is none any more. */
#define TAG UINT64_C(0x5A0000)

static struct sim_object *buckets[BUCKETS];
static uint64_t last_serial;

static const char *kind_name(enum sim_kind kind)
{
    static const char *const names[] = {"?", "context", "stream", "event", "tensor", "executor"};
    return names[kind];
}

void sim_handle_add(struct sim_object *object, enum sim_kind kind)
{
    object->kind = kind;
    object->serial = ++last_serial;
    struct sim_object **bucket = &buckets[object->serial % BUCKETS];
    object->next_in_bucket = *bucket;
    *bucket = object;
}

void sim_handle_remove(struct sim_object *object)
{
    struct sim_object **at = &buckets[object->serial % BUCKETS];
    while (*at != object)
        at = &(*at)->next_in_bucket;
    *at = object->next_in_bucket;
}

void *sim_handle(const struct sim_object *object)
{
    uint64_t value = (TAG + (uint64_t)object->kind) << 40 | object->serial << 4;
    return (void *)(uintptr_t)value;
}

void *sim_handle_by_serial(uint64_t serial)
{
    struct sim_object *object = buckets[serial % BUCKETS];
    while (object != NULL && object->serial != serial)
        object = object->next_in_bucket;
    return object;
}

void *sim_handle_find(const void *handle, enum sim_kind kind, char why[128])
{
    uint64_t value = (uint64_t)(uintptr_t)handle;
    uint64_t given_kind = (value >> 40) - TAG;
    uint64_t serial = (value & ((UINT64_C(1) << 40) - 1)) >> 4;
    struct sim_object *object = sim_handle_by_serial(serial);
    if (handle == NULL)
        snprintf(why, 128, "the %s is null", kind_name(kind));
    else if (given_kind < SIM_KIND_CONTEXT || given_kind > SIM_KIND_EXECUTOR || (value & 15) != 0 ||
             serial == 0 || serial > last_serial)
        snprintf(why, 128, "%p is no handle of this runtime", handle);
    else if (given_kind != (uint64_t)kind)
        snprintf(why, 128, "the handle is of kind %s, not %s", kind_name((enum sim_kind)given_kind),
                 kind_name(kind));
    else if (object == NULL)
        snprintf(why, 128, "the %s was destroyed", kind_name(kind));
    else
        return object;
    return NULL;
}
