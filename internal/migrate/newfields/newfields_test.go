package newfields_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/stack-controller/stack-controller/internal/migrate/newfields"
)

func TestFieldIsFoundWhereverItIs(t *testing.T) {
	for name, test := range map[string]struct {
		definition, object string
		set                []string
	}{
		"nothing":              {definition: newfields.Stacks, object: "spec: {stack: dev}"},
		"no object":            {definition: newfields.Stacks, object: "{}"},
		"false":                {definition: newfields.Stacks, object: "spec: {suspend: false, updateOn: ''}"},
		"a field":              {newfields.Stacks, "spec: {suspend: true}", []string{"spec.suspend"}},
		"an empty object":      {newfields.Stacks, "spec: {drift: {}}", []string{"spec.drift"}},
		"of the git source":    {newfields.Stacks, "spec: {gitAuth: {knownHostsRef: {name: a}}}", []string{"spec.gitAuth.knownHostsRef"}},
		"in the templates":     {newfields.Stacks, "spec: {workspaceTemplate: {spec: {idleTimeout: 5m}}, updateTemplate: {spec: {timeout: 5m}}}", []string{"spec.workspaceTemplate.spec.idleTimeout", "spec.updateTemplate.spec.timeout"}},
		"of one item":          {newfields.Workspaces, "spec: {stacks: [{name: a}, {config: [{key: a}, {key: b, valueFrom: {secretKeyRef: {name: c, key: d}}}]}]}", []string{"spec.stacks[].config[].valueFrom.secretKeyRef"}},
		"of one resource":      {newfields.Programs, "program: {resources: {a: {type: x}, b: {options: {retainOnDelete: true}}}}", []string{"program.resources.*.options.retainOnDelete"}},
		"of an Update":         {newfields.Updates, "spec: {savePlan: true, timeout: 5m}", []string{"spec.timeout", "spec.savePlan"}},
		"a list and not a map": {definition: newfields.Programs, object: "program: {resources: [{name: a}]}"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			object := map[string]any{}
			g.Expect(yaml.Unmarshal([]byte(test.object), &object)).To(Succeed())
			var set []string
			for _, field := range newfields.Of(test.definition) {
				if field.IsSetIn(object) {
					set = append(set, field.Path)
				}
			}
			g.Expect(set).To(Equal(test.set))
		})
	}
}
