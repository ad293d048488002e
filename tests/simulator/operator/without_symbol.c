/* A package of other operators: it has not the symbol that is looked for. */
#include "../aclnn_sim.h"

ACLNN_VISIBLE int aclnnSomeOtherOperatorGetWorkspaceSize(void);

int aclnnSomeOtherOperatorGetWorkspaceSize(void)
{
    return 0;
}
