// Package kubernetes stands in for the Go SDK of Pulumi's Kubernetes provider, which is not to be had as a Go module here. It and
// the packages below have what docs/examples/go needs, with the names of the real one. The resources go to the real SDK of Pulumi.
package kubernetes

// UntypedArgs are the fields of a custom resource besides its metadata.
type UntypedArgs map[string]any
