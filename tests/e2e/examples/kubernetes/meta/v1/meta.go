// Package v1 has the metadata of objects.
package v1

import "github.com/pulumi/pulumi/sdk/v3/go/pulumi"

// ObjectMetaArgs are the metadata that a program sets.
type ObjectMetaArgs struct {
	Name      pulumi.StringPtrInput
	Namespace pulumi.StringPtrInput
}

// Inputs returns the fields as they are sent to the engine.
func (a *ObjectMetaArgs) Inputs() pulumi.Map {
	return pulumi.Map{"name": a.Name, "namespace": a.Namespace}
}

// Output returns the metadata that a program can read.
func (a *ObjectMetaArgs) Output() ObjectMetaOutput {
	return ObjectMetaOutput{name: a.Name.ToStringPtrOutput()}
}

// ObjectMetaOutput is the metadata of an object that was created.
type ObjectMetaOutput struct{ name pulumi.StringPtrOutput }

// Name returns the name of the object.
func (o ObjectMetaOutput) Name() pulumi.StringPtrOutput { return o.name }
