package rbac_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// installNamespaced applies config/namespaced to the namespace, and returns the installation with the controller's identity in that namespace.
func (s *installation) installNamespaced(t *testing.T, namespace string) *installation {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	g.Expect(os.CopyFS(filepath.Join(dir, "config"), os.DirFS(filepath.Join(tools.RepositoryRoot(), "config")))).To(Succeed())
	overlay := fmt.Sprintf("resources: [config/namespaced]\nnamespace: %s\n", namespace)
	g.Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600)).To(Succeed())
	_, err := s.Kubectl(t.Context(), "apply", "--server-side", "--kustomize", dir)
	g.Expect(err).NotTo(HaveOccurred())
	there := *s
	there.runtimeNamespace = namespace
	there.config, err = s.ServiceAccountConfig(t.Context(), namespace, account)
	g.Expect(err).NotTo(HaveOccurred())
	there.kubeconfig, err = s.WriteKubeconfig(namespace, there.config)
	g.Expect(err).NotTo(HaveOccurred())
	return &there
}

// The controller that config/namespaced installs works in its namespace with its Role. It does nothing elsewhere, and has no rights there.
func TestControllerOfOneNamespaceNeedsNothingOfTheCluster(t *testing.T) {
	suite.Long(t, "takes each right away from a running controller")
	s := newInstallation(t)
	own, other := s.enter(t, "team"), s.enter(t, "other-team")
	there := s.installNamespaced(t, own.namespace)
	deployment := &appsv1.Deployment{}
	own.Expect(s.client.Get(t.Context(), own.key("stack-controller"), deployment)).To(Succeed())
	own.Expect(deployment.Spec.Template.Spec.Containers[0].Args).To(ContainElement("--watch-all-namespaces=false"))
	own.controller = there.startController(t, "--watch-all-namespaces=false", "--enable-leader-election")

	other.newStack()
	own.newStack()
	own.currentUpdate()
	own.Eventually(func() error { return s.client.Get(t.Context(), own.key("app-workspace"), &appsv1.StatefulSet{}) }).Should(Succeed())
	own.Eventually(func() error { return s.client.Get(t.Context(), own.key("app-workspace-rpc"), &corev1.Secret{}) }).Should(Succeed())
	own.Expect(own.controller.logged()).NotTo(ContainSubstring("is forbidden"))

	workspaces := &autov1alpha1.WorkspaceList{}
	own.Expect(s.client.List(t.Context(), workspaces)).To(Succeed())
	for _, workspace := range workspaces.Items {
		own.Expect(workspace.Namespace).NotTo(Equal(other.namespace))
	}
	for _, right := range []string{"list stacks.pulumi.com", "get secrets", "create statefulsets.apps"} {
		for namespace, want := range map[string]string{own.namespace: "yes\n", other.namespace: "no\n"} {
			answer, _ := s.Kubectl(t.Context(), append([]string{"auth", "can-i", "--as=system:serviceaccount:team:" + account, "--namespace=" + namespace}, strings.Fields(right)...)...)
			own.Expect(answer).To(Equal(want), "%s in %s", right, namespace)
		}
	}
}

// The roles of the controller (the first one applies in every namespace, the others only in the controller's own), and names in the rows.
const (
	clusterRole    = "stack-controller"
	electionRole   = "stack-controller-leader-election"
	tokenRole      = "stack-controller-token-request"
	anyNamespace   = "default"
	fluxSources    = "source.toolkit.fluxcd.io"
	pulumiGroup    = "pulumi.com"
	autoGroup      = "auto.pulumi.com"
	leasesGroup    = "coordination.k8s.io"
	ownAccount     = "stack-controller"
	tokenResource  = "serviceaccounts/token"
	kustomizeGroup = "kustomize.toolkit.fluxcd.io"
	helmGroup      = "helm.toolkit.fluxcd.io"
)

// right is one verb on one resource, granted by a role.
type right struct{ role, group, resource, verb string }

