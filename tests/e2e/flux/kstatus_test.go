package flux_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/otlpreceiver"
	"github.com/stack-controller/stack-controller/tests/framework/statuscheck"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

var record = flag.Bool("record", false, "record the objects in testdata/kstatus anew; it takes two minutes")

// situation is a state of a Stack, and how clients that wait for the Stack have to see it.
type situation struct {
	name string
	// want is the status that Flux's library has to compute.
	want status.Status
	// ready is the status of the condition Ready, or empty without the condition.
	ready metav1.ConditionStatus
	// observed means that the status is for the current generation.
	observed bool
}

var situations = []situation{
	{"created", status.InProgressStatus, "", false},
	{"working", status.InProgressStatus, metav1.ConditionUnknown, false},
	{"waiting-for-source", status.InProgressStatus, metav1.ConditionFalse, false},
	{"waiting-for-dependency", status.InProgressStatus, metav1.ConditionFalse, false},
	{"failed-and-retrying", status.InProgressStatus, metav1.ConditionFalse, false},
	{"failed-often", status.FailedStatus, metav1.ConditionFalse, true},
	{"invalid-spec", status.FailedStatus, metav1.ConditionFalse, true},
	{"access-denied", status.FailedStatus, metav1.ConditionFalse, true},
	{"invalid-expression", status.FailedStatus, metav1.ConditionFalse, true},
	{"succeeded", status.CurrentStatus, metav1.ConditionTrue, true},
	{"edited", status.InProgressStatus, metav1.ConditionTrue, false},
	{"running-at-its-interval", status.CurrentStatus, metav1.ConditionTrue, true},
	{"failed-later", status.InProgressStatus, metav1.ConditionFalse, true},
	{"suspended", status.CurrentStatus, metav1.ConditionTrue, true},
	{"deleting", status.TerminatingStatus, metav1.ConditionUnknown, false},
}

// TestFluxComputesTheRightStatusInEverySituation checks the objects that TestRecordSituations recorded.
func TestFluxComputesTheRightStatusInEverySituation(t *testing.T) {
	t.Parallel()
	for _, s := range situations {
		t.Run(s.name, func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(recording(s.name))
			g.Expect(err).NotTo(HaveOccurred())
			encoded, err := yaml.YAMLToJSON(content)
			g.Expect(err).NotTo(HaveOccurred())
			object := &unstructured.Unstructured{}
			g.Expect(object.UnmarshalJSON(encoded)).To(Succeed())
			stack := &pulumiv1.Stack{}
			g.Expect(yaml.UnmarshalStrict(content, stack)).To(Succeed())

			computed, err := status.Compute(object)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(computed.Status).To(Equal(s.want), computed.Message)
			state, _, _ := ready(object)
			g.Expect(state).To(Equal(string(s.ready)))
			g.Expect(stack.Status.ObservedGeneration == stack.Generation).To(Equal(s.observed))
			if s.ready != "" && s.name != "edited" {
				g.Expect(statuscheck.Lint(t.Context(), stack)).To(Succeed())
			}
		})
	}
}

func recording(name string) string { return filepath.Join("testdata", "kstatus", name+".yaml") }

// recorder is a play that records objects.
type recorder struct{ *fixture }

// keep writes the object into testdata, without parts that depend on this machine.
func (r recorder) keep(name string, stack *pulumiv1.Stack) {
	r.Helper()
	stack = stack.DeepCopy()
	stack.ManagedFields = nil
	stack.SetGroupVersionKind(pulumiv1.GroupVersion.WithKind(pulumiv1.StackKind))
	content, err := yaml.Marshal(stack)
	r.Succeed(err)
	r.Succeed(os.MkdirAll(filepath.Dir(recording(name)), 0o755))
	r.Succeed(os.WriteFile(recording(name), []byte(strings.ReplaceAll(string(content), system.BackendURL, "file:///state")), 0o644))
}

