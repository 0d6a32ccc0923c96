package compatibility_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// wrote expects that the programs of the play have written these files and no others.
func wrote(names ...string) func(*fixture, *pulumiv1.Stack) {
	return func(s *fixture, _ *pulumiv1.Stack) { s.Expect(s.listFiles()).To(ConsistOf(names)) }
}

func (s *fixture) listFiles() []string {
	entries, err := os.ReadDir(s.files)
	s.Succeed(err)
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// delete deletes the Stack and waits until the object is gone.
func (s *fixture) delete(name string) {
	s.Expect(system.Client.Delete(s.Context(), &pulumiv1.Stack{Namespace: s.Name, Name: name})).To(Succeed())
	s.AwaitAbsent(name, &pulumiv1.Stack{})
}

func TestLifecycleFieldsWork(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const first = "'urn:pulumi:dev::files::test:index:Sleep::first'"
	testUses(t, []use{
		{field: "targets", manifest: "files", patch: "{spec: {targets: [" + first + "]}}", shows: wrote("first")},
		{field: "targetDependents", manifest: "files", patch: "{spec: {targets: [" + first + "], targetDependents: true}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			ran("--target-dependents")(s, stack)
			wrote("first", "second")(s, stack)
		}},
		{field: "refresh", manifest: "files", patch: "{spec: {refresh: true}}", shows: ran(" --refresh")},
		{field: "destroyOnFinalize", manifest: "files", shows: func(s *fixture, stack *pulumiv1.Stack) {
			wrote("first", "second")(s, stack)
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "destroyOnFinalize (not set)", manifest: "files", patch: "{spec: {destroyOnFinalize: false}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.delete("files")
			wrote("first", "second")(s, stack)
		}},
		{field: "runProgram", manifest: "files", patch: "{spec: {runProgram: true}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.delete("files")
			ran("--run-program")(s, stack)
			wrote()(s, stack)
		}},
		{field: "useLocalStackOnly", manifest: "plain", shows: func(s *fixture, _ *pulumiv1.Stack) {
			second := s.manifest("manifests/plain", "{metadata: {name: second}, spec: {useLocalStackOnly: true}}")
			s.Expect(s.applyAll(second)).To(Succeed())
			s.awaitReady("second")
		}},
		{field: "preview", manifest: "files", patch: "{spec: {preview: true}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			wrote()(s, stack)
			s.Expect(stack.Status.LastUpdate.Type).To(Equal(autov1alpha1.UpdateTypePreview))
			s.patch("files", "{spec: {preview: false}}")
			stack = s.awaitReady("files")
			wrote("first", "second")(s, stack)
		}},
		{field: "workspaceReclaimPolicy", manifest: "templates", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.Expect(system.Client.Get(s.Context(), s.Key(stack.Name), &autov1alpha1.Workspace{})).To(Succeed())
		}},
		{field: "workspaceTemplate", manifest: "templates", shows: func(s *fixture, stack *pulumiv1.Stack) {
			ran("FROM_TEMPLATE=of-the-template")(s, stack)
			workspace := &autov1alpha1.Workspace{}
			s.Get(stack.Name, workspace)
			s.Expect(workspace.Labels).To(HaveKeyWithValue("example.com/team", "platform"))
			s.Expect(workspace.Spec.Image).To(Equal("example/pulumi-with-dependencies:v3.334"))
		}},
		{field: "updateTemplate", manifest: "templates", shows: func(s *fixture, stack *pulumiv1.Stack) {
			update := s.LastUpdate(stack)
			s.Expect(update.Labels).To(HaveKeyWithValue("example.com/team", "platform"))
			s.Expect(update.Spec.TTLAfterCompleted.Duration.String()).To(Equal("2h0m0s"))
			ran("--parallel=3", "by a template")(s, stack)
		}},
		{field: "updateTemplate (a preview)", manifest: "files", patch: "{spec: {updateTemplate: {spec: {type: preview}}}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			wrote()(s, stack)
			s.Expect(s.LastUpdate(stack).Spec.Type).To(Equal(autov1alpha1.UpdateTypePreview))
		}},
		{field: "expectNoRefreshChanges", manifest: "plain", patch: "{spec: {refresh: true, expectNoRefreshChanges: true}}", shows: ran("--preview-only", "--expect-no-changes")},
		{field: "retryOnUpdateConflict", manifest: "plain", patch: "{spec: {retryOnUpdateConflict: true}}"},
		{field: "initOnCreate", manifest: "plain", patch: "{spec: {initOnCreate: true}}"},
	})
}

