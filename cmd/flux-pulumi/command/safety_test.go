package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/agentruntime/pod/podspec"
)

// newSession returns a session that reads from in, and what it logs.
func newSession(in io.Reader) (*session, *strings.Builder) {
	log := &strings.Builder{}
	plain := func(string) string { return "" }
	return &session{Environment: Environment{In: in, Now: time.Now}, log: print.New(log, plain), out: print.New(io.Discard, plain)}, log
}

// newCluster returns a cluster with the objects, and the number of reads so far.
func newCluster(objects ...client.Object) (*cluster, *int) {
	scheme, reads := runtime.NewScheme(), new(int)
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, storagev1.AddToScheme, pulumiv1.AddToScheme, autov1alpha1.AddToScheme, sourcev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	caller := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
			*reads++
			return c.Get(ctx, key, into, options...)
		},
	}).Build()
	return &cluster{client: caller, namespace: "apps", chunkSize: defaultChunkSize}, reads
}

func TestAnInstallationOfSomebodyElseIsRecognised(t *testing.T) {
	deployment := func(namespace, name, image string, labels map[string]string) *appsv1.Deployment {
		d := &appsv1.Deployment{Namespace: namespace, Name: name, Labels: labels}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
		return d
	}
	ours := map[string]string{controllerLabel: controllerName, componentLabel: controllerName}
	applied := deployment("flux-system", controllerName, "x", ours)
	applied.Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "platform:apps/Deployment:flux-system/stack-controller"}
	byHelmRelease := deployment("flux-system", controllerName, "x", map[string]string{componentLabel: controllerName, "helm.toolkit.fluxcd.io/name": "sc"})
	for name, test := range map[string]struct {
		deployment *appsv1.Deployment
		says       string
	}{
		"its own":                            {deployment("flux-system", controllerName, "x", ours), ""},
		"something else":                     {deployment("flux-system", "nginx", "nginx", nil), ""},
		"the operator":                       {deployment("pulumi", "op", "pulumi/pulumi-kubernetes-operator:v2", nil), "the Pulumi Kubernetes Operator runs"},
		"the operator from a mirror":         {deployment("pulumi", "op", "mirror/pko:v2", map[string]string{controllerLabel: operatorName}), "the Pulumi Kubernetes Operator runs"},
		"a chart with another name":          {deployment("pulumi", "stacks", "x", map[string]string{controllerLabel: "stacks", componentLabel: controllerName}), "installed as Deployment pulumi/stacks"},
		"an Application":                     {applied, "installed by Application platform"},
		"a HelmRelease, by its labels alone": {byHelmRelease, "installed by HelmRelease"},
		"a HelmRelease": {deployment("flux-system", controllerName, "x", map[string]string{
			componentLabel: controllerName, "helm.toolkit.fluxcd.io/name": "sc", "app.kubernetes.io/managed-by": "Helm"}), "installed by HelmRelease"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkOther(test.deployment)
			if test.says == "" {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
				return
			}
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.says)))
		})
	}
}

func TestNothingIsUninstalledThatOnlyAControllerLetsGo(t *testing.T) {
	waits := &autov1alpha1.Update{Namespace: "apps", Name: "waits", Finalizers: []string{pulumiv1.Finalizer}}
	runs := &autov1alpha1.Update{Namespace: "apps", Name: "runs"}
	runs.Status.StartTime = new(metav1.Now())
	ended := &autov1alpha1.Update{Namespace: "apps", Name: "ended"}
	ended.Status.StartTime = new(metav1.Now())
	ended.Status.Conditions = []metav1.Condition{{Type: autov1alpha1.UpdateComplete, Status: metav1.ConditionTrue}}
	for name, test := range map[string]struct {
		object client.Object
		says   string
	}{
		"a Stack":                  {&pulumiv1.Stack{Namespace: "apps", Name: "network"}, "there are Stacks (1): apps/network"},
		"an Update that waits":     {waits, "Updates that have not ended (1): apps/waits"},
		"an Update that runs":      {runs, "Updates that have not ended (1): apps/runs"},
		"an Update that has ended": {ended, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newCluster(test.object)
			err := c.expectNothingLeft(t.Context())
			if test.says == "" {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
				return
			}
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.says)))
		})
	}
}

func TestARequestOfSomebodyElseEndsTheWait(t *testing.T) {
	ready := func(handled, annotation string) *pulumiv1.Stack {
		stack := &pulumiv1.Stack{Generation: 1}
		if annotation != "" {
			stack.Annotations = map[string]string{meta.ReconcileRequestAnnotation: annotation}
		}
		stack.Status.ObservedGeneration, stack.Status.LastHandledReconcileAt = 1, handled
		stack.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}
		return stack
	}
	for name, test := range map[string]struct {
		stack   *pulumiv1.Stack
		request string
		want    bool
	}{
		"not handled yet": {ready("earlier", "mine"), "mine", false},
		"handled":         {ready("mine", "mine"), "mine", true},
		"another one was made and is not handled":  {ready("mine", "later"), "mine", true},
		"another one took its place":               {ready("later", "later"), "mine", true},
		"another one took its place, and is not":   {ready("earlier", "later"), "mine", false},
		"nobody asked, as after the quickstart":    {ready("", ""), "", true},
		"somebody asked, and it was handled later": {ready("later", "later"), "", true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			done, err := reached(test.stack, &pulumiv1.Stack{}, test.request, 0)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(done).To(Equal(test.want))
		})
	}
}

