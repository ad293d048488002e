/* aclrtMalloc and what gives its memory back. */
#include "objects.h"

aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtMalloc, SIM_NEEDS_CONTEXT);
    if (status == ACL_SUCCESS && devPtr == NULL)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "devPtr is null");
    else if (status == ACL_SUCCESS && size == 0)
        status = sim_violate(&call, ACL_ERROR_RT_PARAM_INVALID, "a size of 0 is not allowed");
    else if (status == ACL_SUCCESS && (unsigned)policy > 2)
        status = sim_violate(&call, ACL_ERROR_RT_INVALID_MALLOC_TYPE, "policy %d is not modelled",
                             (int)policy);
    else if (status == ACL_SUCCESS)
        status = sim_memory_allocate(&call, size, devPtr);
    return sim_leave(&call, status);
}

static aclError free_memory(struct sim_call *call, void *pointer)
{
    struct sim_place place;
    char task[160];
    aclError status = sim_place_device(call, pointer, 1, "the memory to be freed", &place);
    if (status != ACL_SUCCESS)
        return status;
    struct sim_allocation *allocation = place.allocation;
    if (allocation->start != (uintptr_t)pointer)
        return sim_violate(call, ACL_ERROR_RT_PARAM_INVALID,
                           "%p is not the start of its allocation", pointer);
    if (allocation->busy > 0)
        return sim_violate(call, ACL_ERROR_RT_MEMORY_FREE, "a copy in another thread uses it");
    if (sim_in_use(allocation->start, allocation->bytes, task, sizeof task))
        return sim_violate(call, ACL_ERROR_RT_MEMORY_FREE,
                           "freed before the stream was synchronised: %s uses it", task);
    sim_memory_release(allocation);
    return ACL_SUCCESS;
}

aclError aclrtFree(void *devPtr)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtFree, SIM_NEEDS_CONTEXT | SIM_RELEASES);
    if (status == ACL_SUCCESS)
        status = free_memory(&call, devPtr);
    return sim_leave(&call, status);
}

aclError aclrtFreeWithDevSync(void *devPtr)
{
    struct sim_call call;
    aclError status = sim_enter(&call, SIM_aclrtFreeWithDevSync, SIM_NEEDS_CONTEXT | SIM_RELEASES);
    if (status == ACL_SUCCESS)
        status = sim_synchronise_device(&call, -1);
    if (status == ACL_SUCCESS)
        status = free_memory(&call, devPtr);
    return sim_leave(&call, status);
}
