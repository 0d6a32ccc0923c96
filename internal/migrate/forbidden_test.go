package migrate

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/migrate/newfields"
	"github.com/stack-controller/stack-controller/internal/shard"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// forbidding has an object for each field, annotation and status that forbids something, by what the output has to name.
var forbidding = map[string]struct {
	spec   func(*pulumiv1.Stack)
	status func(*pulumiv1.Stack)
	update string
}{
	"spec.suspend":         {spec: func(s *pulumiv1.Stack) { s.Spec.Suspend = true }},
	"spec.approval":        {spec: func(s *pulumiv1.Stack) { s.Spec.Approval = &pulumiv1.ApprovalPolicy{} }},
	"spec.requireVerified": {spec: func(s *pulumiv1.Stack) { kinds[1].set(&s.Spec); s.Spec.RequireVerified = true }},
	"spec.dependsOn":       {spec: func(s *pulumiv1.Stack) { s.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "network"}} }},
	"spec.rolloutRef":      {spec: func(s *pulumiv1.Stack) { s.Spec.RolloutRef = &pulumiv1.RolloutReference{Name: "all"} }},
	"spec.windows": {spec: func(s *pulumiv1.Stack) {
		s.Spec.Windows = []autov1alpha1.Window{{Policy: autov1alpha1.WindowDeny, Cron: "0 0 1 1 *", Window: &metav1.Duration{Duration: time.Hour}}}
	}},
	"spec.inputs": {spec: func(s *pulumiv1.Stack) {
		s.Spec.Inputs = []autov1alpha1.Input{{Key: "vpc", Secret: &autov1alpha1.KeyReference{Name: "network", Key: "vpc"}}}
	}},
	"spec.destroyAfterDependents": {spec: func(s *pulumiv1.Stack) {
		s.Spec.DestroyOnFinalize, s.Spec.DestroyAfterDependents = true, true
	}},
	"spec.updateTemplate.spec.previewOnly": {spec: func(s *pulumiv1.Stack) {
		s.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{PreviewOnly: new(true)}}
	}},
	"spec.updateTemplate.spec.exclude": {spec: func(s *pulumiv1.Stack) {
		s.Spec.UpdateTemplate = &pulumiv1.UpdateTemplate{Spec: &autov1alpha1.UpdateSpec{Exclude: []string{"**"}}}
	}},
	pulumiv1.OrphanAnnotation: {spec: func(s *pulumiv1.Stack) {
		s.Spec.DestroyOnFinalize, s.Annotations = true, map[string]string{pulumiv1.OrphanAnnotation: "true"}
	}},
	"creates all its resources again": {status: func(s *pulumiv1.Stack) {
		failed(s, kinds[0], 1)
		s.Status.LastUpdate.Reason = autov1alpha1.StackLostReason
	}},
	"spec.requireStack": {update: "spec: {workspaceName: app, stackName: dev, type: up, requireStack: true}"},
}

func TestNothingChangesUntilWhatAnObjectForbidsIsAccepted(t *testing.T) {
	t.Parallel()
	for names, test := range forbidding {
		t.Run(names, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t)
			var object client.Object = &pulumiv1.Stack{}
			kind := "Stack"
			if test.update != "" {
				kind, object = "Update", &autov1alpha1.Update{}
				s.Expect(yaml.Unmarshal([]byte(test.update), object)).To(Succeed())
			} else {
				object.(*pulumiv1.Stack).Spec.Stack = "dev"
			}
			object.SetNamespace(s.namespace)
			object.SetName("app")
			if test.spec != nil {
				test.spec(object.(*pulumiv1.Stack))
			}
			s.Expect(admin.Create(s.ctx, object)).To(Succeed()) // nobody has reconciled it
			if test.status != nil {
				s.write(object, func() { test.status(object.(*pulumiv1.Stack)) })
			}
			other := s.stack("other", nil, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[0]) })
			before := object.GetResourceVersion()

			flag := "--accept=" + kind + "/" + s.namespace + "/app"
			for _, change := range []func(*Options){dryRun, accept(), accept("Stack/other", "Program/app")} {
				out, err := s.run(change)
				s.Expect(err).To(MatchError(And(HavePrefix("1 objects forbid"), HaveSuffix("nothing was changed"))))
				s.Expect(out).To(MatchRegexp("(?m)^" + kind + " " + s.namespace + "/app: stop: .*" + names + ".*; to accept this: " + flag + "$"))
				s.Expect(strings.Count(out, "stop: ")).To(Equal(1), out)
				s.read(object)
				s.Expect(object.GetResourceVersion()).To(Equal(before))
				s.read(other)
				s.Expect(isOurs(other)).To(BeTrue())
			}
			out, err := s.run(accept(strings.ToLower(kind) + "/app"))
			s.Expect(err).NotTo(HaveOccurred())
			s.Expect(out).To(MatchRegexp("(?m)^" + kind + " " + s.namespace + "/app: note: .*" + names))
			s.read(other)
			s.Expect(isOurs(other)).To(BeFalse())
		})
	}
}

// TestFieldsThatForbidAreTried keeps the cases above complete: an object for every field of a Stack that forbids something.
func TestFieldsThatForbidAreTried(t *testing.T) {
	for _, field := range newfields.Of(newfields.Stacks) {
		if field.Forbids && !strings.Contains(field.Path, "Template.") {
			NewWithT(t).Expect(slices.Collect(maps.Keys(forbidding))).To(ContainElement(field.Path))
		}
	}
}

