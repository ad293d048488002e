/* Pinned host memory. What was freed stays reserved for a while, so that a late access faults and a
 * late copy is recognised instead of hitting what somebody else put at that address. */
#include "objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define REMEMBERED 64

static struct sim_pinned *pinned_blocks;
static struct sim_pinned *freed_blocks[REMEMBERED];
static size_t freed_count;

static bool overlaps(const struct sim_pinned *block, uintptr_t start, size_t bytes)
{
    return start < block->start + block->map_bytes && block->start < start + bytes;
}

static aclError allocate(struct sim_call *call, size_t size, void **pointer)
{
    /* One page more, untouchable, behind the block: an overrun faults. */
    size_t map_bytes = (size + PAGE - 1) / PAGE * PAGE;
    void *map = MAP_FAILED;
    if (map_bytes >= size)
        map = mmap(NULL, map_bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map, map_bytes, PROT_READ | PROT_WRITE) != 0)
        return sim_refuse(call, ACL_ERROR_RT_MEMORY_ALLOCATION, "no host memory for %zu bytes",
                          size);
    struct sim_pinned *block = calloc(1, sizeof *block);
    block->start = (uintptr_t)map;
    block->bytes = size;
    block->map_bytes = map_bytes;
    block->next = pinned_blocks;
    pinned_blocks = block;
    sim_make_dirty(map, size);
    sim_gauge(SIM_GAUGE_PINNED_ALLOCATIONS, 1);
    sim_gauge(SIM_GAUGE_PINNED_BYTES, (int64_t)size);
    *pointer = map;
    return ACL_SUCCESS;
}

static void remember_as_freed(struct sim_pinned *block)
{
    /* Mapped anew, so that its pages go back at once. */
    mmap((void *)block->start, block->map_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    size_t slot = freed_count++ % REMEMBERED;
    if (freed_blocks[slot] != NULL) {
        munmap((void *)freed_blocks[slot]->start, freed_blocks[slot]->map_bytes + PAGE);
        free(freed_blocks[slot]);
    }
    block->freed = true;
    freed_blocks[slot] = block;
}

static bool was_freed(uintptr_t start, size_t bytes)
{
    for (size_t i = 0; i < REMEMBERED; i++)
        if (freed_blocks[i] != NULL && overlaps(freed_blocks[i], start, bytes))
            return true;
    return false;
}

aclError sim_place_host(struct sim_call *call, const void *pointer, size_t bytes, const char *what,
                        struct sim_place *place)
{
    uintptr_t start = (uintptr_t)pointer;
    memset(place, 0, sizeof *place);
    if (pointer == NULL)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "%s is null", what);
    if (sim_is_device_pointer(pointer))
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "%s %p is a device pointer; the kind of the copy says host", what,
                           pointer);
    place->bytes = (unsigned char *)start;
    for (struct sim_pinned *block = pinned_blocks; block != NULL; block = block->next) {
        if (!overlaps(block, start, bytes))
            continue;
        if (start < block->start || start + bytes > block->start + block->bytes)
            return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                               "%s: %zu bytes reach over a pinned block of %zu", what, bytes,
                               block->bytes);
        place->pinned = block;
        return ACL_SUCCESS;
    }
    if (was_freed(start, bytes))
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "%s %p is pinned memory that was freed", what, pointer);
    return ACL_SUCCESS;
}

aclError aclrtMallocHost(void **hostPtr, size_t size)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtMallocHost, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && hostPtr == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "hostPtr is null");
    else if (status == ACL_SUCCESS && size == 0)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "a size of 0 is not allowed");
    else if (status == ACL_SUCCESS)
        status = allocate(&call, size, hostPtr);
    return sim_leave(&call, status);
}

static aclError free_block(struct sim_call *call, void *pointer)
{
    char task[160];
    struct sim_pinned **at = &pinned_blocks;
    while (*at != NULL && (*at)->start != (uintptr_t)pointer)
        at = &(*at)->next;
    struct sim_pinned *block = *at;
    if (block == NULL)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "%p %s", pointer,
                           was_freed((uintptr_t)pointer, 1) ? "was freed before"
                                                            : "is no pinned block");
    if (block->busy > 0)
        return sim_violate(call, ACL_ERROR_RT_MEMORY_FREE, "a copy in another thread uses it");
    if (sim_in_use(block->start, block->bytes, task, sizeof task))
        return sim_violate(call, ACL_ERROR_RT_MEMORY_FREE,
                           "freed before the stream was synchronised: %s uses it", task);
    *at = block->next;
    sim_gauge(SIM_GAUGE_PINNED_ALLOCATIONS, -1);
    sim_gauge(SIM_GAUGE_PINNED_BYTES, -(int64_t)block->bytes);
    remember_as_freed(block);
    return ACL_SUCCESS;
}

aclError aclrtFreeHost(void *hostPtr)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtFreeHost, SIM_NEEDS_CONTEXT | SIM_RELEASES);
    if (status == ACL_SUCCESS)
        status = free_block(&call, hostPtr);
    return sim_leave(&call, status);
}
