package stack

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/fluxcd/pkg/runtime/conditions"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// The Stack has deployed the Pulumi stack "dev" of the project "shop" in the backend "s3://one", and left "old" before.
func TestPulumiStacksThatAreLeftAreRecorded(t *testing.T) {
	dev := pulumiv1.LeftStack{Name: "dev", Project: "shop", Backend: "s3://one"}
	old := pulumiv1.LeftStack{Name: "old", Project: "shop", Backend: "s3://one"}
	creates := map[string]int64{"create": 2, "same": 0}
	for name, tt := range map[string]struct {
		kind                    autov1alpha1.UpdateType
		stack, project, backend string
		changes                 map[string]int64
		failed                  bool
		want                    []pulumiv1.LeftStack
		deployed                string
	}{
		"the same":                   {stack: "dev", project: "shop", backend: "s3://one", changes: creates, want: []pulumiv1.LeftStack{old}, deployed: "dev"},
		"another name":               {stack: "next", project: "shop", backend: "s3://one", changes: creates, want: []pulumiv1.LeftStack{old, dev}, deployed: "next"},
		"another project":            {stack: "dev", project: "cart", backend: "s3://one", changes: creates, want: []pulumiv1.LeftStack{old, dev}, deployed: "dev"},
		"another backend":            {stack: "dev", project: "shop", backend: "s3://two?region=x", changes: creates, want: []pulumiv1.LeftStack{old, dev}, deployed: "dev"},
		"another one that imports":   {stack: "next", project: "shop", backend: "s3://one", changes: map[string]int64{"import": 2, "create": 1}, want: []pulumiv1.LeftStack{old, dev}, deployed: "next"},
		"renamed with its resources": {stack: "next", project: "shop", backend: "s3://one", changes: map[string]int64{"same": 1, "create": 1}, want: []pulumiv1.LeftStack{old}, deployed: "next"},
		"it failed half-way":         {stack: "next", project: "shop", backend: "s3://one", changes: creates, failed: true, want: []pulumiv1.LeftStack{old, dev}, deployed: "next"},
		"it failed before":           {stack: "next", project: "shop", backend: "s3://one", failed: true, want: []pulumiv1.LeftStack{old}, deployed: "dev"},
		"back to an earlier one":     {stack: "old", project: "shop", backend: "s3://one", changes: map[string]int64{"same": 1}, want: nil, deployed: "old"},
		"the earlier one is empty":   {stack: "old", project: "shop", backend: "s3://one", changes: creates, want: []pulumiv1.LeftStack{dev}, deployed: "old"},
		"a preview":                  {kind: autov1alpha1.UpdateTypePreview, stack: "next", backend: "s3://one", changes: creates, want: []pulumiv1.LeftStack{old}, deployed: "dev"},
		"it is destroyed":            {kind: autov1alpha1.UpdateTypeDestroy, stack: "dev", project: "shop", backend: "s3://one", changes: map[string]int64{"delete": 2}, want: []pulumiv1.LeftStack{old}},
		"the earlier one, too":       {kind: autov1alpha1.UpdateTypeDestroy, stack: "old", project: "shop", backend: "s3://one", changes: map[string]int64{"delete": 2}, want: nil},
		"renamed and destroyed":      {kind: autov1alpha1.UpdateTypeDestroy, stack: "next", project: "shop", backend: "s3://one", want: []pulumiv1.LeftStack{old, dev}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stack := &pulumiv1.Stack{Spec: pulumiv1.StackSpec{Stack: tt.stack, Backend: tt.backend}}
			stack.Status.DeployedStack, stack.Status.DeployedBackend = dev.Name, dev.Backend
			stack.Status.LeftStacks, stack.Status.ProjectInfo = []pulumiv1.LeftStack{old}, &autov1alpha1.ProjectInfo{Name: dev.Project}
			update := &autov1alpha1.Update{Spec: autov1alpha1.UpdateSpec{StackName: tt.stack, Type: autov1alpha1.UpdateTypeUp}}
			if tt.kind != "" {
				update.Spec.Type = tt.kind
			}
			update.Status.ResourceChanges, update.Status.ProjectInfo = tt.changes, &autov1alpha1.ProjectInfo{Name: tt.project}
			conditions.MarkTrue(update, autov1alpha1.UpdateComplete, "x", "")
			if tt.failed {
				conditions.MarkTrue(update, autov1alpha1.UpdateFailed, "x", "")
			}
			recordDeployedStack(stack, update)
			if tt.want == nil {
				tt.want = []pulumiv1.LeftStack{}
			}
			g.Expect(append([]pulumiv1.LeftStack{}, stack.Status.LeftStacks...)).To(Equal(tt.want))
			g.Expect(stack.Status.DeployedStack).To(Equal(tt.deployed))
		})
	}
}

func TestBackendIsRecordedWithoutCredentials(t *testing.T) {
	g := NewWithT(t)
	for given, want := range map[string]string{
		"postgres://user:canary@db/pulumi?sslcert=x": "postgres://db/pulumi", "s3://bucket?region=x": "s3://bucket", "file://~": "file://~",
		"": "", "https://us%er:canary@api": "", "azblob://box#canary": "azblob://box", "user:canary@api": "", "canary@api": "",
	} {
		g.Expect(withoutCredentials(given)).To(Equal(want))
	}
}

// The status keeps up to fifty of them, so none may be as large as a tenant can write.
func TestPulumiStacksThatAreLeftAreSmall(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("x", 100<<10)
	left := pulumiStack(long, &autov1alpha1.ProjectInfo{Name: long}, "s3://"+long)
	for _, part := range []string{left.Name, left.Project, left.Backend} {
		g.Expect(len(part)).To(BeNumerically("<=", maxLeftText))
	}
	stack := &pulumiv1.Stack{Spec: pulumiv1.StackSpec{Stack: long, Backend: "s3://" + long}}
	stack.Status.LeftStacks = []pulumiv1.LeftStack{left}
	g.Expect(isLeft(stack)).To(BeTrue(), "it can still be named to be destroyed")
}

func TestDeletionWaitsForPulumiStacksThatAreLeft(t *testing.T) {
	left := func(o *observation) { o.stack.Status.LeftStacks = []pulumiv1.LeftStack{{Name: "old", Project: "shop"}} }
	destroyed := func(o *observation) {
		o.stack.Status.LastUpdate.Type, o.stack.Status.Deployed, o.stack.Status.DeployedStack = autov1alpha1.UpdateTypeDestroy, false, ""
	}
	expectDecisions(t, []decisionCase{
		{name: "the present one is destroyed first", given: with(upToDate(), toDestroy, left), action: actionUpdate, fresh: true},
		{name: "then somebody has to decide", given: with(upToDate(), toDestroy, destroyed, left), action: actionStall,
			reason: pulumiv1.PulumiStacksLeftReason, says: []string{`"old" of project shop`, pulumiv1.OrphanAnnotation}, wake: byEdit},
		{name: "to destroy it", given: with(upToDate(), toDestroy, destroyed, left, func(o *observation) { o.stack.Spec.Stack, o.stack.Generation = "old", 9 }),
			action: actionUpdate, fresh: true},
		{name: "to keep it", given: with(upToDate(), toDestroy, destroyed, left, func(o *observation) {
			o.stack.Annotations = map[string]string{pulumiv1.OrphanAnnotation: "true"}
		}), action: actionRelease, wake: byNothing},
	})
}
