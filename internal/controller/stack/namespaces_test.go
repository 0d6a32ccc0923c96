package stack

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/source"
)

// otherNamespace has the fields in which a Stack can name another namespace, each with a spec that does so and with what the controller
// says about it. The text is empty for a field that has no effect.
var otherNamespace = map[string]struct{ spec, says string }{
	// These are allowed by --no-cross-namespace-refs=false.
	"fluxSource.sourceRef.namespace": {`fluxSource: {sourceRef: {kind: GitRepository, name: a, namespace: other}}`,
		"cannot use GitRepository other/a: references to another namespace are not allowed"},
	"dependsOn.namespace": {`dependsOn: [{name: a, namespace: other}]`,
		"cannot depend on Stack other/a: references to another namespace are not allowed"},
	"inputs.stack.namespace": {`inputs: [{key: a, stack: {name: a, namespace: other, output: a}}]`,
		"cannot depend on Stack other/a: references to another namespace are not allowed"},
	// These are never allowed.
	"workspaceTemplate.spec.stacks.inputs.stack.namespace": {
		`workspaceTemplate: {spec: {stacks: [{name: dev, inputs: [{key: a, stack: {name: a, namespace: other, output: a}}]}]}}`, "list them in spec.inputs"},
	"envRefs.secret.namespace":                          {`envRefs: {A: ` + secretElsewhere + `}`, inAnotherNamespace},
	"secretsRef.secret.namespace":                       {`secretsRef: {a: ` + secretElsewhere + `}`, inAnotherNamespace},
	"gitAuth.accessToken.secret.namespace":              {`gitAuth: {accessToken: ` + secretElsewhere + `}`, ofTheStack},
	"gitAuth.basicAuth.password.secret.namespace":       {`gitAuth: {basicAuth: {userName: ` + secretHere + `, password: ` + secretElsewhere + `}}`, ofTheStack},
	"gitAuth.basicAuth.userName.secret.namespace":       {`gitAuth: {basicAuth: {userName: ` + secretElsewhere + `, password: ` + secretHere + `}}`, ofTheStack},
	"gitAuth.sshAuth.password.secret.namespace":         {`gitAuth: {sshAuth: {sshPrivateKey: ` + secretHere + `, password: ` + secretElsewhere + `}}`, ofTheStack},
	"gitAuth.sshAuth.sshPrivateKey.secret.namespace":    {`gitAuth: {sshAuth: {sshPrivateKey: ` + secretElsewhere + `}}`, ofTheStack},
	"gitAuth.githubApp.appID.secret.namespace":          {githubApp(secretElsewhere, secretHere, secretHere), ofTheStack},
	"gitAuth.githubApp.installationID.secret.namespace": {githubApp(secretHere, secretElsewhere, secretHere), ofTheStack},
	"gitAuth.githubApp.privateKey.secret.namespace":     {githubApp(secretHere, secretHere, secretElsewhere), ofTheStack},
	// This needs the consent of the StackRollout, see waves.Admits.
	"rolloutRef.namespace": {`rolloutRef: {name: a, namespace: other}`, ""},
	// These have no effect, see internal/template.
	"workspaceTemplate.metadata.namespace": {`workspaceTemplate: {metadata: {namespace: other}}`, ""},
	"updateTemplate.metadata.namespace":    {`updateTemplate: {metadata: {namespace: other}}`, ""},
	"updateTemplate.spec.source.sourceRef.namespace": {
		`updateTemplate: {spec: {source: {sourceRef: {kind: GitRepository, name: a, namespace: other}}}}`, ""},
}

const (
	secretHere         = `{type: Secret, secret: {name: s, key: k}}`
	secretElsewhere    = `{type: Secret, secret: {name: s, key: k, namespace: other}}`
	inAnotherNamespace = "secret other/s is in another namespace, which is not allowed"
	ofTheStack         = `secret is in namespace "other": a Secret has to be in the namespace of the Stack`
)

func githubApp(id, installation, key string) string {
	return `gitAuth: {githubApp: {appID: ` + id + `, installationID: ` + installation + `, privateKey: ` + key + `}}`
}

