// Package v1 contains the API types of the group pulumi.com: Stack, which defines a Pulumi stack and how it is kept up
// to date, and Program, a Pulumi YAML program in the cluster.
//
// +kubebuilder:object:generate=true
// +groupName=pulumi.com
package v1