func TestWhatTheOperatorStartsIsSaid(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.Expect(admin.Create(s.ctx, &pulumiv1.Stack{
		Namespace: s.namespace, Name: "new", Spec: pulumiv1.StackSpec{Stack: "dev"},
	})).To(Succeed())
	s.stack("retrying", nil, func(stack *pulumiv1.Stack) { failed(stack, kinds[0], 1) })
	s.stack("current", nil, func(stack *pulumiv1.Stack) { succeeded(stack, kinds[0]) })
	out, err := s.run()
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(out).To(And(
		MatchRegexp("(?m)/new: stays as it is; the operator runs an update$"),
		MatchRegexp("(?m)/retrying: handed back, .*; the operator runs an update$"),
		MatchRegexp("(?m)/current: handed back, Ready=True ProcessingCompleted$"),
	))
}

func TestLeftoversAreListedWithTheCommandsThatRemoveThem(t *testing.T) {
	s := newFixture(t)
	stack := &pulumiv1.Stack{Namespace: s.namespace, Name: "app", Annotations: map[string]string{
		pulumiv1.DeployedStackAnnotation: "dev", "example.com/mine": "stays",
	}, Spec: pulumiv1.StackSpec{Stack: "dev"}}
	s.Expect(admin.Create(s.ctx, stack)).To(Succeed())
	for name, labels := range map[string]map[string]string{
		"app-workspace-rpc": {autov1alpha1.ComponentLabel: autov1alpha1.ComponentWorkspace}, "of-a-user": nil,
		"app-1-stack-outputs": {autov1alpha1.ComponentLabel: autov1alpha1.ComponentUpdate},
	} {
		s.Expect(admin.Create(s.ctx, &corev1.Secret{Namespace: s.namespace, Name: name, Labels: labels})).To(Succeed())
	}
	var everywhere strings.Builder
	whole := &handBack{Client: admin, Out: &everywhere, ControllerNamespace: controllerNamespace}
	s.Expect(whole.sayLeftovers(s.ctx)).To(Succeed())
	s.Expect(everywhere.String()).To(And(
		ContainSubstring("kubectl annotate stacks.pulumi.com --all --all-namespaces "),
		ContainSubstring("kubectl delete customresourcedefinitions --ignore-not-found approvals.auto.pulumi.com stackrollouts.auto.pulumi.com\n"),
	))
	lease := &coordinationv1.Lease{Namespace: s.namespace, Name: shard.Lease("")}
	s.Expect(admin.Create(s.ctx, lease)).To(Succeed())
	everywhere.Reset()
	whole.ControllerNamespace = ""
	s.Expect(whole.sayLeftovers(s.ctx)).To(Succeed())
	s.Expect(everywhere.String()).To(ContainSubstring("kubectl delete networkpolicies --namespace "+s.namespace+" "), "its Deployment is gone")
	s.Expect(admin.Delete(s.ctx, lease)).To(Succeed())

	out, err := s.run(dryRun)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(out).To(ContainSubstring("# Secret " + s.namespace + "/app-workspace-rpc\n"))
	s.Expect(strings.Count(out, "# Secret ")).To(Equal(1), out)

	for line := range strings.SplitSeq(out, "\n") {
		if command, found := strings.CutPrefix(line, "kubectl "); found {
			_, err := cluster.Kubectl(s.ctx, strings.Fields(command)...)
			s.Expect(err).NotTo(HaveOccurred(), line)
		}
	}
	s.read(stack)
	s.Expect(stack.Annotations).To(Equal(map[string]string{"example.com/mine": "stays"}))
	secrets := &corev1.SecretList{}
	s.Expect(admin.List(s.ctx, secrets, client.InNamespace(s.namespace))).To(Succeed())
	s.Expect(secrets.Items).To(HaveLen(2))
}

func TestWhatStaysOfAnInstallationIsFoundWithoutItsDeployment(t *testing.T) {
	g := NewWithT(t)
	deployment := appsv1.Deployment{Namespace: "platform"}
	lease := coordinationv1.Lease{Namespace: "flux-system"}
	g.Expect(namespacesOf([]appsv1.Deployment{deployment, deployment}, []coordinationv1.Lease{lease})).To(Equal([]string{"flux-system", "platform"}))
	g.Expect(namespacesOf(nil, []coordinationv1.Lease{lease})).To(Equal([]string{"flux-system"}))
	g.Expect(namespacesOf(nil, nil)).To(Equal([]string{"NAMESPACE"}))
}

// TestEverythingThatIsInstalledIsRemoved compares the commands with the manifests.
func TestEverythingThatIsInstalledIsRemoved(t *testing.T) {
	g := NewWithT(t)
	commands := strings.Join(installation, "\n")
	for _, dir := range []string{"rbac", "admission", "manager", "crd/bases"} {
		files, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), "config", filepath.FromSlash(dir), "*.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files).NotTo(BeEmpty())
		for _, file := range files {
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			for document := range strings.SplitSeq(string(content), "\n---\n") {
				object := &unstructured.Unstructured{}
				g.Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
				kind := strings.ToLower(object.GetKind())
				if kind == "" || kind == "kustomization" || object.GetName() == "" || kind == "customresourcedefinition" && operatorHas(object.GetName()) {
					continue
				}
				plural := strings.TrimSuffix(kind, "y") + map[bool]string{true: "ies", false: "s"}[strings.HasSuffix(kind, "y")]
				name := `.* ` + object.GetName() + `( |$)`
				if object.GetLabels()["app.kubernetes.io/component"] == "stack-controller" {
					name = `.*--selector app.kubernetes.io/component=stack-controller`
				}
				g.Expect(commands).To(MatchRegexp(`(?m)^kubectl delete ([a-z]+,)*`+plural+`[ ,]`+name), "%s: %s %s", file, kind, object.GetName())
			}
		}
	}
}

func operatorHas(definition string) bool { return newfields.Of(definition) != nil }
