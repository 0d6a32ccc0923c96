// Package v1alpha1 contains the API types of the group auto.pulumi.com: Workspace, an environment in which Pulumi runs,
// and Update, one operation of Pulumi in a Workspace.
//
// +kubebuilder:object:generate=true
// +groupName=auto.pulumi.com
package v1alpha1