func TestNoReferenceLeavesTheNamespaceOfTheStack(t *testing.T) {
	for field, test := range otherNamespace {
		t.Run(field, func(t *testing.T) {
			g := NewWithT(t)
			spec := pulumiv1.StackSpec{}
			g.Expect(yaml.UnmarshalStrict([]byte(test.spec), &spec)).To(Succeed())
			g.Expect(refusal(t, stackOf(spec))).To(ContainSubstring(test.says))
		})
	}
}

// refusal returns what the controller says about the references of the Stack.
func refusal(t *testing.T, stack *pulumiv1.Stack) string {
	t.Helper()
	var said []string
	d, err := desire(stack)
	if err == nil {
		NewWithT(t).Expect(d.workspace.Namespace).To(Equal(stack.Namespace))
	}
	said = append(said, text(err))
	if stack.Spec.FluxSource != nil {
		_, err := (&source.Flux{}).Resolve(t.Context(), stack, false)
		said = append(said, text(err))
	}
	if stack.Spec.GitAuth != nil {
		stack.Spec.ProjectRepo, stack.Spec.Branch = "https://git.example.com/a.git", "main"
		_, err := source.NewGit(source.GitOptions{}).NewSubscriber().Resolve(t.Context(), stack, false)
		said = append(said, text(err))
	}
	if problem := (&Reconciler{}).checkDependencies(stack, dependenciesOf(stack)); problem != nil {
		said = append(said, problem.message)
	}
	return strings.Join(said, "\n")
}

func text(err error) string {
	if problem := (*source.Problem)(nil); errors.As(err, &problem) {
		return problem.Message
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// A field that is not in the table is new, and needs a check first.
func TestEveryFieldThatNamesANamespaceIsChecked(t *testing.T) {
	found := map[string]bool{}
	findNamespaces(reflect.TypeFor[pulumiv1.StackSpec](), "", found)
	NewWithT(t).Expect(slices.Sorted(maps.Keys(found))).To(Equal(slices.Sorted(maps.Keys(otherNamespace))))
}

// findNamespaces records the paths of the fields named namespace in this API and in Flux's. Pods have some, too, which the API server
// checks.
func findNamespaces(of reflect.Type, path string, found map[string]bool) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		findNamespaces(of.Elem(), path, found)
		return
	case reflect.Struct:
	default:
		return
	}
	if !strings.Contains(of.PkgPath(), "stack-controller/api/") && !strings.Contains(of.PkgPath(), "fluxcd/") {
		return
	}
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		at := strings.TrimPrefix(path+"."+name, ".")
		switch {
		case name == "namespace":
			found[at] = true
		case name == "" && field.Anonymous:
			findNamespaces(field.Type, path, found)
		default:
			findNamespaces(field.Type, at, found)
		}
	}
}

// Otherwise whoever may create Stacks in one namespace could have the controller reconcile a Stack of another namespace without end.
func TestStackDoesNotWakeStacksThatItMayNotDependOn(t *testing.T) {
	var r *Reconciler
	s := newFixture(t, func(reconciler *Reconciler) { r = reconciler })
	base := s.dependent("base", func(stack *pulumiv1.Stack) {
		stack.Spec.DestroyAfterDependents, stack.Finalizers = true, []string{"example.com/kept"}
	})
	s.Expect(s.client.Delete(t.Context(), base)).To(Succeed())
	wakenFrom := func(namespace string) func() []reconcile.Request {
		stack := &pulumiv1.Stack{Namespace: namespace, Name: "web", Spec: pulumiv1.StackSpec{
			DependsOn: []pulumiv1.DependencyReference{{Namespace: s.namespace, Name: "base"}},
		}}
		return func() []reconcile.Request { return r.requestsForDependencies(t.Context(), stack) }
	}
	s.Eventually(wakenFrom(s.namespace)).Should(ConsistOf(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(base)}))
	s.Expect(wakenFrom("other")()).To(BeEmpty())
	s.edit(base, func(stack *pulumiv1.Stack) { stack.Finalizers = nil })
}