func TestMisusedLifecycleFieldsAreExplainedAndRecover(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	const failed, waits = pulumiv1.RetryingAfterFailureReason, pulumiv1.PrerequisiteNotSatisfiedReason
	testMisuses(t, []misuse{
		{field: "targets (not there)", manifest: "files", patch: "{spec: {targets: ['urn:pulumi:dev::files::test:index:Sleep::nobody']}}", reason: failed, says: "nobody"},
		{field: "targets (hostile)", manifest: "files", patch: "{spec: {targets: ['--help', '; rm -rf /']}}", reason: failed, says: "--help"},
		{field: "useLocalStackOnly (missing stack)", manifest: "plain", patch: "{spec: {useLocalStackOnly: true}}", reason: failed, says: "no stack named 'dev' found"},
		{field: "prerequisites (itself)", manifest: "plain", patch: "{spec: {prerequisites: [{name: plain}]}}", reason: pulumiv1.DependencyCycleReason, says: "plain"},
		{field: "prerequisites (missing)", manifest: "plain", patch: "{spec: {prerequisites: [{name: nobody}]}}", reason: waits, says: "nobody does not exist"},
		{field: "retryMaxBackoffDurationSeconds (negative)", manifest: "plain", patch: "{spec: {retryMaxBackoffDurationSeconds: -1, fluxSource: {dir: broken}}}",
			reason: failed, says: "next attempt in"},
		{field: "prerequisites.requirement.succeededWithinDuration (no duration)", manifest: "plain",
			patch: "{spec: {prerequisites: [{name: a, requirement: {succeededWithinDuration: soon}}]}}", refused: "succeededWithinDuration must be a duration"},
		{field: "workspaceReclaimPolicy (unknown)", manifest: "plain", patch: "{spec: {workspaceReclaimPolicy: Recycle}}", refused: `Unsupported value: "Recycle"`},
		{field: "workspaceTemplate (refused by the API server)", manifest: "plain",
			patch: "{spec: {workspaceTemplate: {metadata: {labels: {'not a label': x}}}}}", reason: pulumiv1.WorkspaceFailedReason, says: "not a label"},
		{field: "workspaceTemplate (unknown field)", manifest: "plain", patch: "{spec: {workspaceTemplate: {spec: {imagee: x}}}}", refused: `spec.workspaceTemplate.spec.imagee`},
		{field: "updateTemplate (refused by the API server)", manifest: "plain",
			patch: "{spec: {updateTemplate: {metadata: {labels: {'not a label': x}}}}}", reason: pulumiv1.WorkspaceFailedReason, says: "not a label"},
		{field: "updateTemplate (another operation)", manifest: "plain", patch: "{spec: {updateTemplate: {spec: {type: destroy}}}}",
			reason: pulumiv1.SpecInvalidReason, says: "spec.updateTemplate.spec.type"},
		{field: "updateTemplate (unknown field)", manifest: "plain", patch: "{spec: {updateTemplate: {spec: {parallels: 3}}}}", refused: `spec.updateTemplate.spec.parallels`},
	})
}

