package rbac_test

// row is a right, or several rights that are needed together or for the same reason.
type row struct {
	role, group, resource string
	verbs                 []string
	// why is what the controller does with the rights, and without is what fails when they are removed.
	why, without string
	// before prepares objects while the controller still has the rights, and provoke causes a request that needs them. provoke is nil for
	// list and watch, which every controller needs.
	before, provoke func(*fixture)
	// says is a part of the expected message in the log or in a status. Empty stands for the message of the API server.
	says string
}

// rights returns the rights of the row.
func (r row) rights() []right {
	var all []right
	for _, verb := range r.verbs {
		all = append(all, right{r.role, r.group, r.resource, verb})
	}
	return all
}

// byHand says, for each resource whose request the test sends itself with the identity of the controller, why the controller does not send
// it.
var byHand = map[string]string{
	"workspaces/rpc":     "The question is asked by agents, and not by the controller.",
	"updates/finalizers": "Without nodes no operation has outputs.",
	tokenResource:        "The controller requests a token when it has connected to an agent. Without nodes there is none.",
}

var (
	read = []string{"list", "watch"}
	rows = []row{
		{clusterRole, pulumiGroup, "stacks", read, "To cache Stacks.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, pulumiGroup, "stacks", []string{"get"}, "To check what a Stack has recorded before an Approval counts and before an Update is deleted, to read a Stack in `dependsOn` that another shard manages, and a Stack with large outputs before the `check` of its wave.",
			"Approvals are not accepted, plans wait, and expired Updates stay.", (*fixture).newStack, (*fixture).newApproval, ""},
		{clusterRole, pulumiGroup, "stacks", []string{"patch"}, "To set and remove the finalizer, and to request an update of a prerequisite.",
			"Nothing is deployed, because without the finalizer a deleted Stack would leave resources behind.", nil, (*fixture).newStack, ""},
		{clusterRole, pulumiGroup, "stacks/status", []string{"patch"}, "To write the status.",
			"The Stack has no status.", nil, (*fixture).newStack, ""},
		{clusterRole, pulumiGroup, "stacks/finalizers", []string{"update"}, "To make the Stack the owner of its Workspace and Updates. Only checked by the admission plugin OwnerReferencesPermissionEnforcement, which OpenShift enables.",
			"The Stack reports that its Workspace cannot be created.", nil, (*fixture).newStack, "cannot set blockOwnerDeletion"},
		{clusterRole, pulumiGroup, "programs", read, "To cache Programs.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, pulumiGroup, "programs", []string{"get"}, "To read the current content of a Program.",
			"The Stack reports that its Program cannot be read.", nil, (*fixture).newProgramStack, ""},
		{clusterRole, pulumiGroup, "programs/status", []string{"patch"}, "To publish the artifact of the Program in its status.",
			"Stacks wait for their Programs.", nil, (*fixture).newProgramStack, ""},
		{clusterRole, autoGroup, "workspaces", read, "To cache Workspaces.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, autoGroup, "workspaces", []string{"get"}, "To check whether a Workspace with the same name exists before creating one, and whether the Workspace of an Update is really gone.",
			"The Stack reports that the Workspace cannot be read.", nil, (*fixture).newStack, ""},
		{clusterRole, autoGroup, "workspaces", []string{"create"}, "To create the Workspace of a Stack.",
			"The Stack reports that its Workspace cannot be created.", nil, (*fixture).newStack, ""},
		{clusterRole, autoGroup, "workspaces", []string{"patch"}, "To apply a Workspace, and to change it when its Stack changes.",
			"The Stack reports that its Workspace cannot be applied.", nil, (*fixture).newStack, ""},
		{clusterRole, autoGroup, "workspaces", []string{"delete"}, "To delete a Workspace with `workspaceReclaimPolicy: Delete`.",
			"These Workspaces stay, and the log has the reason.", (*fixture).newReclaimedStack, (*fixture).completeUpdate, ""},
		{clusterRole, autoGroup, "workspaces/status", []string{"patch"}, "To report whether operations can run.",
			"Updates wait for their Workspaces.", nil, (*fixture).newStack, ""},
		{clusterRole, autoGroup, "workspaces/finalizers", []string{"update"}, "To make the Workspace the owner of its StatefulSet, Service and key pair. Only checked by OwnerReferencesPermissionEnforcement.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, "cannot set blockOwnerDeletion"},
		{clusterRole, autoGroup, "workspaces/rpc", []string{"use"}, "An agent with `system:auth-delegator` asks the API server whether its caller has this permission. Other agents identify the controller by its token.",
			"Agents with `system:auth-delegator` reject the controller.", nil, (*fixture).askAsAgent, "no"},
		{clusterRole, autoGroup, "updates", read, "To cache Updates.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, autoGroup, "updates", []string{"get"}, "To check whether an Update is really gone.",
			"The Stack does not continue after its Update was deleted.", (*fixture).newStack, (*fixture).removeUpdate, ""},
		{clusterRole, autoGroup, "updates", []string{"create"}, "To create an Update for each operation.",
			"The Stack reports that its Update cannot be created.", nil, (*fixture).newStack, ""},
		{clusterRole, autoGroup, "updates", []string{"patch"}, "To remove the finalizer, and to cancel an Update.",
			"Deleted Updates are not removed.", (*fixture).newStack, (*fixture).deleteUpdate, ""},
		{clusterRole, autoGroup, "updates", []string{"delete"}, "To replace an Update that has not started by a newer one, and to delete old Updates.",
			"An edit of the Stack waits for the previous operation, and Updates accumulate.", (*fixture).newStack, (*fixture).editStack, ""},
		{clusterRole, autoGroup, "updates/status", []string{"patch"}, "To write the progress and the result of an operation.",
			"The result of an operation is not recorded, neither in the Update nor in the Stack.", nil, (*fixture).newStack, ""},
		{clusterRole, autoGroup, "updates/finalizers", []string{"update"}, "To make the Update the owner of the Secret with its outputs. Only checked by OwnerReferencesPermissionEnforcement.",
			"Outputs are not stored.", nil, (*fixture).createOutputs, "cannot set blockOwnerDeletion"},
		{clusterRole, autoGroup, "approvals", read, "To cache Approvals.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, autoGroup, "approvals", []string{"patch"}, "To make an Approval go with the plan that it is about.",
			"Approvals are not accepted, and plans wait.", (*fixture).newStack, (*fixture).newApproval, ""},
		{clusterRole, autoGroup, "approvals", []string{"delete"}, "For the same. Only checked by OwnerReferencesPermissionEnforcement.",
			"Approvals are not accepted, and plans wait.", (*fixture).newStack, (*fixture).newApproval, "cannot set an ownerRef"},
		{clusterRole, autoGroup, "approvals/status", []string{"patch"}, "To say whether an Approval counts.",
			"Approvals are not accepted, and plans wait.", (*fixture).newStack, (*fixture).newApproval, ""},
		{clusterRole, autoGroup, "stackrollouts", read, "To cache StackRollouts.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, autoGroup, "stackrollouts", []string{"get"}, "To check which revision a StackRollout rolls out before an Approval counts.",
			"Approvals of revisions are not accepted, and waves wait.", nil, (*fixture).approveRevision, ""},
		{clusterRole, autoGroup, "stackrollouts/status", []string{"patch"}, "To say which Stacks may have the revision.",
			"No Stack of a StackRollout gets a new revision.", nil, (*fixture).newRollout, ""},
		{clusterRole, "", "secrets", []string{"get"}, "To read the Secrets of a Stack when an operation starts, the outputs when it ends, and the certificate of the agent.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "", "secrets", []string{"create"}, "To create the key pair of an agent, and the outputs of an Update.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "", "secrets", read, "To watch the metadata of Secrets that `--watch-configs-label-selector` selects. Not needed with `none`.",
			"A changed Secret causes no update.", nil, nil, ""},
		{clusterRole, "", "configmaps", []string{"get"}, "To read the ConfigMaps of a Stack when an operation starts, and known hosts when a repository is checked.",
			"The Stack reports that the ConfigMap cannot be read.", nil, (*fixture).newGitStack, "not allowed to read ConfigMap"},
		{clusterRole, "", "configmaps", read, "To watch the metadata of ConfigMaps, as for Secrets.", "A changed ConfigMap causes no update.", nil, nil, ""},
		{clusterRole, "", "events", []string{"create"}, "To create events.",
			"There are no events, and the log has the error.", nil, (*fixture).newStack, ""},
		{clusterRole, "", "events", []string{"patch"}, "To count repeated events.",
			"Repeated events are lost.", nil, (*fixture).repeatEvent, ""},
		{clusterRole, "", "events", []string{"list"}, "To find out why a workspace pod is not created or does not start.",
			"The Workspace reports that it cannot read events.", nil, (*fixture).newStack, ""},
		{clusterRole, "apps", "statefulsets", []string{"get"}, "To check whether a StatefulSet with the same name exists before creating one.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "apps", "statefulsets", []string{"create"}, "To create the StatefulSet of a Workspace.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "apps", "statefulsets", []string{"patch"}, "To apply a StatefulSet, and to change it when its Workspace changes.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "apps", "statefulsets", read, "To cache the StatefulSets of Workspaces.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, "", "services", []string{"get"}, "To check whether a Service with the same name exists before creating one.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "", "services", []string{"create"}, "To create the Service of a Workspace, which gives its pod a DNS name.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "", "services", []string{"patch"}, "To apply a Service, and to change it when its Workspace changes.",
			"The Workspace reports the error of the API server.", nil, (*fixture).newStack, ""},
		{clusterRole, "", "services", read, "To cache the Services of Workspaces.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, "", "pods", read, "To cache the pods of Workspaces and their problems.", "The caches do not synchronize, and nothing is reconciled.", nil, nil, ""},
		{clusterRole, "", "pods", []string{"delete"}, "To replace the pod of a changed Workspace when no operation runs in it.",
			"The pod is not replaced, and the log has the reason.", (*fixture).newPod, (*fixture).editStack, ""},
		{clusterRole, fluxSources, "gitrepositories", []string{"get"}, "To read a source.", "The Stack reports `AccessDenied`.", nil, fluxStack("GitRepository"), ""},
		{clusterRole, fluxSources, "gitrepositories", read, "To notice a new artifact at once.", "A new artifact is noticed after up to `--requeue-dependency`.", nil, nil, ""},
		{clusterRole, fluxSources, "ocirepositories", []string{"get"}, "To read a source.", "The Stack reports `AccessDenied`.", nil, fluxStack("OCIRepository"), ""},
		{clusterRole, fluxSources, "ocirepositories", read, "To notice a new artifact at once.", "A new artifact is noticed after up to `--requeue-dependency`.", nil, nil, ""},
		{clusterRole, fluxSources, "buckets", []string{"get"}, "To read a source.", "The Stack reports `AccessDenied`.", nil, fluxStack("Bucket"), ""},
		{clusterRole, fluxSources, "buckets", read, "To notice a new artifact at once.", "A new artifact is noticed after up to `--requeue-dependency`.", nil, nil, ""},
		{clusterRole, fluxSources, "externalartifacts", []string{"get"}, "To read a source, with `--feature-gates=ExternalArtifact=true`.", "The Stack reports `AccessDenied`.", nil, fluxStack("ExternalArtifact"), ""},
		{clusterRole, fluxSources, "externalartifacts", read, "To notice a new artifact at once.", "A new artifact is noticed after up to `--requeue-dependency`.", nil, nil, ""},
		{clusterRole, kustomizeGroup, "kustomizations", []string{"get"}, "To read a Kustomization in `dependsOn` of a Stack. Not needed if `--dependency-kinds` does not list the kind.",
			"The Stack waits with `AccessDenied`.", nil, dependentOn(kustomizeGroup+"/v1", "Kustomization"), `resources: ["kustomizations"], verbs: ["get", "list", "watch"]`},
		{clusterRole, kustomizeGroup, "kustomizations", read, "To notice changes of a Kustomization for which a Stack waits.", "The Kustomization is read every 5 s to 30 s instead.", nil, nil, ""},
		{clusterRole, helmGroup, "helmreleases", []string{"get"}, "To read a HelmRelease in `dependsOn` of a Stack. Not needed if `--dependency-kinds` does not list the kind.",
			"The Stack waits with `AccessDenied`.", nil, dependentOn(helmGroup+"/v2", "HelmRelease"), `resources: ["helmreleases"], verbs: ["get", "list", "watch"]`},
		{clusterRole, helmGroup, "helmreleases", read, "To notice changes of a HelmRelease for which a Stack waits.", "The HelmRelease is read every 5 s to 30 s instead.", nil, nil, ""},
		{electionRole, leasesGroup, "leases", []string{"get"}, "To find the leader.", "The controller never becomes the leader.", nil, (*fixture).newReplica, ""},
		{electionRole, leasesGroup, "leases", []string{"create"}, "To create the lease.", "The controller never becomes the leader.", nil, (*fixture).newReplica, ""},
		{electionRole, leasesGroup, "leases", []string{"update"}, "To renew the lease.", "The leader loses the lease and restarts.", nil, (*fixture).newReplica, ""},
		{tokenRole, "", tokenResource, []string{"create"}, "To request tokens of the controller's own service account. Each is valid for one agent and ten minutes.",
			"No agent accepts calls.", nil, (*fixture).requestToken, ""},
	}
)