func TestASlowAPIServerEndsNoWait(t *testing.T) {
	g := NewWithT(t)
	g.Expect(temporary(apierrors.NewTimeoutError("slow", 0))).To(BeTrue())
	g.Expect(temporary(apierrors.NewForbidden(pulumiv1.GroupVersion.WithResource("stacks").GroupResource(), "x", nil))).To(BeFalse())
}

func TestASourceThatNobodyFetchesIsNotAwaited(t *testing.T) {
	g := NewWithT(t)
	artifact := &sourcev1.ExternalArtifact{Namespace: "apps", Name: "built"}
	c, _ := newCluster(artifact)
	stack := &pulumiv1.Stack{Namespace: "apps", Name: "network"}
	stack.Spec.FluxSource = &pulumiv1.FluxSource{SourceRef: pulumiv1.FluxSourceReference{Kind: sourcev1.ExternalArtifactKind, Name: "built"}}
	s, log := newSession(nil)
	g.Expect(s.reconcileSource(t.Context(), c, stack, time.Second)).To(Succeed())
	g.Expect(log.String()).To(ContainSubstring("published by another controller"))
	g.Expect(c.read(t.Context(), client.ObjectKeyFromObject(artifact), artifact)).To(Succeed())
	g.Expect(artifact.Annotations).To(BeEmpty())
}

func TestAFileIsReplacedOnlyByAWholeOne(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "state.json")
	g.Expect(os.WriteFile(path, []byte("yesterday"), 0o644)).To(Succeed())
	broken := errors.New("the pod is gone")
	g.Expect(replaceFile(path, func(out io.Writer) error { _, _ = io.WriteString(out, "half"); return broken })).To(MatchError(broken))
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("yesterday"))
	g.Expect(replaceFile(path, func(out io.Writer) error { _, err := io.WriteString(out, "today"); return err })).To(Succeed())
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("today"))
	info, err := os.Stat(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)), "it may have secrets")
	g.Expect(os.ReadDir(filepath.Dir(path))).To(HaveLen(1))
	link := filepath.Join(t.TempDir(), "link")
	g.Expect(os.Symlink(path, link)).To(Succeed())
	g.Expect(replaceFile(link, func(out io.Writer) error { _, err := io.WriteString(out, "linked"); return err })).To(Succeed())
	g.Expect(os.ReadFile(path)).To(BeEquivalentTo("linked"))
	g.Expect(os.Readlink(link)).To(Equal(path))
	g.Expect(replaceFile(os.DevNull, func(out io.Writer) error { _, err := io.WriteString(out, "x"); return err })).To(Succeed())
}

func TestAQuestionCanBeInterrupted(t *testing.T) {
	g := NewWithT(t)
	silent, answer := io.Pipe()
	defer answer.Close()
	s, log := newSession(silent)
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.confirm(ctx, "release the locks of \x1b[2K\rdev?", "nothing was released") }()
	interrupt()
	g.Eventually(done, 10*time.Second).Should(Receive(MatchError(context.Canceled)))
	g.Expect(log.String()).To(And(ContainSubstring("release the locks of dev?"), Not(ContainSubstring("\x1b"))))
}

func TestAQuestionIsAnsweredWithYesOrNo(t *testing.T) {
	for answer, yes := range map[string]bool{"y\n": true, "Yes\n": true, " yes ": true, "n\n": false, "\n": false, "": false, "yesterday\n": false} {
		s, _ := newSession(strings.NewReader(answer))
		if err := s.confirm(t.Context(), "release the locks?", "nothing was released"); yes {
			NewWithT(t).Expect(err).NotTo(HaveOccurred(), answer)
		} else {
			NewWithT(t).Expect(err).To(MatchError("nothing was released"), answer)
		}
	}
}

func TestMessagesOfOthersDoNothingToTheTerminal(t *testing.T) {
	s, log := newSession(nil)
	s.log.Failure("%s", "it failed: \x1b[2K\rall is well\x07\xff\nsecond line")
	NewWithT(t).Expect(log.String()).To(Equal("✗ it failed: all is well\uFFFD\nsecond line\n"))
}