// TestOddCombinationsOfLifecycleFieldsAreHarmless uses fields that contradict each other without being an error.
func TestOddCombinationsOfLifecycleFieldsAreHarmless(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	testUses(t, []use{
		{field: "targetDependents (without targets)", manifest: "files", patch: "{spec: {targetDependents: true}}", shows: wrote("first", "second")},
		{field: "runProgram (without destroyOnFinalize)", manifest: "files", patch: "{spec: {runProgram: true, destroyOnFinalize: false}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.delete("files")
			wrote("first", "second")(s, stack)
		}},
		{field: "preview (with destroyOnFinalize, never deployed)", manifest: "files", patch: "{spec: {preview: true}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "preview (with destroyOnFinalize, deployed before)", manifest: "files", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.patch("files", "{spec: {preview: true}}")
			s.AwaitStack("files", func(stack *pulumiv1.Stack) bool {
				return isReady(stack) && stack.Status.LastUpdate.Type == autov1alpha1.UpdateTypePreview
			})
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "refresh (of resources that are gone)", manifest: "files", patch: "{spec: {refresh: true}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.Expect(os.Remove(filepath.Join(s.files, "first"))).To(Succeed())
			s.delete("files")
			wrote()(s, stack)
		}},
		{field: "resyncFrequencySeconds (less than a minute)", manifest: "plain", patch: "{spec: {continueResyncOnCommitMatch: true, resyncFrequencySeconds: 1}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.staysSo("plain", func(now *pulumiv1.Stack) bool { return now.Status.LastUpdate.Name == stack.Status.LastUpdate.Name })
			s.Expect(s.Updates()).To(HaveLen(1))
		}},
		{field: "resyncFrequencySeconds (negative)", manifest: "plain", patch: "{spec: {continueResyncOnCommitMatch: true, resyncFrequencySeconds: -1}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.staysSo("plain", func(now *pulumiv1.Stack) bool { return now.Status.LastUpdate.Name == stack.Status.LastUpdate.Name })
			s.Expect(s.Updates()).To(HaveLen(1))
		}},
		{field: "updateTemplate (a negative lifetime)", manifest: "plain", patch: "{spec: {updateTemplate: {spec: {ttlAfterCompleted: -1h}}}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
			s.Eventually(s.Updates).Should(BeEmpty())
			s.staysSo("plain", isReady)
		}},
		{field: "workspaceTemplate (a name and a status of its own)", manifest: "plain",
			patch: "{spec: {workspaceTemplate: {metadata: {name: other}, status: {address: nowhere}}}}", shows: func(s *fixture, stack *pulumiv1.Stack) {
				s.Expect(system.Client.Get(s.Context(), s.Key("plain"), &autov1alpha1.Workspace{})).To(Succeed())
			}},
	})
}

func TestFailuresAreRepeatedAfterTheLongestBackoffAtMost(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "use-retrymaxbackoff")
	s.applyPatched("plain", "{spec: {retryMaxBackoffDurationSeconds: 3, fluxSource: {dir: broken}}}")
	stalled := notReady(pulumiv1.UpdateFailedReason, "/no/such/file")
	// With the backoff alone, the fourth attempt would come after two minutes.
	s.AwaitStack("plain", func(stack *pulumiv1.Stack) bool { return stalled(stack) && stack.Status.LastUpdate.Failures >= 4 })
	s.replace("manifests/plain")
	s.awaitReady("plain")
}

func TestPrerequisitesInACircleWaitAndRecoverWhenItIsBroken(t *testing.T) {
	suite.Long(t, "each field of the former operator, on the whole system")
	t.Parallel()
	s := newFixture(t, "misuse-prerequisites-circle")
	for name, other := range map[string]string{"left": "right", "right": "left"} {
		patch := "{metadata: {name: " + name + "}, spec: {stack: " + name + ", prerequisites: [{name: " + other + "}]}}"
		s.applyPatched("plain", patch)
	}
	for _, name := range []string{"left", "right"} {
		s.AwaitStack(name, notReady(pulumiv1.DependencyCycleReason, "remove one of these dependencies"))
	}
	s.patch("left", "{spec: {prerequisites: null}}")
	s.awaitReady("left")
	s.awaitReady("right")
}

func TestStackOfTheOldVersionWorks(t *testing.T) {
	t.Parallel()
	s := newFixture(t, "use-v1alpha1")
	s.apply("manifests/old-version")
	s.awaitReady("old-version")
	output, err := system.ControlPlane.Kubectl(t.Context(), "get", "stacks.v1alpha1.pulumi.com", "old-version", "-n", s.Name, "-o", "jsonpath={.status.outputs.text} {.status.lastUpdate.state}")
	s.Succeed(err)
	s.Expect(output).To(Equal("none succeeded"))
	s.Expect(system.Client.Get(t.Context(), s.Key("old-version"), &pulumiv1.Stack{})).To(Succeed())
}

// schemaField is a field of a CustomResourceDefinition.
type schemaField struct {
	// path is the path in a manifest, with * for the key of a map and [] for an item of a list.
	path   string
	schema apiextensionsv1.JSONSchemaProps
}