// watched makes the change, and keeps the first version of the Stack after that for which the function reports true.
func (r recorder) watched(name, stack string, is func(*pulumiv1.Stack) bool, change func()) {
	r.Helper()
	watcher, err := system.Client.Watch(r.Context(), &pulumiv1.StackList{}, client.InNamespace(r.Name))
	r.Succeed(err)
	defer watcher.Stop()
	change()
	timeout := time.After(r.Patience)
	for {
		select {
		case event := <-watcher.ResultChan():
			if seen, ok := event.Object.(*pulumiv1.Stack); ok && seen.Name == stack && is(seen) {
				r.keep(name, seen)
				return
			}
		case <-timeout:
			r.Fatalf("%s was never seen", name)
		}
	}
}

// stacked returns a Stack with the GitRepository of the fixture, and with the changes.
func (r recorder) stacked(name string, changes ...func(*pulumiv1.Stack)) *pulumiv1.Stack {
	stack := system.NewStack(r.Name, r.Name, sourcev1.GitRepositoryKind)
	stack.Name, stack.Spec.Stack = name, name
	stack.Spec.RetryInterval = &metav1.Duration{Duration: time.Second}
	for _, change := range changes {
		change(stack)
	}
	return stack
}

func progressing(stack *pulumiv1.Stack) bool {
	return conditions.IsReconciling(stack) && conditions.IsUnknown(stack, meta.ReadyCondition)
}

// TestRecordSituations brings a Stack into each situation and records it, with the flag -record.
func TestRecordSituations(t *testing.T) {
	if !*record {
		t.Skip("records nothing without -record")
	}
	r := recorder{begin(t, "recorded")}
	r.Patience = 2 * time.Minute
	repository := r.repository(r.Name, systemtest.Returning(r.Name, 1))
	// A dependent Stack has each of these states, even if only for a short time.
	r.Create(r.stacked("waiting-for-dependency", func(s *pulumiv1.Stack) { s.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "main"}} }))
	r.keep("waiting-for-dependency", r.AwaitStack("waiting-for-dependency", statuscheck.NotReady(pulumiv1.DependencyNotReadyReason)))
	main := r.stacked("main", func(s *pulumiv1.Stack) { s.Spec.DestroyOnFinalize, s.Spec.ContinueResyncOnCommitMatch = true, true })
	r.watched("working", "main", progressing, func() {
		r.Create(main)
		r.keep("created", main)
	})
	r.keep("succeeded", r.AwaitStack("main", statuscheck.Ready("")))
	r.watched("running-at-its-interval", "main", func(s *pulumiv1.Stack) bool {
		return s.Status.CurrentUpdate != nil && conditions.IsReady(s)
	}, func() {})

	for name, change := range map[string]func(*pulumiv1.Stack){
		"waiting-for-source": func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Name = "missing" },
		"invalid-spec": func(s *pulumiv1.Stack) {
			s.Spec.FluxSource.SourceRef.APIVersion, s.Spec.FluxSource.SourceRef.Kind = "v1", "Secret"
		},
		"access-denied": func(s *pulumiv1.Stack) { s.Spec.FluxSource.SourceRef.Namespace = "elsewhere" },
		"invalid-expression": func(s *pulumiv1.Stack) {
			s.Spec.DependsOn = []pulumiv1.DependencyReference{{Name: "main", ReadyExpr: "dep.status.nothing"}}
		},
	} {
		r.Create(r.stacked(name, change))
		r.keep(name, r.AwaitStack(name, func(s *pulumiv1.Stack) bool { return conditions.IsFalse(s, meta.ReadyCondition) }))
	}
	failing := r.stacked("failing", func(s *pulumiv1.Stack) { s.Spec.FluxSource.Dir = "missing" })
	r.watched("failed-and-retrying", "failing", statuscheck.NotReady(pulumiv1.RetryingAfterFailureReason), func() { r.Create(failing) })
	r.keep("failed-often", r.AwaitStack("failing", statuscheck.NotReady(pulumiv1.UpdateFailedReason)))

	r.AwaitStack("main", statuscheck.Ready(""))
	edit := func(name string, change func(*pulumiv1.Stack)) func() { return func() { r.ChangeStack(name, change) } }
	r.watched("edited", "main", func(s *pulumiv1.Stack) bool {
		return conditions.IsReady(s) && s.Status.ObservedGeneration != s.Generation
	}, edit("main", func(s *pulumiv1.Stack) { s.Spec.ContinueResyncOnCommitMatch = false }))
	r.AwaitStack("main", statuscheck.Ready(""))
	r.watched("failed-later", "main", statuscheck.NotReady(pulumiv1.RetryingAfterFailureReason), func() {
		r.commit(repository, r.Name, systemtest.Program(r.Name, "outputs:", "  x: ${missing}"))
	})
	r.commit(repository, r.Name, systemtest.Returning(r.Name, 2))
	r.AwaitStack("main", statuscheck.Ready(""))
	r.watched("suspended", "main", func(s *pulumiv1.Stack) bool { return s.Spec.Suspend && s.Status.ObservedGeneration == s.Generation }, edit("main", func(s *pulumiv1.Stack) { s.Spec.Suspend = true }))
	r.ChangeStack("main", func(s *pulumiv1.Stack) { s.Spec.Suspend = false })
	r.AwaitStack("main", statuscheck.Ready(""))
	r.watched("deleting", "main", func(s *pulumiv1.Stack) bool { return !s.DeletionTimestamp.IsZero() && progressing(s) }, func() {
		r.Succeed(system.Client.Delete(r.Context(), main))
	})
}

