package api_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
)

func TestStackRolloutsThatCannotWorkAreRefused(t *testing.T) {
	refused := func(field, message string) types.GomegaMatcher {
		return MatchError(And(ContainSubstring(field), ContainSubstring(message)))
	}
	const numbers, percentage = "must be from 1 to 200", "should match '^(100|[1-9][0-9]?)%$'"
	for name, test := range map[string]struct {
		spec string
		want types.GomegaMatcher
	}{
		"one wave":                  {"{}", Succeed()},
		"all of it":                 {"{allowedNamespaces: {from: All}, maxConcurrent: 200, maxFailures: 0, suspend: true, waves: [{name: canary, stacks: {matchLabels: {a: b}}, limit: 1, soak: 1h30m, timeout: 5m, maxFailures: 0%}, {name: some, limit: 100%, maxConcurrent: 1}, {name: rest, promotion: Manual, maxConcurrent: 5%, maxFailures: 100%}]}", Succeed()},
		"20 waves":                  {"{waves: " + list(20, "{name: w%d}") + "}", Succeed()},
		"21 waves":                  {"{waves: " + list(21, "{name: w%d}") + "}", refused("spec.waves", "Too many: 21")},
		"no wave":                   {"{waves: []}", refused("spec.waves", "should have at least 1 items")},
		"two waves of one name":     {"{waves: [{name: a, limit: 1}, {name: a}]}", refused("spec.waves[1]", "Duplicate value")},
		"no source":                 {"{sourceRef: {kind: GitRepository}}", refused("spec.sourceRef.name", "Required value")},
		"selector in the last wave": {"{waves: [{name: a, stacks: {matchLabels: {a: b}}}]}", refused("spec", "the last wave has neither stacks nor namespaces nor limit")},
		"namespaces, last":          {"{waves: [{name: a, namespaces: {matchLabels: {a: b}}}]}", refused("spec", "the last wave has neither stacks nor namespaces nor limit")},
		"namespaces":                {"{allowedNamespaces: {from: Selector, selector: {}}, waves: [{name: a, namespaces: {matchLabels: {a: b}}, noDrift: true}, {name: b}]}", Succeed()},
		"no selector":               {"{allowedNamespaces: {from: Selector}}", refused("spec.allowedNamespaces", "selector is for from: Selector")},
		"selector for all":          {"{allowedNamespaces: {from: All, selector: {matchLabels: {a: b}}}}", refused("spec.allowedNamespaces", "selector is for from: Selector")},
		"limit in the last wave":    {"{waves: [{name: a}, {name: b, limit: 5}]}", refused("spec", "the last wave has neither stacks nor namespaces nor limit")},
		"none at once":              {"{maxConcurrent: 0}", refused("spec.maxConcurrent", numbers)},
		"too many at once":          {"{maxConcurrent: 201}", refused("spec.maxConcurrent", numbers)},
		"none in a hundred":         {"{maxConcurrent: 0%}", refused("spec.maxConcurrent", percentage)},
		"more than all":             {"{maxConcurrent: 101%}", refused("spec.maxConcurrent", percentage)},
		"a word":                    {"{waves: [{name: a, maxConcurrent: many}, {name: b}]}", refused("spec.waves[0].maxConcurrent", percentage)},
		"a huge text":               {"{maxConcurrent: '" + strings.Repeat("9", 100000) + "%'}", refused("spec.maxConcurrent", percentage)},
		"negative failures":         {"{maxFailures: -1}", refused("spec.maxFailures", "must not be negative")},
		"no Stack in the wave":      {"{waves: [{name: a, limit: 0}, {name: b}]}", refused("spec.waves[0].limit", "must be positive")},
		"0% in the wave":            {"{waves: [{name: a, limit: 0%}, {name: b}]}", refused("spec.waves[0].limit", percentage)},
		"negative soak":             {"{waves: [{name: a, soak: -1s}, {name: b}]}", refused("spec.waves[0].soak", "should match")},
		"another promotion":         {"{waves: [{name: a, promotion: Maybe}]}", refused("spec.waves[0].promotion", "supported values")},
		"other namespaces":          {"{allowedNamespaces: {from: Some}}", refused("spec.allowedNamespaces.from", "supported values")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(offer(t, rollout.object(g, "all", test.spec))).To(test.want)
		})
	}
}

func TestApprovalIsOfAPlanOrOfARevision(t *testing.T) {
	approval := kind{"auto.pulumi.com/v1alpha1", "Approval", "{decision: Approve, by: admin}"}
	const digest = "sha256:6f1ed002ab5595859014ebf0951522d9a0f6e9d1d2c5b1f6a6c9e8d7f3b2a190"
	for spec, problem := range map[string]string{
		"{update: a, digest: '" + digest + "'}":             "",
		"{rollout: a, revision: 'main@sha1:b'}":             "",
		"{rollout: a, revision: 'main@sha1:b', wave: rest}": "",
		"{}": "set either update, with digest, or rollout, with revision",
		"{update: a, digest: '" + digest + "', rollout: a, revision: b}": "set either update, with digest, or rollout, with revision",
		"{update: a}":  "set update with digest, and rollout with revision",
		"{rollout: a}": "set update with digest, and rollout with revision",
		"{update: a, digest: '" + digest + "', revision: b}": "set update with digest, and rollout with revision",
		"{update: a, digest: '" + digest + "', wave: rest}":  "wave is only for a StackRollout",
	} {
		t.Run(spec, func(t *testing.T) {
			g := NewWithT(t)
			err := offer(t, approval.object(g, "a", spec))
			if problem == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(problem)))
		})
	}
}
