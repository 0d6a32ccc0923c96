package template

import (
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	autov1alpha1 "github.com/stack-controller/stack-controller/api/auto/v1alpha1"
	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
)

// baseWorkspace is what a controller makes for a Stack.
const baseWorkspace = `
metadata: {name: app, namespace: team, labels: {pulumi.com/component: stack}, ownerReferences: [{kind: Stack, name: app, uid: "1"}]}
spec:
  serviceAccountName: default
  env: [{name: REGION, value: eu}, {name: TOKEN, valueFrom: {secretKeyRef: {name: token, key: token}}}]
  stacks:
  - name: dev
    create: true
    config: [{key: size, value: 1}, {key: tags, value: {team: a}}]
`

func TestWorkspaceTemplateIsMergedOverTheWorkspace(t *testing.T) {
	for _, tt := range []struct {
		name, base, template, want string
	}{
		{
			name:     "labels and annotations are added, those of the controller stay",
			template: `metadata: {labels: {team: a, pulumi.com/component: mine}, annotations: {note: x}}`,
			want:     `metadata: {labels: {team: a, pulumi.com/component: stack}, annotations: {note: x}}`,
		},
		{
			name: "name, namespace, owners and finalizers of the template have no effect",
			template: `metadata: {name: other, namespace: other, generateName: x-, finalizers: [x/y],
                       ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: "2"}]}`,
			want: `{}`,
		},
		{
			name:     "fields that the template sets win, others stay",
			template: `spec: {image: "pulumi/pulumi:3", serviceAccountName: deployer, resources: {limits: {cpu: "1"}}}`,
			want:     `spec: {image: "pulumi/pulumi:3", serviceAccountName: deployer, resources: {limits: {cpu: "1"}}}`,
		},
		{
			name:     "a pod template without containers keeps the containers of the workspace",
			base:     `spec: {podTemplate: {spec: {containers: [{name: pulumi, image: a}], nodeName: node-1}}}`,
			template: `spec: {podTemplate: {metadata: {labels: {key: value}}, spec: {tolerations: [{key: k}]}}}`,
			want: `spec: {podTemplate: {metadata: {labels: {key: value}}, spec: {
                     containers: [{name: pulumi, image: a, resources: {}}], nodeName: node-1, tolerations: [{key: k}]}}}`,
		},
		{
			name:     "containers are merged by name and volumes appended",
			base:     `spec: {podTemplate: {spec: {containers: [{name: pulumi, image: a, env: [{name: A, value: "1"}]}], volumes: [{name: v, emptyDir: {}}]}}}`,
			template: `spec: {podTemplate: {spec: {containers: [{name: pulumi, env: [{name: B, value: "2"}]}], volumes: [{name: w, emptyDir: {}}]}}}`,
			want: `spec: {podTemplate: {spec: {
                     containers: [{name: pulumi, image: a, env: [{name: B, value: "2"}, {name: A, value: "1"}], resources: {}}],
                     volumes: [{name: w, emptyDir: {}}, {name: v, emptyDir: {}}]}}}`,
		},
		{
			name:     "a list that the template does not set stays, even where its field has no omitempty",
			base:     `spec: {podTemplate: {spec: {volumes: [{name: v, projected: {sources: [{secret: {name: s}}]}}]}}}`,
			template: `spec: {podTemplate: {spec: {volumes: [{name: v, projected: {defaultMode: 256}}]}}}`,
			want:     `spec: {podTemplate: {spec: {volumes: [{name: v, projected: {defaultMode: 256, sources: [{secret: {name: s}}]}}]}}}`,
		},
		{
			name:     "a pod template with metadata only is fine",
			template: `spec: {podTemplate: {metadata: {annotations: {key: value}}}}`,
			want:     `spec: {podTemplate: {metadata: {annotations: {key: value}}}}`,
		},
		{
			name:     "a variable of the same name is replaced as a whole, others stay in order",
			template: `spec: {env: [{name: TOKEN, value: none}, {name: EXTRA, value: x}]}`,
			want:     `spec: {env: [{name: REGION, value: eu}, {name: TOKEN, value: none}, {name: EXTRA, value: x}]}`,
		},
		{
			name: "the stack of the same name is merged, its configuration by key",
			template: `spec: {stacks: [{name: dev, secretsProvider: passphrase, config: [{key: tags, value: {owner: b}}, {key: new, value: 2}]},
                              {name: other}]}`,
			want: `spec: {stacks: [
                     {name: dev, create: true, secretsProvider: passphrase, config: [{key: size, value: 1}, {key: tags, value: {owner: b}}, {key: new, value: 2}]},
                     {name: other}]}`,
		},
		{
			name:     "a configuration value is data, with its nulls and odd keys",
			template: `spec: {stacks: [{name: dev, config: [{key: size, value: {a: null, $patch: delete}}]}]}`,
			want: `spec: {stacks: [{name: dev, create: true, config: [
                     {key: size, value: {a: null, $patch: delete}}, {key: tags, value: {team: a}}]}]}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			base := decode[autov1alpha1.Workspace](g, baseWorkspace, tt.base)
			template := decode[pulumiv1.WorkspaceTemplate](g, tt.template)
			unchangedBase, unchangedTemplate := base.DeepCopy(), template.DeepCopy()

			merged, err := Workspace(base, template)

			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(asJSON(g, merged)).To(MatchJSON(asJSON(g, decode[autov1alpha1.Workspace](g, baseWorkspace, tt.base, tt.want))))
			g.Expect(base).To(Equal(unchangedBase))
			g.Expect(template).To(Equal(unchangedTemplate))
		})
	}
}

func TestWithoutTemplateTheObjectStaysAsItIs(t *testing.T) {
	g := NewWithT(t)
	workspace := decode[autov1alpha1.Workspace](g, baseWorkspace)
	g.Expect(Workspace(workspace, nil)).To(Equal(workspace))
	g.Expect(Workspace(workspace, &pulumiv1.WorkspaceTemplate{})).To(Equal(workspace))
	update := &autov1alpha1.Update{Name: "u", Spec: autov1alpha1.UpdateSpec{StackName: "dev"}}
	g.Expect(Update(update, nil)).To(Equal(update))
	g.Expect(Update(update, &pulumiv1.UpdateTemplate{})).To(Equal(update))
}

func TestMergedPodTemplateHasNoNullContainers(t *testing.T) {
	g := NewWithT(t)
	template := &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{PodTemplate: &autov1alpha1.EmbeddedPodTemplateSpec{
		Spec: &autov1alpha1.EmbeddedPodSpec{NodeName: "n"},
	}}}
	merged, err := Workspace(&autov1alpha1.Workspace{}, template)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(asJSON(g, merged.Spec)).To(MatchJSON(`{"podTemplate": {"spec": {"nodeName": "n"}}}`))
}

func TestLargeNumbersInConfigurationKeepTheirDigits(t *testing.T) {
	g := NewWithT(t)
	item := autov1alpha1.ConfigItem{Key: "id", Value: &apiextensionsv1.JSON{Raw: []byte("12345678901234567890")}}
	base := &autov1alpha1.Workspace{Spec: autov1alpha1.WorkspaceSpec{
		Stacks: []autov1alpha1.WorkspaceStack{{Name: "dev", Config: []autov1alpha1.ConfigItem{item}}},
	}}
	merged, err := Workspace(base, &pulumiv1.WorkspaceTemplate{Spec: &autov1alpha1.WorkspaceSpec{Image: "x"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(merged.Spec.Stacks).To(Equal(base.Spec.Stacks))
}

func TestUpdateTemplateIsMergedOverTheUpdate(t *testing.T) {
	const baseUpdate = `
metadata: {name: app-1, namespace: team, labels: {pulumi.com/component: stack}}
spec:
  workspaceName: app
  stackName: dev
  type: up
  source: {url: "http://source/a.tar.gz", digest: "sha256:1"}
  parallel: 4
  refresh: true
  ttlAfterCompleted: 24h
`
	for _, tt := range []struct {
		name, template, want string
	}{
		{
			name:     "options of the template win, others stay",
			template: `spec: {ttlAfterCompleted: 1h, refresh: false, target: ["urn:a"]}`,
			want:     `spec: {ttlAfterCompleted: 1h, refresh: false, target: ["urn:a"]}`,
		},
		{
			name: "what the update is for stays",
			template: `{metadata: {name: x, namespace: other, labels: {team: a}},
                        spec: {workspaceName: x, stackName: other, type: destroy, source: {url: "http://other", digest: "sha256:2"}, parallel: 1}}`,
			want: `{metadata: {labels: {team: a, pulumi.com/component: stack}}, spec: {parallel: 1}}`,
		},
		{
			name: "labels and annotations by which the controller knows its own objects are not for templates",
			template: `metadata: {annotations: {pulumi.com/drift: "1", pulumi.com/plan-cause: Drift, auto.pulumi.com/workspace-generation: "1", note: x,
                                   event.toolkit.fluxcd.io/x: y, pulumi.example.com/x: y},
                        labels: {auto.pulumi.com/component: workspace, pulumi.com/stack-name: other, my-pulumi.com/x: y}}`,
			want: `metadata: {annotations: {note: x, event.toolkit.fluxcd.io/x: y, pulumi.example.com/x: y}, labels: {pulumi.com/component: stack, my-pulumi.com/x: y}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			merged, err := Update(decode[autov1alpha1.Update](g, baseUpdate), decode[pulumiv1.UpdateTemplate](g, tt.template))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(merged).To(Equal(decode[autov1alpha1.Update](g, baseUpdate, tt.want)))
		})
	}
}

// decode reads YAML documents and merges each over the ones before it; lists are replaced.
func decode[Object any](g *WithT, documents ...string) *Object {
	merged := map[string]any{}
	for _, document := range documents {
		var tree map[string]any
		g.Expect(yaml.Unmarshal([]byte(document), &tree)).To(Succeed())
		overlay(merged, tree)
	}
	content, err := yaml.Marshal(merged)
	g.Expect(err).NotTo(HaveOccurred())
	object := new(Object)
	g.Expect(yaml.UnmarshalStrict(content, object)).To(Succeed())
	return object
}

func overlay(target, source map[string]any) {
	for key, value := range source {
		inner, isObject := target[key].(map[string]any)
		if other, ok := value.(map[string]any); ok && isObject {
			overlay(inner, other)
			continue
		}
		target[key] = value
	}
}

func asJSON(g *WithT, object any) []byte {
	content, err := yaml.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	content, err = yaml.YAMLToJSON(content)
	g.Expect(err).NotTo(HaveOccurred())
	return content
}