// The name is too long for a label, and its dot is not for host names: the pod has another one.
func TestCommandsRunInPodsAlsoWithoutWebsockets(t *testing.T) {
	g := NewWithT(t)
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path
		http.Error(w, "you may not", http.StatusForbidden)
	}))
	defer server.Close()
	name := metav1.ObjectMeta{Namespace: "apps", Name: "network.eu-central-1.of-the-team-that-has-the-longest-name"}
	workspace, stack := &autov1alpha1.Workspace{ObjectMeta: name}, &pulumiv1.Stack{ObjectMeta: name}
	c, _ := newCluster(workspace)
	c.config = &rest.Config{Host: server.URL}
	pod := "/api/v1/namespaces/apps/pods/" + podspec.PodName(workspace)
	g.Expect(podspec.PodName(workspace)).NotTo(HavePrefix(workspace.Name))

	g.Expect(c.pulumi(t.Context(), stack, nil, io.Discard, "stack", "export")).NotTo(Succeed())
	g.Expect(asked).To(Receive(Equal("GET " + pod + "/exec")))
	g.Expect(asked).To(Receive(Equal("POST " + pod + "/exec")))

	_, err := c.openLog(t.Context(), workspace, time.Now(), false)
	g.Expect(err).To(HaveOccurred())
	g.Expect(asked).To(Receive(Equal("GET " + pod + "/log")))
}

// The agent reads the variables of init containers, as for its operations, see its own tests. One of an earlier version cannot.
func TestCommandsInPodsAreStartedByTheAgent(t *testing.T) {
	const none, current, earlier = "", `echo "${0##*/}" "$@"`, `[ "$1" != exec ]`
	for _, test := range []struct{ copied, mounted, want string }{
		{current, none, "copied exec --env-file=ENV pulumi stack export --stack=a b\n"},
		{none, current, "mounted exec --env-file=ENV pulumi stack export --stack=a b\n"},
		{earlier, current, "mounted exec --env-file=ENV pulumi stack export --stack=a b\n"},
		{none, none, ""},
		{earlier, none, "of the file: stack export --stack=a b\n"},
	} {
		g, dir := NewWithT(t), t.TempDir()
		program := func(name, script string) string {
			path := filepath.Join(dir, name)
			if script != none {
				g.Expect(os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700)).To(Succeed())
			}
			return path
		}
		program("pulumi", `echo "$FROM: $*"`)
		variables := filepath.Join(dir, "env")
		g.Expect(os.WriteFile(variables, []byte("FROM='of the file'\n"), 0o600)).To(Succeed())
		script := strings.NewReplacer("/opt/stack-controller/ko-app/agent", program("mounted", test.mounted), "/share/agent", program("copied", test.copied),
			"/share/.env", variables).Replace(inPod)
		command := exec.Command("sh", "-c", script, "sh", "stack", "export", "--stack=a b")
		command.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		output, err := command.Output()
		if test.want == "" {
			g.Expect(err).To(HaveOccurred())
			continue
		}
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(output)).To(Equal(strings.ReplaceAll(test.want, "ENV", variables)))
	}
}

func TestATreeShowsEachDependencyOnce(t *testing.T) {
	g := NewWithT(t)
	const many = 25
	var objects []client.Object
	for i := range many {
		stack := &pulumiv1.Stack{Namespace: "apps", Name: fmt.Sprintf("s%d", i)}
		for earlier := range i {
			stack.Spec.DependsOn = append(stack.Spec.DependsOn, pulumiv1.DependencyReference{Name: fmt.Sprintf("s%d", earlier)})
		}
		objects = append(objects, stack)
	}
	c, reads := newCluster(objects...)
	s, _ := newSession(nil)
	tree, root := &treeOf{session: s, cluster: c}, &print.Node{}
	tree.dependencies(t.Context(), objects[many-1].(*pulumiv1.Stack), root, nil)
	g.Expect(*reads).To(BeNumerically("<=", many*many/2))
}

func TestAPreviewSaysThatTheSpecificationIsNewer(t *testing.T) {
	g := NewWithT(t)
	stack := &pulumiv1.Stack{Generation: 4}
	g.Expect(isEdited(stack)).To(BeFalse(), "nothing ran")
	stack.Status.LastUpdate = &pulumiv1.StackUpdateStatus{}
	stack.Status.LastUpdate.Generation = 3
	g.Expect(isEdited(stack)).To(BeTrue())
	stack.Spec.Suspend = true
	g.Expect(isEdited(stack)).To(BeFalse(), "it was only suspended")
	stack.Generation = 5
	g.Expect(isEdited(stack)).To(BeTrue())
}

func TestProgramsGetFieldsThatThisOneDoesNotKnow(t *testing.T) {
	for _, format := range []string{"json", "yaml"} {
		g := NewWithT(t)
		s, _ := newSession(nil)
		var out strings.Builder
		s.out = print.New(&out, func(string) string { return "" })
		c, _ := newCluster()
		c.client = interceptor.NewClient(c.client, interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, into client.ObjectList, _ ...client.ListOption) error {
				return json.Unmarshal([]byte(`{"apiVersion": "pulumi.com/v1", "kind": "StackList", "items": [{"apiVersion": "pulumi.com/v1", "kind": "Stack",
					"metadata": {"name": "app", "namespace": "apps", "managedFields": [{"manager": "somebody"}]}, "status": {"ofALaterVersion": true}}]}`), into)
			},
		})
		getter := &getter{session: s, cluster: c, kind: stacks(), options: getOptions{output: format}, named: true}
		g.Expect(getter.run(t.Context(), []string{"app"})).To(Succeed())
		g.Expect(out.String()).To(And(ContainSubstring("ofALaterVersion"), Not(ContainSubstring("managedFields"))))
	}
}