// object returns an empty role, for a read or a write.
func (r right) object() client.Object {
	if r.role == clusterRole {
		return &rbacv1.ClusterRole{Name: r.role}
	}
	return &rbacv1.Role{Namespace: namespace, Name: r.role}
}

// rulesOf returns the rules of a role, for a read or a change.
func rulesOf(role client.Object) *[]rbacv1.PolicyRule {
	if everywhere, ok := role.(*rbacv1.ClusterRole); ok {
		return &everywhere.Rules
	}
	return &role.(*rbacv1.Role).Rules
}

// single splits rules into rules with one group, one resource and one verb.
func single(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var split []rbacv1.PolicyRule
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					split = append(split, rbacv1.PolicyRule{
						APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: rule.ResourceNames,
					})
				}
			}
		}
	}
	return split
}

// without removes rights from one role until the test ends. It returns when the API server denies them.
func (s *installation) without(t *testing.T, rights ...right) {
	t.Helper()
	g := NewWithT(t)
	role := rights[0].object()
	g.Expect(s.client.Get(t.Context(), client.ObjectKeyFromObject(role), role)).To(Succeed())
	rules := rulesOf(role)
	whole := *rules
	*rules = slices.DeleteFunc(single(whole), func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rights, right{rights[0].role, rule.APIGroups[0], rule.Resources[0], rule.Verbs[0]})
	})
	g.Expect(len(single(whole))-len(*rules)).To(Equal(len(rights)), "the role does not have all of %v", rights)
	g.Expect(s.client.Update(t.Context(), role)).To(Succeed())
	t.Cleanup(func() {
		*rules = whole
		g.Expect(s.client.Update(context.WithoutCancel(t.Context()), role)).To(Succeed())
		g.Eventually(func() (bool, error) { return s.allowed(context.WithoutCancel(t.Context()), rights[0]) }, patience, poll).Should(BeTrue())
	})
	for _, taken := range rights {
		g.Eventually(func() (bool, error) { return s.allowed(t.Context(), taken) }, patience, poll).Should(BeFalse())
	}
}

// allowed asks the API server whether the controller has the right, as agents do.
func (s *installation) allowed(ctx context.Context, r right) (bool, error) {
	where := anyNamespace
	if r.role != clusterRole {
		where = namespace
	}
	resource, subresource := splitResource(r.resource)
	attributes := &authorizationv1.ResourceAttributes{Namespace: where, Verb: r.verb, Group: r.group, Resource: resource, Subresource: subresource}
	if r.role == tokenRole {
		attributes.Name = ownAccount
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: attributes}}
	err := s.client.Create(ctx, review)
	return review.Status.Allowed, err
}

func splitResource(path string) (resource, subresource string) {
	resource, subresource, _ = strings.Cut(path, "/")
	return resource, subresource
}

// refusal is a part of the API server's message about a missing right. For a token, the message also names the account.
func (r right) refusal() string {
	return fmt.Sprintf("cannot %s resource %q", r.verb, r.resource)
}

// TestEveryRightIsNeeded removes the rights of each row while a controller is running, or before it starts.
func TestEveryRightIsNeeded(t *testing.T) {
	suite.Long(t, "takes each right away from a running controller")
	s := newInstallation(t)
	running := s.startController(t)
	for i, row := range rows {
		if row.provoke == nil {
			continue
		}
		t.Run(strings.Join(row.verbs, ",")+" "+row.resource, func(t *testing.T) {
			p := s.enter(t, fmt.Sprintf("row-%d", i))
			p.controller = running
			if row.before != nil {
				row.before(p)
				p.currentUpdate()
			}
			s.without(t, row.rights()...)
			log, err := running.logged()
			p.Expect(err).NotTo(HaveOccurred())
			row.provoke(p)
			since := len(log)
			if p.controller != running {
				since = 0
			}
			for _, taken := range row.rights() {
				want := row.says
				if want == "" {
					want = taken.refusal()
				}
				p.Eventually(func() (string, error) { return p.said(since) }).Should(ContainSubstring(want))
			}
		})
	}
}

