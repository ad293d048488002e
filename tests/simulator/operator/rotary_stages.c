/* The two stages, as the exported functions of each operator call them. */
#include "rotary.h"

#include <stdlib.h>
#include <string.h>

static aclError look_up(struct sim_call *call, const struct rotary_operator *operator,
                        const aclTensor *const *handles, struct rotary_arguments *arguments,
                        uint64_t serials[ROTARY_COUNT])
{
    char why[128];
    for (int i = 0; i < operator->kernel->tensor_count; i++) {
        const char *name = operator->kernel->tensor_names[i];
        if (handles[i] == NULL) {
            if (operator->is_optional(i))
                continue;
            return sim_refuse(call, ACLNN_ERR_PARAM_NULLPTR, "%s is null", name);
        }
        struct sim_tensor *tensor = sim_handle_find(handles[i], SIM_KIND_TENSOR, why);
        if (tensor == NULL)
            return sim_violate(call, ACL_ERROR_RT_INVALID_HANDLE, "%s: %s", name, why);
        arguments->tensors[i] = &tensor->view;
        serials[i] = tensor->object.serial;
    }
    return ACL_SUCCESS;
}

static aclError check(struct sim_call *call, const struct rotary_operator *operator,
                      const struct rotary_arguments *arguments)
{
    char why[256];
    enum rotary_refusal refusal = ROTARY_ACCEPTED;
    /* The operators have kernels for this family alone. */
    if (strncmp(sim_settings_soc(), "Ascend950", 9) != 0)
        return sim_refuse(call, ACLNN_ERR_INNER_FIND_KERNEL_ERROR, "no kernel of %s for %s",
                          operator->kernel->operator_name, sim_settings_soc());
    for (int i = 0; operator->checks[i] != NULL && refusal == ROTARY_ACCEPTED; i++)
        refusal = operator->checks[i](arguments, why);
    switch (refusal) {
    case ROTARY_PARAMETER:
        return sim_refuse(call, ACLNN_ERR_PARAM_INVALID, "%s", why);
    case ROTARY_SHAPE:
        return sim_refuse(call, sim_settings_shape_status(), "%s", why);
    default:
        return ACL_SUCCESS;
    }
}

aclnnStatus rotary_first_stage(const struct rotary_operator *operator,
                               const aclTensor *const *handles, const char *mode, int64_t layout,
                               uint64_t *workspace_bytes, aclOpExecutor **executor)
{
    struct rotary_arguments arguments = {.mode = mode, .layout = layout};
    uint64_t serials[ROTARY_COUNT] = {0};
    struct sim_call call;
    aclError status =
        sim_enter(&call, operator->first_stage, SIM_NEEDS_CONTEXT | SIM_ACLNN | SIM_FIRST_ALONE);
    if (status == ACL_SUCCESS && (workspace_bytes == NULL || executor == NULL))
        status = sim_violate(&call, ACLNN_ERR_PARAM_NULLPTR, "workspaceSize or executor is null");
    if (status == ACL_SUCCESS)
        status = look_up(&call, operator, handles, &arguments, serials);
    if (status == ACL_SUCCESS)
        status = check(&call, operator, &arguments);
    if (status == ACL_SUCCESS) {
        struct sim_executor *made = calloc(1, sizeof *made);
        made->operator_name = operator->kernel->operator_name;
        made->layout = layout;
        made->mode = rotary_mode_of(mode);
        made->device = call.device;
        made->workspace_bytes = sim_workspace_asked(operator->workspace(&arguments));
        memcpy(made->tensors, serials, sizeof serials);
        for (int i = 0; i < ROTARY_COUNT; i++)
            if (arguments.tensors[i] != NULL)
                made->views[i] = *arguments.tensors[i];
        sim_handle_add(&made->object, SIM_KIND_EXECUTOR);
        sim_gauge(SIM_GAUGE_EXECUTORS, 1);
        *workspace_bytes = made->workspace_bytes;
        *executor = sim_handle(&made->object);
    }
    return sim_leave(&call, status);
}

aclnnStatus rotary_second_stage(const struct rotary_operator *operator, void *workspace,
                                uint64_t workspace_bytes, aclOpExecutor *executor,
                                aclrtStream stream)
{
    struct sim_call call;
    aclError status = sim_enter(&call, operator->kernel->function,
                                SIM_NEEDS_CONTEXT | SIM_ACLNN | SIM_DEVICE_SIDE);
    if (status == ACL_SUCCESS)
        status =
            sim_launch(&call, operator->kernel, workspace, workspace_bytes, executor, stream);
    if (call.locked)
        sim_executor_spend(executor);
    return sim_leave(&call, status);
}

float rotary_first_value(const struct sim_kernel_call *call)
{
    return rotary_load(call->data[0], call->views[0].type);
}
