// Package argocd_test checks what config/argocd teaches Argo CD against statuses that other tests record.
package argocd_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/meta"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/internal/report/reasons"
	"github.com/stack-controller/stack-controller/tests/framework/argocd"
	"github.com/stack-controller/stack-controller/tests/tools"
)

func settings(t *testing.T) argocd.Settings {
	t.Helper()
	found, err := argocd.Load()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return found
}

func object(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	found := &unstructured.Unstructured{}
	NewWithT(t).Expect(yaml.Unmarshal([]byte(manifest), found)).To(Succeed(), manifest)
	return found
}

// expected returns the health that Flux's library finds, in the words of Argo CD.
func expected(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	result, err := status.Compute(object)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return map[status.Status]string{status.CurrentStatus: "Healthy", status.FailedStatus: "Degraded", status.InProgressStatus: "Progressing",
		status.TerminatingStatus: "Progressing"}[result.Status]
}

// conditionInStory matches a condition as the stories of a Stack show it.
var conditionInStory = regexp.MustCompile(`(?m)^(Ready|Reconciling|Stalled|Drifted) +(True|False|Unknown) +(\w+): (.*)$`)

func TestHealthOfAStackIsThatOfFlux(t *testing.T) {
	g := NewWithT(t)
	stories, err := filepath.Glob(filepath.Join(tools.RepositoryRoot(), "internal", "controller", "stack", "testdata", "stories", "*.txt"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stories).NotTo(BeEmpty())
	healths := map[string]int{}
	for _, story := range stories {
		content, err := os.ReadFile(story)
		g.Expect(err).NotTo(HaveOccurred())
		for step := range strings.SplitSeq(string(content), "\n# ") {
			title, _, _ := strings.Cut(step, "\n")
			var conditions []any
			waits := false
			for _, found := range conditionInStory.FindAllStringSubmatch(step, -1) {
				conditions = append(conditions, map[string]any{"type": found[1], "status": found[2], "reason": found[3], "message": found[4]})
				waits = waits || found[1] == "Stalled" && (found[3] == "ApprovalRequired" || found[3] == "WindowClosed")
			}
			if conditions == nil {
				continue
			}
			stack := object(t, `{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app, generation: 3}, spec: {}}`)
			stack.Object["status"] = map[string]any{"observedGeneration": int64(3), "conditions": conditions}
			health, err := settings(t).Health(stack)
			g.Expect(err).NotTo(HaveOccurred(), title)
			want := expected(t, stack)
			if waits {
				want = "Suspended"
			}
			g.Expect(health.Status).To(Equal(want), title)
			g.Expect(health.Message).NotTo(BeEmpty(), title)
			healths[health.Status]++

			g.Expect(unstructured.SetNestedField(stack.Object, int64(2), "status", "observedGeneration")).To(Succeed())
			g.Expect(settings(t).Health(stack)).To(HaveField("Status", "Progressing"), "the status is that of an older spec: %s", title)
		}
	}
	g.Expect(healths).To(And(HaveKey("Healthy"), HaveKey("Progressing"), HaveKey("Suspended"), HaveKey("Degraded")))
}

// recordedObjects returns the objects of stack-controller that the tests of the command line record.
func recordedObjects(t *testing.T) (objects []*unstructured.Unstructured) {
	t.Helper()
	g := NewWithT(t)
	parsed, err := template.New("recorded.yaml").Funcs(template.FuncMap{"ago": func(string) string { return time.Now().UTC().Format(time.RFC3339) }}).
		ParseFiles(filepath.Join(tools.RepositoryRoot(), "tests", "e2e", "cli", "testdata", "recorded.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var all bytes.Buffer
	g.Expect(parsed.Execute(&all, nil)).To(Succeed())
	for document := range strings.SplitSeq(all.String(), "\n---\n") {
		recorded := object(t, document)
		if group, _, _ := strings.Cut(recorded.GetAPIVersion(), "/"); strings.HasSuffix(group, "pulumi.com") {
			recorded.SetGeneration(1)
			objects = append(objects, recorded)
		}
	}
	return objects
}

func TestHealthOfRecordedObjectsIsThatOfFlux(t *testing.T) {
	g := NewWithT(t)
	kinds := map[string]int{}
	for _, recorded := range recordedObjects(t) {
		want := expected(t, recorded)
		if suspended, _, _ := unstructured.NestedBool(recorded.Object, "spec", "suspend"); suspended {
			want = "Suspended"
		}
		if recorded.GetKind() == "Update" {
			want = map[string]string{"True": "Healthy", "False": "Progressing"}[condition(recorded, "Complete")]
			if condition(recorded, "Failed") == "True" {
				want = "Degraded"
			}
		}
		health, err := settings(t).Health(recorded)
		g.Expect(err).NotTo(HaveOccurred(), recorded.GetName())
		g.Expect(health.Status).To(Equal(want), "%s %s: %s", recorded.GetKind(), recorded.GetName(), health.Message)
		kinds[recorded.GetKind()]++
	}
	g.Expect(kinds).To(And(HaveKey("Stack"), HaveKey("Workspace"), HaveKey("Update")))
}

func TestActionsOfRecordedStacksFollowTheirStatus(t *testing.T) {
	g := NewWithT(t)
	enabled := map[string]int{}
	for _, recorded := range recordedObjects(t) {
		if recorded.GetKind() != "Stack" {
			continue
		}
		menu, err := settings(t).Actions(recorded)
		g.Expect(err).NotTo(HaveOccurred(), recorded.GetName())
		suspended, _, _ := unstructured.NestedBool(recorded.Object, "spec", "suspend")
		plan, _, _ := unstructured.NestedString(recorded.Object, "status", "plan", "state")
		for action, want := range map[string]bool{"reconcile": !suspended, "resume": suspended, "approve": plan == "Pending", "reject": plan == "Pending"} {
			g.Expect(menu).To(HaveKeyWithValue(action, HaveField("Disabled", !want)), "%s of %s", action, recorded.GetName())
			if want {
				enabled[action]++
			}
		}
	}
	g.Expect(enabled).To(And(HaveKey("reconcile"), HaveKey("resume"), HaveKey("approve")))
}

var (
	// fieldOfResource matches a field of the object in the condition or the URL of a link.
	fieldOfResource = regexp.MustCompile(`\bresource\.([\w.]+)`)
	// kindOfLink matches the part of a condition that says which kind has the link.
	kindOfLink = regexp.MustCompile(`resource\.kind == "(\w+)"`)
)

// Argo CD evaluates the condition with a library that is in no other way needed here. A field that no object has would hide the link for ever.
func TestLinksNameFieldsThatRecordedObjectsHave(t *testing.T) {
	g := NewWithT(t)
	var links []struct{ Title, URL, Description, If string }
	g.Expect(yaml.UnmarshalStrict([]byte(settings(t)["resource.links"]), &links)).To(Succeed())
	g.Expect(links).To(HaveLen(2))
	for _, link := range links {
		kind := kindOfLink.FindStringSubmatch(link.If)
		g.Expect(kind).NotTo(BeNil(), link.If)
		address, err := template.New("url").Option("missingkey=error").Parse(link.URL)
		g.Expect(err).NotTo(HaveOccurred())
		shown := 0
		for _, recorded := range recordedObjects(t) {
			if recorded.GetKind() != kind[1] || !hasAll(recorded, fieldOfResource.FindAllStringSubmatch(link.If+" "+link.URL, -1)) {
				continue
			}
			var rendered strings.Builder
			g.Expect(address.Execute(&rendered, map[string]any{"resource": recorded.Object})).To(Succeed())
			g.Expect(rendered.String()).To(HavePrefix("https://app.pulumi.com/"))
			shown++
		}
		g.Expect(shown).NotTo(BeZero(), "no recorded %s has all fields of %q and %q", kind[1], link.If, link.URL)
	}
}

func hasAll(object *unstructured.Unstructured, fields [][]string) bool {
	for _, field := range fields {
		if value, found, err := unstructured.NestedFieldNoCopy(object.Object, strings.Split(field[1], ".")...); !found || err != nil || value == nil {
			return false
		}
	}
	return true
}

func condition(object *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, found := range conditions {
		if found := found.(map[string]any); found["type"] == kind {
			return fmt.Sprint(found["status"])
		}
	}
	return "False"
}

func TestHealthOfObjectsWithoutAStatusIsProgressing(t *testing.T) {
	g := NewWithT(t)
	for _, manifest := range []string{
		`{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app, generation: 1}}`,
		`{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app, generation: 1}, status: {observedGeneration: 1}}`,
		`{apiVersion: pulumi.com/v1, kind: Program, metadata: {name: app, generation: 1}}`,
		`{apiVersion: auto.pulumi.com/v1alpha1, kind: Workspace, metadata: {name: app, generation: 1}, status: {conditions: []}}`,
		`{apiVersion: auto.pulumi.com/v1alpha1, kind: Update, metadata: {name: app, generation: 1}}`,
	} {
		g.Expect(settings(t).Health(object(t, manifest))).To(HaveField("Status", "Progressing"), manifest)
	}
	program := object(t, `{apiVersion: pulumi.com/v1, kind: Program, metadata: {name: app, generation: 1}, status: {observedGeneration: 1, conditions: [
		{type: Ready, status: "False", reason: SpecInvalid, message: no}, {type: Stalled, status: "True", reason: SpecInvalid, message: no resources}]}}`)
	g.Expect(settings(t).Health(program)).To(Equal(argocd.Health{Status: "Degraded", Message: "SpecInvalid: no resources"}))
	suspended := object(t, `{apiVersion: pulumi.com/v1, kind: Stack, spec: {suspend: true}, metadata: {name: app, generation: 2, annotations: {
		pulumi.com/reconciliation-request: b}}}`)
	g.Expect(settings(t).Health(suspended)).To(HaveField("Status", "Suspended"))
}

// An approval and a window are waited for on purpose, so nothing is wrong with the Stack.
func TestStackThatWaitsForAnApprovalOrAWindowIsSuspended(t *testing.T) {
	g := NewWithT(t)
	for reason, health := range map[string]string{"ApprovalRequired": "Suspended", "WindowClosed": "Suspended", "UpdateFailed": "Degraded"} {
		stack := object(t, fmt.Sprintf(`{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app, generation: 1}, status: {observedGeneration: 1, conditions: [
			{type: Ready, status: "False", reason: %[1]s, message: why}, {type: Stalled, status: "True", reason: %[1]s, message: why}]}}`, reason))
		g.Expect(settings(t).Health(stack)).To(Equal(argocd.Health{Status: health, Message: reason + ": why"}))
	}
}

// requestAnnotations are the annotations that ask for an update, with the fields in which the status has the one that was handled last.
var requestAnnotations = map[string]string{
	pulumiv1.ReconcileRequestAnnotation: "observedReconcileRequest",
	meta.ReconcileRequestAnnotation:     "lastHandledReconcileAt",
	pulumiv1.LastUpdateAnnotation:       "observedLastUpdateRequest",
}

func TestStackIsProgressingUntilItsRequestIsHandled(t *testing.T) {
	g, checks := NewWithT(t), settings(t)
	// health returns the health of a Stack with one condition, which is Ready unless it is Stalled.
	health := func(annotation, request, handled, kind, status, reason string) argocd.Health {
		stack := object(t, fmt.Sprintf(`{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app, generation: 1, annotations: {%q: %q}}, status: {
			observedGeneration: 1, lastUpdate: {name: app-3}, %q: %q, conditions: [
			{type: Ready, status: "False", reason: %[7]s, message: why}, {type: %[5]s, status: %[6]q, reason: %[7]s, message: why}]}}`,
			annotation, request, requestAnnotations[annotation], handled, kind, status, reason))
		found, err := checks.Health(stack)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	for annotation := range requestAnnotations {
		for request, handled := range map[string]string{"b": "b", "": "a"} {
			g.Expect(health(annotation, request, handled, "Ready", "True", "ProcessingCompleted")).To(Equal(argocd.Health{Status: "Healthy", Message: "why"}))
		}
		for _, status := range []string{"True", "False"} {
			g.Expect(health(annotation, "b", "a", "Ready", status, "DependencyNotReady")).To(
				Equal(argocd.Health{Status: "Progressing", Message: "An update is requested. why"}))
		}
	}
	for _, row := range reasons.Of("Stack").Rows {
		want := "Degraded"
		switch {
		case row.StartsAnother:
			want = "Progressing"
		case row.Reason == pulumiv1.WindowClosedReason:
			want = "Suspended"
		}
		g.Expect(health(meta.ReconcileRequestAnnotation, "b", "a", "Stalled", "True", row.Reason)).To(HaveField("Status", want), row.Reason)
	}
	g.Expect(health(pulumiv1.ReconcileRequestAnnotation, "after-app-3", "after-app-2", "Ready", "True", "ProcessingCompleted")).To(
		HaveField("Status", "Healthy"), "only Stacks that depend on it ask for an update")
}

func TestStackRolloutIsProgressingUntilItsRequestIsHandled(t *testing.T) {
	g := NewWithT(t)
	for handled, want := range map[string]string{"a": "Progressing", "b": "Healthy"} {
		rollout := object(t, fmt.Sprintf(`{apiVersion: auto.pulumi.com/v1alpha1, kind: StackRollout, metadata: {name: app, generation: 1, annotations: {%q: b}},
			status: {observedGeneration: 1, lastHandledReconcileAt: %s, conditions: [{type: Ready, status: "True", reason: Complete, message: why}]}}`,
			meta.ReconcileRequestAnnotation, handled))
		g.Expect(settings(t).Health(rollout)).To(HaveField("Status", want))
	}
}

func TestTheGuideMakesASyncARequestThatTheHealthCheckKnows(t *testing.T) {
	g := NewWithT(t)
	guide, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "docs", "guides", "argo-cd.md"))
	g.Expect(err).NotTo(HaveOccurred())
	_, manifest, found := strings.Cut(string(guide), "```yml\napiVersion: argoproj.io/v1alpha1\n")
	g.Expect(found).To(BeTrue())
	manifest, _, _ = strings.Cut(manifest, "```")
	annotations, _, err := unstructured.NestedStringMap(object(t, manifest).Object, "spec", "source", "kustomize", "commonAnnotations")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(annotations).To(HaveLen(1))
	for annotation := range annotations {
		g.Expect(requestAnnotations).To(HaveKey(annotation))
	}
}

func TestActionsAreThoseThatMakeSense(t *testing.T) {
	for fields, enabled := range map[string][]string{
		`spec: {}`: {"reconcile", "refresh", "suspend"},
		`spec: {drift: {interval: 1h}}, status: {plan: {state: Applied}}`: {"reconcile", "refresh", "check-drift", "suspend"},
		`spec: {suspend: true, drift: {interval: 1h}}`:                    {"resume"},
		`spec: {approval: {}}, status: {plan: {state: Pending}}`:          {"reconcile", "refresh", "suspend", "approve", "reject"},
	} {
		g := NewWithT(t)
		stack := object(t, "{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app}, "+fields+"}")
		menu, err := settings(t).Actions(stack)
		g.Expect(err).NotTo(HaveOccurred())
		var found []string
		for name, action := range menu {
			if !action.Disabled {
				found = append(found, name)
			}
			g.Expect(action.DisplayName).NotTo(BeEmpty())
			_, err := settings(t).Do(name, object(t, `{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app}, spec: {}, status: {plan: {name: app-1, digest: "sha256:1"}}}`))
			g.Expect(err).NotTo(HaveOccurred(), "the menu has %s", name)
		}
		g.Expect(found).To(ConsistOf(enabled), fields)
	}
}

func TestActionsChangeWhatTheySay(t *testing.T) {
	const stack = `{apiVersion: pulumi.com/v1, kind: Stack, metadata: {name: app, annotations: {mine: kept}}, spec: {stack: dev}}`
	const time = `\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z`
	for action, check := range map[string]func(g *WithT, changed *unstructured.Unstructured){
		"reconcile": func(g *WithT, changed *unstructured.Unstructured) {
			g.Expect(changed.GetAnnotations()).To(And(HaveLen(2), HaveKeyWithValue("reconcile.fluxcd.io/requestedAt", MatchRegexp(time))))
		},
		"refresh": func(g *WithT, changed *unstructured.Unstructured) {
			annotations := changed.GetAnnotations()
			g.Expect(annotations).To(And(HaveLen(3), HaveKeyWithValue("reconcile.fluxcd.io/requestedAt", annotations["reconcile.fluxcd.io/forceAt"])))
		},
		"check-drift": func(g *WithT, changed *unstructured.Unstructured) {
			g.Expect(changed.GetAnnotations()).To(And(HaveLen(2), HaveKeyWithValue("pulumi.com/drift-check", MatchRegexp(time))))
		},
		"suspend": func(g *WithT, changed *unstructured.Unstructured) {
			g.Expect(changed.Object["spec"]).To(Equal(map[string]any{"stack": "dev", "suspend": true}))
		},
		"resume": func(g *WithT, changed *unstructured.Unstructured) {
			g.Expect(changed.Object["spec"]).To(Equal(map[string]any{"stack": "dev"}))
		},
	} {
		t.Run(action, func(t *testing.T) {
			g := NewWithT(t)
			before := object(t, stack)
			if action == "resume" {
				g.Expect(unstructured.SetNestedField(before.Object, true, "spec", "suspend")).To(Succeed())
			}
			impacts, err := settings(t).Do(action, before)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(impacts).To(HaveLen(1))
			g.Expect(impacts[0].Operation).To(Equal("patch"))
			changed := &unstructured.Unstructured{Object: impacts[0].Resource}
			g.Expect(changed.GetAnnotations()).To(HaveKeyWithValue("mine", "kept"))
			check(g, changed)
		})
	}
}