// enter returns a play in a new namespace. The namespace and its Stacks remain after the test.
func (s *installation) enter(t *testing.T, name string) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.SetDefaultEventuallyTimeout(patience)
	g.SetDefaultEventuallyPollingInterval(poll)
	g.Expect(s.client.Create(t.Context(), &corev1.Namespace{Name: name})).To(Succeed())
	return &fixture{WithT: g, installation: s, t: t, namespace: name}
}

// byControllers are the resources whose watches are started together with the controllers.
var byControllers = []string{"programs", "workspaces", "secrets", "configmaps"}

// byStacks are the groups of the kinds whose watches are started for a Stack that uses them.
var byStacks = []string{fluxSources, kustomizeGroup, helmGroup}

// phases select the rows of the watches that start with the manager, with the controllers, and with a Stack that has such a source or
// dependency.
var phases = []func(row) bool{
	func(r row) bool {
		return !slices.Contains(byStacks, r.group) && !slices.Contains(byControllers, r.resource)
	},
	func(r row) bool { return slices.Contains(byControllers, r.resource) },
	func(r row) bool { return slices.Contains(byStacks, r.group) },
}

// TestWithoutTheRightToListOrWatchNothingIsNoticed starts a controller without the right for all kinds of a phase. One controller is enough
// for all of them, because each kind has its own watch.
func TestWithoutTheRightToListOrWatchNothingIsNoticed(t *testing.T) {
	suite.Long(t, "takes each right away from a running controller")
	s := newInstallation(t)
	for _, verb := range read {
		for phase, belongs := range phases {
			t.Run(fmt.Sprintf("%s %d", verb, phase), func(t *testing.T) {
				p := s.enter(t, fmt.Sprintf("%s-%d", verb, phase))
				var taken []right
				for _, row := range rows {
					if row.provoke == nil && belongs(row) {
						taken = append(taken, right{row.role, row.group, row.resource, verb})
					}
				}
				s.without(t, taken...)
				p.controller = s.startController(t, "--watch-label-selector=rbac="+p.namespace)
				for _, r := range taken {
					if slices.Contains(byStacks, r.group) {
						p.follow(r.resource)
					}
				}
				for _, r := range taken {
					p.Eventually(func() (string, error) { return p.said(0) }).Should(ContainSubstring(r.refusal()))
				}
			})
		}
	}
}

// follow creates a Stack for the controller of the namespace, with a source or a dependency of the resource.
func (p *fixture) follow(resource string) {
	dependencies := map[string]pulumiv1.DependencyReference{
		"kustomizations": {APIVersion: kustomizeGroup + "/v1", Kind: "Kustomization", Name: "base"},
		"helmreleases":   {APIVersion: helmGroup + "/v2", Kind: "HelmRelease", Name: "base"},
	}
	if dependency, is := dependencies[resource]; is {
		p.create(&pulumiv1.Stack{
			Name: resource, Labels: map[string]string{"rbac": p.namespace},
			Spec: pulumiv1.StackSpec{Stack: "dev", DependsOn: []pulumiv1.DependencyReference{dependency},
				WorkspaceTemplate: &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{Image: "one"}}},
		})
		return
	}
	kinds := map[string]string{
		"gitrepositories": "GitRepository", "ocirepositories": "OCIRepository", "buckets": "Bucket", "externalartifacts": "ExternalArtifact",
	}
	p.create(&pulumiv1.Stack{
		Name: resource, Labels: map[string]string{"rbac": p.namespace},
		Spec: pulumiv1.StackSpec{Stack: "dev", FluxSource: &pulumiv1.FluxSource{
			SourceRef: pulumiv1.FluxSourceReference{Kind: kinds[resource], Name: "source"},
		}},
	})
}