// tracingAlert makes notification-controller send its traces to the same receiver.
const tracingAlert = `
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Provider
metadata: {name: traces}
spec: {type: otel, address: RECEIVER/v1/traces}
---
apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Alert
metadata: {name: traces}
spec:
  providerRef: {name: traces}
  eventSeverity: info
  eventSources: [{kind: GitRepository, name: traced}, {kind: Stack, name: traced}]
`

func TestTraceOfACommitGoesFromItsSourceToTheEndOfTheUpdate(t *testing.T) {
	p := begin(t, "traced")
	p.apply(strings.ReplaceAll(tracingAlert, "RECEIVER", traces.Endpoint("http/protobuf")))
	repository := p.repository(p.Name, systemtest.Returning(p.Name, 0))
	p.Create(system.NewStack(p.Name, p.Name, sourcev1.GitRepositoryKind))
	p.Await(statuscheck.Ready(""))
	sha := p.commit(repository, p.Name, systemtest.Returning(p.Name, 1))
	update := p.LastUpdate(p.Await(deployed(sha)))

	var whole otlpreceiver.Span
	p.Eventually(func(g Gomega) {
		spans := spansWith("token", string(update.UID), "pulumi.operation")
		g.Expect(spans).To(HaveLen(1))
		whole = spans[0]
	}).Should(Succeed())
	p.Expect(whole.Name).To(Equal("Stack: traced/traced"))
	p.Expect(whole.Attributes).To(And(HaveKeyWithValue("revision", "main@sha1:"+sha), HaveKeyWithValue("pulumi.result", "succeeded")))
	repositoryNow := &sourcev1.GitRepository{}
	p.Get(p.Name, repositoryNow)
	p.Expect(whole.Start).To(BeTemporally("~", repositoryNow.Status.Artifact.LastUpdateTime.Time, 1e9))
	p.Expect(whole.End).NotTo(BeTemporally("<", update.Status.EndTime.Time))
	var phases []string
	for _, span := range traces.Spans() {
		if span.Parent == whole.ID {
			p.Expect(span.End).NotTo(BeTemporally("<", span.Start), span.Name)
			phases = append(phases, span.Name)
		}
	}
	p.Expect(phases).To(ContainElements("source", "prepare", "run"))

	// The traces of notification-controller have the same revision.
	p.Eventually(func(g Gomega) {
		p.Request() // an Alert has no status that shows when it is in use
		g.Expect(spansWith("revision", "main@sha1:"+sha, "object.uid")).NotTo(BeEmpty())
	}, p.Patience, "1s").Should(Succeed())

	// A request is not a commit, and so has its own trace.
	p.Eventually(func(g Gomega) {
		requested := spansWith("revision", "main@sha1:"+sha, "pulumi.operation")
		g.Expect(len(requested)).To(BeNumerically(">", 1))
		g.Expect(requested[1].Trace).NotTo(Equal(whole.Trace))
	}).Should(Succeed())
}

// spansWith returns the spans that have the attribute with the value, and also the other attribute.
func spansWith(key, value, other string) (found []otlpreceiver.Span) {
	for _, span := range traces.Spans() {
		if _, has := span.Attributes[other]; has && span.Attributes[key] == value {
			found = append(found, span)
		}
	}
	return found
}
