// Package v1alpha1 contains the earlier version of the Stack API. It has the same fields as version v1, which is the one that is
// stored; new manifests use v1.
//
// +kubebuilder:object:generate=true
// +groupName=pulumi.com
package v1alpha1
