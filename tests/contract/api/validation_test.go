package api_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// longName is one character longer than the longest possible name of a Stack.
const longName = "a23456789-123456789-123456789-123456789-123"

// kind is a kind, with the required fields of its specification.
type kind struct {
	apiVersion, kind, required string
}

var (
	stackV1       = kind{"pulumi.com/v1", "Stack", "stack: dev"}
	stackV1alpha1 = kind{"pulumi.com/v1alpha1", "Stack", "stack: dev"}
	workspace     = kind{"auto.pulumi.com/v1alpha1", "Workspace", ""}
	update        = kind{"auto.pulumi.com/v1alpha1", "Update", "workspaceName: a\nstackName: dev\ntype: up"}
	rollout       = kind{"auto.pulumi.com/v1alpha1", "StackRollout", "{sourceRef: {kind: GitRepository, name: infrastructure}, waves: [{name: all}]}"}
)

// object returns an object of the kind with the given lines in its specification.
func (k kind) object(g Gomega, name, spec string) *unstructured.Unstructured {
	fields := map[string]any{}
	for _, part := range []string{k.required, spec} {
		g.Expect(yaml.Unmarshal([]byte(part), &fields)).To(Succeed())
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	object.SetAPIVersion(k.apiVersion)
	object.SetKind(k.kind)
	object.SetNamespace("default")
	object.SetName(name)
	return object
}

// offer returns the API server's error for the object, in a dry run.
func offer(t *testing.T, object *unstructured.Unstructured) error {
	return apiServer.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict"))
}

func TestWhatCannotWorkIsRefusedWithAClearMessage(t *testing.T) {
	for _, tt := range []struct {
		name    string
		kinds   []kind
		object  string
		spec    string
		message string
	}{
		{
			name:    "plan of an up that runs",
			kinds:   []kind{update},
			spec:    "{savePlan: true}",
			message: "savePlan is for type preview, and for type destroy with previewOnly",
		}, {
			name:    "enforcement without a plan",
			kinds:   []kind{update},
			spec:    "{planEnforcement: Inputs}",
			message: "planEnforcement is for an Update with savePlan",
		}, {
			name:    "plan of a refresh",
			kinds:   []kind{{"auto.pulumi.com/v1alpha1", "Update", "workspaceName: a\nstackName: dev\ntype: refresh"}},
			spec:    "{plan: {name: a, digest: \"sha256:1ad9a7a2c8f5b2c9d1f0f4c6d1c0b1a7e6a5d4c3b2a1908f7e6d5c4b3a291807\"}}",
			message: "plan is for type up or destroy, and not for one with previewOnly",
		}, {
			name:    "login as a team and as a user",
			kinds:   []kind{stackV1, stackV1alpha1, workspace},
			spec:    "{pulumiCloud: {oidc: {organization: a, team: b, user: c}}}",
			message: "set either team or user, not both",
		}, {
			name:    "login without an organization",
			kinds:   []kind{stackV1, stackV1alpha1, workspace},
			spec:    "{pulumiCloud: {oidc: {team: b}}}",
			message: "organization: Required value",
		}, {
			name:    "login to an organization that is a flag",
			kinds:   []kind{stackV1, stackV1alpha1, workspace},
			spec:    "{pulumiCloud: {oidc: {organization: --local}}}",
			message: "organization",
		}, {
			name:    "login for seconds",
			kinds:   []kind{stackV1, stackV1alpha1, workspace},
			spec:    "{pulumiCloud: {oidc: {organization: a, expiration: 59s}}}",
			message: "expiration must be a duration such as 2h, and at least 1m",
		}, {
			name:    "login of a template",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{workspaceTemplate: {spec: {pulumiCloud: {oidc: {organization: a}}}}}",
			message: "pulumiCloud",
		}, {
			name:    "type of a ConfigMap with outputs",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{outputs: [{kind: ConfigMap, name: a, type: Opaque}]}",
			message: "only a Secret has a type",
		}, {
			name:    "key with an output and all",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{outputs: [{name: a, keys: [{key: k, output: a, all: true}]}]}",
			message: "set either output or all",
		}, {
			name:    "key without an output",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{outputs: [{name: a, keys: [{key: k}]}]}",
			message: "set either output or all",
		}, {
			name:    "path in all outputs",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{outputs: [{name: a, keys: [{key: k, all: true, path: a}]}]}",
			message: "path is a path in an output",
		}, {
			name:    "two objects with outputs of one name",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{outputs: [{name: a}, {kind: Secret, name: a}]}",
			message: "Duplicate value",
		}, {
			name:    "object with outputs in another namespace",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{outputs: [{name: other/a}]}",
			message: "spec.outputs[0].name",
		}, {
			name:    "two resync intervals",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{resyncFrequency: 5m, resyncFrequencySeconds: 300}",
			message: "set either resyncFrequencySeconds or resyncFrequency, not both",
		}, {
			name:    "name longer than the names made of it can be",
			kinds:   []kind{stackV1, stackV1alpha1},
			object:  longName,
			message: "the name of a Stack must not be longer than 42 characters",
		}, {
			name:    "negative resync interval",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{resyncFrequency: -5m}",
			message: "resyncFrequency must be a duration such as 1h30m, and not negative",
		}, {
			name:    "negative timeout",
			kinds:   []kind{stackV1, stackV1alpha1, update},
			spec:    "{timeout: -5m}",
			message: "timeout must be a duration such as 1h30m, and not negative",
		}, {
			name:    "drift interval of a minute",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{drift: {interval: 1m}}",
			message: "interval must be a duration of at least 5m",
		}, {
			name:    "negative retry interval",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{retryInterval: -5m}",
			message: "retryInterval must be a duration such as 1h30m, and not negative",
		}, {
			name:    "dependency with a kind but no version",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{dependsOn: [{kind: Kustomization, name: a}]}",
			message: "set both apiVersion and kind, or neither",
		}, {
			name:    "dependency that need not be ready but has an expression",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{dependsOn: [{name: a, ready: false, readyExpr: 'true'}]}",
			message: "readyExpr has no effect with ready: false",
		}, {
			name:    "lifetime that is not a duration",
			kinds:   []kind{update},
			spec:    "{ttlAfterCompleted: tomorrow}",
			message: "ttlAfterCompleted must be a duration such as 1h30m",
		}, {
			name:    "timeout in days",
			kinds:   []kind{stackV1, stackV1alpha1, update},
			spec:    "{timeout: 1d}",
			message: "timeout must be a duration such as 1h30m, and not negative",
		}, {
			name:    "more ended updates than can be kept",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{updateHistoryLimit: 101}",
			message: "spec.updateHistoryLimit in body should be less than or equal to 100",
		}, {
			name:    "unknown reclaim policy",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{workspaceReclaimPolicy: Recycle}",
			message: `Unsupported value: "Recycle"`,
		}, {
			name:    "source without a kind",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{fluxSource: {sourceRef: {name: a}}}",
			message: "spec.fluxSource.sourceRef.kind: Required value",
		}, {
			name:    "unknown field",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{projectRepository: a}",
			message: `unknown field "spec.projectRepository"`,
		}, {
			name:    "unknown field of a pod",
			kinds:   []kind{stackV1, stackV1alpha1},
			spec:    "{workspaceTemplate: {spec: {podTemplate: {spec: {tolerance: []}}}}}",
			message: `unknown field "spec.workspaceTemplate.spec.podTemplate.spec.tolerance"`,
		}, {
			name:    "field of a pod with another type",
			kinds:   []kind{workspace},
			spec:    "{podTemplate: {spec: {hostNetwork: 1}}}",
			message: "spec.podTemplate.spec.hostNetwork in body must be of type boolean",
		}, {
			name:    "two containers with one name",
			kinds:   []kind{workspace},
			spec:    "{podTemplate: {spec: {containers: [{name: a}, {name: a}]}}}",
			message: "spec.podTemplate.spec.containers[1]: Duplicate value",
		}, {
			name:    "unknown security profile",
			kinds:   []kind{workspace},
			spec:    "{securityProfile: privileged}",
			message: `Unsupported value: "privileged"`,
		}, {
			name:    "configuration key twice",
			kinds:   []kind{workspace},
			spec:    "{stacks: [{name: a, config: [{key: a, value: 1}, {key: a, value: 2}]}]}",
			message: "spec.stacks[0].config[1]: Duplicate value",
		}, {
			name:    "source whose digest is not one",
			kinds:   []kind{update},
			spec:    "{source: {url: 'http://a', digest: abc}}",
			message: "spec.source.digest in body should match",
		},
	} {
		for _, kind := range tt.kinds {
			t.Run(tt.name+"/"+kind.kind+"/"+kind.apiVersion, func(t *testing.T) {
				g := NewWithT(t)
				name := tt.object
				if name == "" {
					name = "refused"
				}
				g.Expect(offer(t, kind.object(g, name, tt.spec))).To(MatchError(ContainSubstring(tt.message)))
			})
		}
	}
}

func TestWhatMayWorkIsAccepted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		kinds  []kind
		object string
		spec   string
	}{
		{name: "name of 42 characters", kinds: []kind{stackV1, stackV1alpha1}, object: longName[:42]},
		{name: "no source", kinds: []kind{stackV1, stackV1alpha1}},
		{name: "empty git fields beside another source", kinds: []kind{stackV1}, spec: "{projectRepo: '', commit: '', branch: '', programRef: {name: a}}"},
		{name: "values of every type", kinds: []kind{stackV1, stackV1alpha1}, spec: "{config: {a: x, b: 1, c: 1.5, d: true, e: {f: [1, g]}, h: []}}"},
		{name: "deprecated references", kinds: []kind{stackV1}, spec: "{envRefs: {A: {type: Env, env: {name: B}}, C: {type: FS, filesystem: {path: /d}}}}"},
		{name: "deprecated fields", kinds: []kind{stackV1}, spec: "{accessTokenSecret: a, envs: [b], envSecrets: [c], secrets: {d: e}, projectRepo: f, branch: main, gitAuthSecret: g}"},
		{name: "dependencies on other kinds", kinds: []kind{stackV1, stackV1alpha1}, spec: "{dependsOn: [{apiVersion: apps/v1, kind: Deployment, name: a, " +
			"readyExpr: 'true'}, {apiVersion: v1, kind: Secret, name: a, ready: false}, {name: a, ready: true, readyExpr: 'true'}, {name: ''}]}"},
		{name: "pod template without containers", kinds: []kind{workspace}, spec: "{podTemplate: {spec: {tolerations: [{operator: Exists}]}}}"},
		{name: "pod template with metadata only", kinds: []kind{workspace}, spec: "{podTemplate: {metadata: {labels: {a: b}}}}"},
		{name: "template that is a whole object", kinds: []kind{stackV1}, spec: `
workspaceTemplate: {apiVersion: auto.pulumi.com/v1alpha1, kind: Workspace, metadata: {name: a, creationTimestamp: null}, spec: {image: a}, status: {address: b}}
updateTemplate: {apiVersion: auto.pulumi.com/v1alpha1, kind: Update, metadata: {annotations: {a: b}}, spec: {parallel: 4}, status: {}}`},
		{name: "what the controller answers", kinds: []kind{stackV1, stackV1alpha1}, spec: `
projectRepo: https://example.com/a
commit: a
branch: b
fluxSource: {sourceRef: {kind: '', name: ''}}
programRef: {name: a}
resyncFrequencySeconds: -1
retryMaxBackoffDurationSeconds: -1
prerequisites: [{name: '', requirement: {succeededWithinDuration: -1h}}]
envRefs: {A: {type: Secret}, B: {type: Vault}, C: {type: ''}}
secretsRef: {a: {type: Literal, secret: {name: a, key: b}}}
updateTemplate: {spec: {type: carrot, ttlAfterCompleted: -1h}}`},
		{name: "template with all metadata of an object", kinds: []kind{stackV1, stackV1alpha1}, spec: `
workspaceTemplate:
  metadata: {name: a, generateName: b, namespace: c, uid: d, resourceVersion: e, generation: 1, creationTimestamp: null, deletionTimestamp: null,
    deletionGracePeriodSeconds: 1, labels: {a: b}, annotations: {c: d}, ownerReferences: [{name: a}, {name: a}], finalizers: [a, a]}`},
		{name: "negative lifetime", kinds: []kind{update}, spec: "{ttlAfterCompleted: -1h}"},
		{name: "any operation", kinds: []kind{update}, spec: "{type: carrot}"},
		{name: "nothing at all", kinds: []kind{{"auto.pulumi.com/v1alpha1", "Update", ""}}},
		{name: "lifetime of nothing", kinds: []kind{update}, spec: "{ttlAfterCompleted: '0'}"},
		{name: "quantities", kinds: []kind{workspace}, spec: "{resources: {limits: {a: 100m, b: 1Gi, c: 2, d: '0.5', e: 1e3, f: 12E6, g: 128974848, h: 1.}}}"},
	} {
		for _, kind := range tt.kinds {
			t.Run(tt.name+"/"+kind.kind+"/"+kind.apiVersion, func(t *testing.T) {
				g := NewWithT(t)
				name := tt.object
				if name == "" {
					name = "accepted"
				}
				g.Expect(offer(t, kind.object(g, name, tt.spec))).To(Succeed())
			})
		}
	}
}
