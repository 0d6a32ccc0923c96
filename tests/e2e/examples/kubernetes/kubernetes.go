// Package kubernetes stands in for the Go SDK of Pulumi's Kubernetes provider, which takes gigabytes of memory to compile. It and the
// packages below it have what docs/examples/go needs, with the same names as the real SDK. They pass the resources to the real Pulumi SDK.
package kubernetes

// UntypedArgs are the fields of a custom resource other than its metadata.
type UntypedArgs map[string]any