// fieldsOf returns the fields below one of the top-level fields of version v1 of the definition, sorted.
func fieldsOf(t *testing.T, definition, top string) []schemaField {
	g := NewWithT(t)
	content, err := os.ReadFile(filepath.Join(tools.RepositoryRoot(), "config", "crd", "bases", definition))
	g.Expect(err).NotTo(HaveOccurred())
	var crd apiextensionsv1.CustomResourceDefinition
	g.Expect(yaml.UnmarshalStrict(content, &crd)).To(Succeed())
	index := slices.IndexFunc(crd.Spec.Versions, func(version apiextensionsv1.CustomResourceDefinitionVersion) bool { return version.Name == "v1" })
	g.Expect(index).To(BeNumerically(">=", 0))
	return walk(top, crd.Spec.Versions[index].Schema.OpenAPIV3Schema.Properties[top])
}

// walk returns the fields below a schema. It does not descend into references, templates and conditions, which are the same wherever they
// are used.
func walk(path string, schema apiextensionsv1.JSONSchemaProps) (fields []schemaField) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		below := path + "." + name
		fields = append(fields, schemaField{below, property})
		if isReference(property) || strings.HasSuffix(name, "Template") || name == "conditions" {
			continue
		}
		fields = append(fields, walk(below, property)...)
		if items := property.AdditionalProperties; items != nil && items.Schema != nil && !isReference(*items.Schema) {
			fields = append(fields, walk(below+".*", *items.Schema)...)
		}
		if property.Items != nil && property.Items.Schema != nil {
			fields = append(fields, walk(below+"[]", *property.Items.Schema)...)
		}
	}
	return fields
}

// isReference reports whether the schema is that of a ResourceRef.
func isReference(schema apiextensionsv1.JSONSchemaProps) bool {
	_, literal := schema.Properties["literal"]
	_, filesystem := schema.Properties["filesystem"]
	return literal && filesystem
}

// wrongValues has for each type a value of another type.
var wrongValues = map[string]any{
	"string":  map[string]any{"an": "object"},
	"boolean": "yes",
	"integer": "many",
	"array":   "one",
	"object":  "text",
}

func TestFieldsOfAnotherTypeAreRefusedByName(t *testing.T) {
	t.Parallel()
	for _, kind := range []struct{ definition, kind, top string }{
		{"pulumi.com_stacks.yaml", "Stack", "spec"},
		{"pulumi.com_programs.yaml", "Program", "program"},
	} {
		fields := fieldsOf(t, kind.definition, kind.top)
		NewWithT(t).Expect(len(fields)).To(BeNumerically(">", 20))
		for _, field := range fields {
			wrong, typed := wrongValues[field.schema.Type]
			if !typed {
				continue // every value is valid
			}
			t.Run(field.path, func(t *testing.T) {
				t.Parallel()
				g := NewWithT(t)
				object := &unstructured.Unstructured{Object: nested(strings.Split(field.path, "."), wrong).(map[string]any)}
				object.SetAPIVersion("pulumi.com/v1")
				object.SetKind(kind.kind)
				object.SetName("wrong")
				object.SetNamespace("default")
				content, err := object.MarshalJSON()
				g.Expect(err).NotTo(HaveOccurred())
				// Server-side apply and client-side apply report the field in different words.
				said := strings.NewReplacer(".*", ".key", "[]", "[0]").Replace(field.path)
				create := system.Client.Create(t.Context(), object.DeepCopy(), client.DryRunAll, client.FieldValidation("Strict"))
				g.Expect(create).To(MatchError(ContainSubstring(said)))
				apply := system.Client.Patch(t.Context(), object, client.RawPatch(types.ApplyPatchType, content),
					client.FieldOwner(user), client.DryRunAll, client.FieldValidation("Strict"))
				g.Expect(apply).To(MatchError(ContainSubstring("." + strings.Trim(said[strings.LastIndex(said, ".")+1:], "[0]"))))
			})
		}
	}
}

// nested returns an object with the value at the path.
func nested(path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	name, isList := strings.CutSuffix(path[0], "[]")
	inner := nested(path[1:], value)
	if item, isObject := inner.(map[string]any); isObject && (name == "keys" || name == "inputs") && item["key"] == nil {
		item["key"] = "k" // server-side apply looks for an item by it
	}
	if isList {
		inner = []any{inner}
	}
	if name == "*" {
		name = "key"
	}
	return map[string]any{name: inner}
}
