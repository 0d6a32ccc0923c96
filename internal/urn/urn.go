// Package urn parses the URNs of Pulumi resources. They come from programs, states and agents, so invalid ones are accepted.
package urn

import "github.com/pulumi/pulumi/sdk/v3/go/common/resource/urn"

// Name returns the name of the resource in the program. For a text that is not a URN, it returns the text.
func Name(text string) string {
	parsed, err := urn.Parse(text)
	if err != nil {
		return text
	}
	return parsed.Name()
}

// Type returns the type of the resource, without the types of its parents. For a text that is not a URN, it returns "resource".
func Type(text string) string {
	parsed, err := urn.Parse(text)
	if err != nil {
		return "resource"
	}
	return string(parsed.Type())
}
