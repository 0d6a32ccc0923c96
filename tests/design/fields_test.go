package design_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

func TestEverySpecFieldIsDocumented(t *testing.T) {
	for page, spec := range map[string]reflect.Type{
		"docs/spec/v1/stacks.md":     reflect.TypeFor[pulumiv1.StackSpec](),
		"docs/spec/v1/workspaces.md": reflect.TypeFor[autov1alpha1.WorkspaceSpec](),
		"docs/spec/v1/updates.md":    reflect.TypeFor[autov1alpha1.UpdateSpec](),
	} {
		text := read(t, page)
		for _, field := range reflect.VisibleFields(spec) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" && !regexp.MustCompile("`\\.spec\\."+name+"\\b").MatchString(text) {
				t.Errorf("%s: the field .spec.%s is not documented", page, name)
			}
		}
	}
}
