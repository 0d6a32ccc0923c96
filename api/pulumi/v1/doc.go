// Package v1 contains the API types of the group pulumi.com: Stack, a Pulumi stack that is kept as its program says, and
// Program, a Pulumi YAML program in the cluster.
//
// +kubebuilder:object:generate=true
// +groupName=pulumi.com
package v1
