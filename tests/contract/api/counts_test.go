package api_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// list returns a list of n items in YAML. The item has a verb for its number.
func list(n int, item string) string {
	var items strings.Builder
	for i := range n {
		fmt.Fprintf(&items, item+", ", i)
	}
	return "[" + items.String() + "]"
}

func TestListsBeyondTheirLimitsAreRejected(t *testing.T) {
	for name, tt := range map[string]struct {
		limit   int
		spec    func(n int) string
		message string
	}{
		"sourcePaths":        {256, func(n int) string { return "{sourcePaths: " + list(n, "p%d") + "}" }, "spec.sourcePaths: Too many: 257"},
		"drift.ignore":       {50, func(n int) string { return "{drift: {ignore: " + list(n, "{paths: [p%d]}") + "}}" }, "spec.drift.ignore: Too many: 51"},
		"drift.ignore.paths": {50, func(n int) string { return "{drift: {ignore: [{paths: " + list(n, "p%d") + "}]}}" }, "spec.drift.ignore[0].paths: Too many: 51"},
		"outputs":            {16, func(n int) string { return "{outputs: " + list(n, "{name: o%d}") + "}" }, "spec.outputs: Too many: 17"},
		"outputs.keys": {256, func(n int) string { return "{outputs: [{name: o, keys: " + list(n, "{key: k%d, output: a}") + "}]}" },
			"spec.outputs[0].keys: Too many: 257"},
		"inputs":       {100, func(n int) string { return "{inputs: " + list(n, "{key: k%d, secret: {name: s, key: k}}") + "}" }, "spec.inputs: Too many: 101"},
		"shareOutputs": {32, func(n int) string { return "{shareOutputs: " + list(n, "{namespaces: [n%d], outputs: [o]}") + "}" }, "spec.shareOutputs: Too many: 33"},
		"shareOutputs.namespaces": {64, func(n int) string { return "{shareOutputs: [{outputs: [o], namespaces: " + list(n, "name%d") + "}]}" },
			"spec.shareOutputs[0].namespaces: Too many: 65"},
		"shareOutputs.outputs": {256, func(n int) string { return "{shareOutputs: [{namespaces: [team], outputs: " + list(n, "o%d") + "}]}" },
			"spec.shareOutputs[0].outputs: Too many: 257"},
		"updateHistoryLimit": {100, func(n int) string { return fmt.Sprintf("{updateHistoryLimit: %d}", n) },
			"spec.updateHistoryLimit in body should be less than or equal to 100"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(offer(t, stackV1.object(g, "many", tt.spec(tt.limit)))).To(Succeed())
			g.Expect(offer(t, stackV1.object(g, "many", tt.spec(tt.limit+1)))).To(MatchError(ContainSubstring(tt.message)))
		})
	}
	t.Run("Secrets of a plan", func(t *testing.T) {
		g := NewWithT(t)
		object := update.object(g, "plan-of-many-secrets", "")
		g.Expect(apiServer.Create(t.Context(), object)).To(Succeed())
		defer func() { g.Expect(apiServer.Delete(t.Context(), object)).To(Succeed()) }()
		patch := func(n int) error {
			change := fmt.Sprintf(`{"status":{"plan":{"digest":"a","changesDigest":"b","inputsDigest":"c","stateDigest":"d","secrets":[%s]}}}`,
				strings.TrimSuffix(strings.Repeat(`"s",`, n), ","))
			return apiServer.Status().Patch(t.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(change)), client.DryRunAll)
		}
		g.Expect(patch(9)).To(Succeed())
		g.Expect(patch(10)).To(MatchError(ContainSubstring("status.plan.secrets: Too many: 10")))
	})
}
