// Package v1alpha1 contains the API types of the group auto.pulumi.com: Workspace, an environment in which Pulumi runs,
// Update, one operation of Pulumi in a Workspace, and Approval, the decision of a user about a plan.
//
// +kubebuilder:object:generate=true
// +groupName=auto.pulumi.com
package v1alpha1
