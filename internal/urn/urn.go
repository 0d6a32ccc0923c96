// Package urn parses the URNs of Pulumi resources that programs, states and agents name, and accepts invalid ones.
package urn

import "github.com/pulumi/pulumi/sdk/v3/go/common/resource/urn"

// Name is the name of the resource in the program. Of what is no URN, it is the text itself.
func Name(text string) string {
	parsed, err := urn.Parse(text)
	if err != nil {
		return text
	}
	return parsed.Name()
}

// Type is the type of the resource, without those of its parents. Of what is no URN, it is "resource".
func Type(text string) string {
	parsed, err := urn.Parse(text)
	if err != nil {
		return "resource"
	}
	return string(parsed.Type())
}
