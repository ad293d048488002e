/* Device memory: one memfd for each device, mapped twice. The device pointers lie in a reservation
 * that nobody may touch, so a host access faults at once; what streams and copies touch is a second
 * mapping of the same pages, made for each allocation. */
#include "objects.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE UINT64_C(4096)
/* The runtime promises an alignment of 64 bytes: no allocation gets a better one. */
#define SKEW UINT64_C(64)
/* Addresses are used again only when a reservation of so many times the memory has been passed. */
#define RESERVATION 4
#define REMEMBERED 1024

struct region {
    bool open;
    int file;
    uintptr_t start;
    size_t bytes;
    size_t used;
    uintptr_t cursor;
    struct sim_allocation **allocations; /* by address */
    size_t count, capacity;
    struct {
        uintptr_t start;
        size_t bytes;
    } freed[REMEMBERED];
    size_t freed_count;
};

static struct region regions[SIM_MAX_DEVICES];

bool sim_memory_open(struct sim_call *call, int device)
{
    struct region *region = &regions[device];
    if (region->open)
        return true;
    size_t bytes = (sim_settings.device_memory_bytes + 16 * PAGE) * RESERVATION / PAGE * PAGE;
    region->file = memfd_create("opferry-sim-device", MFD_CLOEXEC);
    void *map = MAP_FAILED;
    if (region->file >= 0 && ftruncate(region->file, (off_t)bytes) == 0)
        map = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, region->file, 0);
    if (map == MAP_FAILED) {
        sim_refuse(call, ACL_ERROR_RT_INTERNAL_ERROR, "cannot reserve %zu bytes of device memory",
                   bytes);
        return false;
    }
    region->open = true;
    region->start = region->cursor = (uintptr_t)map;
    region->bytes = bytes;
    region->used = 0;
    region->freed_count = 0;
    return true;
}

static void release(struct region *region, size_t index)
{
    struct sim_allocation *gone = region->allocations[index];
    munmap(gone->map, gone->map_bytes);
    fallocate(region->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              (off_t)(gone->first_page - region->start), (off_t)gone->map_bytes);
    region->used -= gone->bytes;
    sim_gauge(SIM_GAUGE_DEVICE_ALLOCATIONS, -1);
    sim_gauge(SIM_GAUGE_DEVICE_BYTES, -(int64_t)gone->bytes);
    size_t slot = region->freed_count++ % REMEMBERED;
    region->freed[slot].start = gone->start;
    region->freed[slot].bytes = gone->bytes;
    region->count--;
    memmove(&region->allocations[index], &region->allocations[index + 1],
            (region->count - index) * sizeof region->allocations[0]);
    free(gone);
}

void sim_memory_close(int device)
{
    struct region *region = &regions[device];
    if (!region->open)
        return;
    while (region->count > 0)
        release(region, region->count - 1);
    munmap((void *)region->start, region->bytes);
    close(region->file);
    free(region->allocations);
    memset(region, 0, sizeof *region);
}

static struct region *region_of(uintptr_t address)
{
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        if (regions[i].open && address - regions[i].start < regions[i].bytes)
            return &regions[i];
    return NULL;
}

bool sim_is_device_pointer(const void *pointer)
{
    return region_of((uintptr_t)pointer) != NULL;
}

/* The index of the first allocation that starts behind an address. */
static size_t first_behind(const struct region *region, uintptr_t address)
{
    size_t low = 0, high = region->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (region->allocations[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct sim_allocation *find_allocation(const void *pointer)
{
    uintptr_t address = (uintptr_t)pointer;
    struct region *region = region_of(address);
    if (region == NULL)
        return NULL;
    size_t behind = first_behind(region, address);
    if (behind == 0 || address - region->allocations[behind - 1]->start >=
                           region->allocations[behind - 1]->bytes)
        return NULL;
    return region->allocations[behind - 1];
}

static const char *describe_miss(const void *pointer)
{
    const struct region *region = region_of((uintptr_t)pointer);
    if (pointer == NULL)
        return "is null";
    if (region == NULL)
        return "is no device memory";
    size_t kept = region->freed_count < REMEMBERED ? region->freed_count : REMEMBERED;
    for (size_t i = 0; i < kept; i++)
        if ((uintptr_t)pointer - region->freed[i].start < region->freed[i].bytes)
            return "was freed";
    return "lies in no allocation";
}

aclError sim_place_device(struct sim_call *call, const void *pointer, size_t bytes,
                          const char *what, struct sim_place *place)
{
    memset(place, 0, sizeof *place);
    struct sim_allocation *allocation = find_allocation(pointer);
    if (allocation == NULL)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID, "%s %p %s", what, pointer,
                           describe_miss(pointer));
    size_t offset = (uintptr_t)pointer - allocation->start;
    if (bytes > allocation->bytes - offset)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "%s: %zu bytes at offset %zu of an allocation of %zu", what, bytes,
                           offset, allocation->bytes);
    if (allocation->device != call->device)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "%s is memory of device %d; this thread's device is %d", what,
                           allocation->device, call->device);
    place->bytes = allocation->alias + offset;
    place->allocation = allocation;
    return ACL_SUCCESS;
}

