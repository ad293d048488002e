/* What third parties have published under the operator's name: the same symbols, another signature.
 * Nine arguments where the vendor has fourteen. Called as the vendor's document says, it takes the
 * layout for a pointer and writes there. */
#include "../aclnn_sim.h"

ACLNN_VISIBLE int shim_get_workspace_size(
    const aclTensor *gradQuery, const aclTensor *gradKey, const aclTensor *cos,
    const aclTensor *sin, int64_t layout, const aclTensor *queryOut, const aclTensor *keyOut,
    uint64_t *workspaceSize, aclOpExecutor **executor)
    __asm__("aclnnApplyRotaryPosEmbGradGetWorkspaceSize");

int shim_get_workspace_size(const aclTensor *gradQuery, const aclTensor *gradKey,
                            const aclTensor *cos, const aclTensor *sin, int64_t layout,
                            const aclTensor *queryOut, const aclTensor *keyOut,
                            uint64_t *workspaceSize, aclOpExecutor **executor)
{
    (void)gradQuery, (void)gradKey, (void)cos, (void)sin, (void)layout;
    (void)queryOut, (void)keyOut;
    *workspaceSize = 0;
    *executor = NULL;
    return 0;
}

int aclnnApplyRotaryPosEmbGrad(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,
                               aclrtStream stream)
{
    (void)workspace, (void)workspaceSize, (void)executor, (void)stream;
    return 0;
}