void sim_memory_release(struct sim_allocation *allocation)
{
    struct region *region = region_of(allocation->start);
    release(region, first_behind(region, allocation->start) - 1);
}

/* Returns a place for an allocation's pages and an untouched one behind them, or 0. */
static uintptr_t find_pages(const struct region *region, size_t bytes)
{
    uintptr_t end = region->start + region->bytes;
    for (int round = 0; round < 2; round++) {
        uintptr_t at = round == 0 ? region->cursor : region->start;
        for (size_t next = first_behind(region, at + SKEW - 1);; next++) {
            if (next > 0) {
                const struct sim_allocation *before = region->allocations[next - 1];
                uintptr_t behind = before->first_page + before->map_bytes + PAGE;
                at = behind > at ? behind : at;
            }
            uintptr_t limit =
                next < region->count ? region->allocations[next]->first_page : end;
            if (at + bytes + PAGE <= limit)
                return at;
            if (next >= region->count)
                break;
        }
    }
    return 0;
}

static void insert(struct region *region, struct sim_allocation *allocation)
{
    if (region->count == region->capacity) {
        region->capacity = region->capacity == 0 ? 64 : region->capacity * 2;
        region->allocations = realloc(region->allocations,
                                      region->capacity * sizeof region->allocations[0]);
    }
    size_t index = first_behind(region, allocation->start);
    memmove(&region->allocations[index + 1], &region->allocations[index],
            (region->count - index) * sizeof region->allocations[0]);
    region->allocations[index] = allocation;
    region->count++;
}

aclError sim_memory_allocate(struct sim_call *call, size_t size, void **pointer)
{
    struct region *region = &regions[call->device];
    size_t limit = sim_settings.device_memory_bytes;
    size_t bytes = size > limit ? size : (size + 31) / 32 * 32;
    if (bytes > limit - region->used)
        return sim_refuse(call, ACL_ERROR_RT_MEMORY_ALLOCATION,
                          "%zu bytes wanted, %zu of %zu in use on device %d", size, region->used,
                          limit, call->device);
    size_t map_bytes = (SKEW + bytes + PAGE - 1) / PAGE * PAGE;
    uintptr_t page = find_pages(region, map_bytes);
    void *map = MAP_FAILED;
    if (page != 0)
        map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->file,
                   (off_t)(page - region->start));
    if (map == MAP_FAILED)
        return sim_refuse(call, ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses left for %zu bytes",
                          size);
    struct sim_allocation *allocation = calloc(1, sizeof *allocation);
    allocation->start = page + SKEW;
    allocation->bytes = bytes;
    allocation->device = call->device;
    allocation->map = map;
    allocation->map_bytes = map_bytes;
    allocation->alias = allocation->map + SKEW;
    allocation->first_page = page;
    region->cursor = page + map_bytes + PAGE;
    region->used += bytes;
    insert(region, allocation);
    sim_make_dirty(allocation->alias, bytes);
    sim_gauge(SIM_GAUGE_DEVICE_ALLOCATIONS, 1);
    sim_gauge(SIM_GAUGE_DEVICE_BYTES, (int64_t)bytes);
    *pointer = (void *)allocation->start;
    return ACL_SUCCESS;
}

size_t sim_memory_used(int device)
{
    return regions[device].used;
}

void sim_make_dirty(unsigned char *bytes, size_t count)
{
    memset(bytes, (int)sim_settings.dirty_byte,
           count < sim_settings.dirty_bytes ? count : sim_settings.dirty_bytes);
}
