package podspec

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// podOfSpec returns the pod of a Workspace with the spec.
func podOfSpec(t *testing.T, spec string) corev1.PodSpec {
	t.Helper()
	g := NewWithT(t)
	return build(g, parse(g, spec)).StatefulSet.Spec.Template.Spec
}

// names returns the names of the items, in their order.
func names[Item any](items []Item, name func(Item) string) []string {
	var found []string
	for _, item := range items {
		found = append(found, name(item))
	}
	return found
}

func TestTheUsersContainersComeAfterTheGeneratedOnesInTheirOrder(t *testing.T) {
	g := NewWithT(t)
	pod := podOfSpec(t, `podTemplate: {spec: {
		initContainers: [{name: z, image: x}, {name: bootstrap, resources: {limits: {cpu: "1"}}}, {name: a, image: x}],
		containers: [{name: z, image: x}, {name: pulumi, stdin: true}, {name: a, image: x}],
		volumes: [{name: z, emptyDir: {}}, {name: share, hostPath: {path: /data}}, {name: a, emptyDir: {}}]}}`)
	g.Expect(names(pod.InitContainers, nameOfContainer)).To(Equal([]string{"bootstrap", "z", "a"}))
	g.Expect(names(pod.Containers, nameOfContainer)).To(Equal([]string{"pulumi", "z", "a"}))
	g.Expect(names(pod.Volumes, nameOfVolume)).To(Equal([]string{"share", "rpc", "z", "a"}))
	g.Expect(pod.InitContainers[0].Resources.Limits).To(HaveKey(corev1.ResourceCPU))
	g.Expect(pod.Containers[0].Stdin).To(BeTrue())
	g.Expect(pod.Volumes[0].VolumeSource).To(Equal(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data"}}))
}

func TestAVolumeWithoutASourceStaysWhatItIs(t *testing.T) {
	pod := podOfSpec(t, `podTemplate: {spec: {volumes: [{name: share}]}}`)
	NewWithT(t).Expect(pod.Volumes[0].EmptyDir).NotTo(BeNil())
}

func TestVariablesOfThePodTemplateWinAndMayReferToThoseBeforeThem(t *testing.T) {
	g := NewWithT(t)
	pod := podOfSpec(t, `{
		env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}, {name: POD_NAMESPACE, value: mine}, {name: B, value: "1"}],
		podTemplate: {spec: {containers: [{name: pulumi, env: [{name: C, value: $(B)}, {name: A, value: plain}]}]}}}`)
	variables := pod.Containers[0].Env
	g.Expect(names(variables, nameOfVariable)).To(Equal([]string{
		"PULUMI_ENV", "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER", "POD_NAMESPACE", "POD_SA_NAME", "AGENT_MEMLIMIT", "A", "B", "C",
	}))
	g.Expect(variables[2]).To(Equal(corev1.EnvVar{Name: "POD_NAMESPACE", Value: "mine"}))
	g.Expect(variables[5]).To(Equal(corev1.EnvVar{Name: "A", Value: "plain"}))
}

func TestOnlyReferencesOutsideThePodTemplateAreOptional(t *testing.T) {
	g := NewWithT(t)
	workspace := parse(g, `{
		env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k, optional: false}}}, {name: B, valueFrom: {configMapKeyRef: {name: s, key: k}}}],
		envFrom: [{secretRef: {name: s}}, {configMapRef: {name: c, optional: false}}],
		podTemplate: {spec: {containers: [{name: pulumi, env: [{name: C, valueFrom: {secretKeyRef: {name: s, key: k}}}]},
			{name: sidecar, image: x, envFrom: [{secretRef: {name: s}}]}]}}}`)
	unchanged := workspace.DeepCopy()
	containers := build(g, workspace).StatefulSet.Spec.Template.Spec.Containers
	g.Expect(workspace).To(Equal(unchanged))
	optional := map[string]*bool{}
	for _, variable := range containers[0].Env {
		switch from := variable.ValueFrom; {
		case from != nil && from.SecretKeyRef != nil:
			optional[variable.Name] = from.SecretKeyRef.Optional
		case from != nil && from.ConfigMapKeyRef != nil:
			optional[variable.Name] = from.ConfigMapKeyRef.Optional
		}
	}
	g.Expect(optional).To(And(HaveLen(3), HaveKeyWithValue("A", HaveValue(BeTrue())), HaveKeyWithValue("B", HaveValue(BeTrue())), HaveKeyWithValue("C", BeNil())))
	g.Expect(containers[0].EnvFrom[0].SecretRef.Optional).To(HaveValue(BeTrue()))
	g.Expect(containers[0].EnvFrom[1].ConfigMapRef.Optional).To(HaveValue(BeTrue()))
	g.Expect(containers[1].EnvFrom[0].SecretRef.Optional).To(BeNil())
}

func TestTheAgentKnowsThePodItRunsIn(t *testing.T) {
	for _, tt := range []struct{ name, spec, flag, not string }{
		{"default grace", `{}`, "--termination-grace=600s", ""},
		{"the user's grace", `podTemplate: {spec: {terminationGracePeriodSeconds: 3600}}`, "--termination-grace=3600s", "--termination-grace=600s"},
		{"a host name of its own", `{}`, "--exclusive-host", ""},
		{"the node's host name", `podTemplate: {spec: {hostNetwork: true}}`, "serve", "--exclusive-host"},
		{"a host name that others may have", `podTemplate: {spec: {hostnameOverride: build}}`, "serve", "--exclusive-host"},
		{"the controller's limits", `{}`, "--max-entries=100000", ""},
		{"programs anywhere in the image", `local: {dir: /app}`, "--local-root=/", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			command := podOfSpec(t, tt.spec).Containers[0].Command
			g.Expect(command).To(ContainElement(tt.flag))
			g.Expect(command).NotTo(ContainElement(tt.not))
		})
	}
}

func TestMountsInTheSourceAreMovedAndTheAgentKnowsTheirPlace(t *testing.T) {
	g := NewWithT(t)
	const template = `podTemplate: {spec: {volumes: [{name: a, emptyDir: {}}], containers: [{name: pulumi, volumeMounts: [
		{name: a, mountPath: /share/source/app/inner/}, {name: a, mountPath: /share/source/key.json, subPath: key.json}, {name: a, mountPath: /share/source/app},
		{name: a, mountPath: /share/sources}]}]}}`
	arguments := func(pod corev1.PodSpec) []string {
		return slices.DeleteFunc(pod.Containers[0].Command, func(argument string) bool { return !strings.HasPrefix(argument, "--source-mount") })
	}
	pod := podOfSpec(t, template)
	g.Expect(names(pod.Containers[0].VolumeMounts, pathOfMount)).To(ContainElements("/share/mounts/app/inner", "/share/mounts/key.json", "/share/mounts/app", "/share/sources"))
	g.Expect(arguments(pod)).To(Equal([]string{"--source-mount=app", "--source-mount=key.json"}), "what is mounted in another mount is there with it")

	pod = podOfSpec(t, `{local: {dir: /share/source/app}, `+template+`}`)
	g.Expect(names(pod.Containers[0].VolumeMounts, pathOfMount)).To(ContainElement("/share/source/app"), "nothing is delivered to this Workspace")
	g.Expect(arguments(pod)).To(BeEmpty())
}

func TestInitContainersOfTheOperatorAreLeftOutAndOthersKept(t *testing.T) {
	for _, tt := range []struct {
		container string
		kept      bool
	}{
		{`{name: fetch, resources: {limits: {cpu: "1"}}}`, false},
		{`{name: fetch, image: "mirror.example.com/a/pulumi-kubernetes-operator@sha256:0"}`, false},
		{`{name: fetch, command: [sh, -c, "true"]}`, false},
		{`{name: fetch, image: "example.com/fetcher"}`, true},
		{`{name: fetch, image: "example.com/pulumi-kubernetes-operator", command: [sh]}`, true},
	} {
		pod := podOfSpec(t, `podTemplate: {spec: {initContainers: [`+tt.container+`]}}`)
		NewWithT(t).Expect(slices.Contains(names(pod.InitContainers, nameOfContainer), "fetch")).To(Equal(tt.kept), tt.container)
	}
}

func TestRootKeepsItsCapabilities(t *testing.T) {
	g := NewWithT(t)
	pod := podOfSpec(t, `{securityProfile: restricted, podTemplate: {spec: {initContainers: [
		{name: chown, image: x, securityContext: {runAsUser: 0, runAsNonRoot: false}}, {name: other, image: x}]}}}`)
	g.Expect(pod.InitContainers[1].SecurityContext.Capabilities).To(BeNil())
	g.Expect(pod.InitContainers[1].SecurityContext.AllowPrivilegeEscalation).To(HaveValue(BeFalse()))
	g.Expect(pod.InitContainers[2].SecurityContext.Capabilities.Drop).To(ConsistOf(corev1.Capability("ALL")))
}

func TestLittleIsRequestedOfWhatNothingIsSaidAbout(t *testing.T) {
	for _, tt := range []struct{ name, spec, want string }{
		{"nothing said", `{}`, `{requests: {memory: 64Mi, cpu: 100m}}`},
		{"memory requested", `resources: {requests: {memory: 256Mi}}`, `{requests: {memory: 256Mi, cpu: 100m}}`},
		{"low limits", `resources: {limits: {memory: 32Mi, cpu: "2"}}`, `{requests: {memory: 32Mi, cpu: 100m}, limits: {memory: 32Mi, cpu: "2"}}`},
		{"the pod template wins", `{resources: {requests: {memory: 256Mi}}, podTemplate: {spec: {containers: [{name: pulumi, resources: {requests: {memory: 1Gi}, limits: {cpu: 50m}}}]}}}`,
			`{requests: {memory: 1Gi, cpu: 50m}, limits: {cpu: 50m}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := yaml.Marshal(podOfSpec(t, tt.spec).Containers[0].Resources)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(MatchYAML(tt.want))
		})
	}
}

func TestTheDeprecatedNameOfTheServiceAccountCounts(t *testing.T) {
	g := NewWithT(t)
	g.Expect(podOfSpec(t, `podTemplate: {spec: {serviceAccount: deployer}}`).ServiceAccountName).To(Equal("deployer"))
	g.Expect(podOfSpec(t, `podTemplate: {spec: {serviceAccount: a, serviceAccountName: b}}`).ServiceAccountName).To(Equal("b"))
	g.Expect(podOfSpec(t, `serviceAccountName: c`).ServiceAccountName).To(Equal("c"))
}

func TestOnlyPulumiHasTheIdentityOfTheAgent(t *testing.T) {
	g := NewWithT(t)
	pod := podOfSpec(t, `podTemplate: {spec: {initContainers: [{name: i, image: x}], containers: [{name: s, image: x}]}}`)
	for _, container := range append(pod.InitContainers, pod.Containers...) {
		var volumes []string
		for _, mount := range container.VolumeMounts {
			volumes = append(volumes, mount.Name)
		}
		if container.Name == "pulumi" {
			g.Expect(volumes).To(ContainElement(RPCVolume))
		} else {
			g.Expect(volumes).NotTo(ContainElement(RPCVolume), container.Name)
		}
		g.Expect(container.Env).To(ContainElement(corev1.EnvVar{Name: "PULUMI_ENV", Value: "/share/.env"}), container.Name)
		g.Expect(container.LivenessProbe).To(BeNil())
	}
}

func BenchmarkBuild(b *testing.B) {
	workspaces := map[string]string{"plain": `{}`, "customized": `podTemplate: {spec: {containers: [{name: pulumi, stdin: true}, {name: s, image: x}]}}`}
	for name, spec := range workspaces {
		workspace := parse(NewWithT(b), spec)
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Build(workspace, settings()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestAgentRunsFromItsImageUnlessInitContainersNeedWhatItsCopyMakes(t *testing.T) {
	g := NewWithT(t)
	fromVolume := settings()
	fromVolume.AgentVolume = true
	build := func(spec string) *Objects {
		objects, err := Build(parse(g, spec), fromVolume)
		g.Expect(err).NotTo(HaveOccurred())
		return objects
	}
	plain, prepared := build(`{}`), build(`podTemplate: {spec: {initContainers: [{name: program, image: example.com/program}]}}`)
	pod := plain.StatefulSet.Spec.Template.Spec
	g.Expect(pod.InitContainers).To(BeEmpty())
	g.Expect(pod.Volumes).To(ContainElement(HaveField("Image", HaveField("Reference", fromVolume.AgentImage))))
	g.Expect(pod.Containers[0].Command[0]).To(HavePrefix(imagePath))
	pod = prepared.StatefulSet.Spec.Template.Spec
	g.Expect(pod.InitContainers[0].Name).To(Equal(BootstrapContainerName))
	g.Expect(pod.Volumes).NotTo(ContainElement(HaveField("Image", Not(BeNil()))))
	g.Expect(pod.Containers[0].Command[0]).To(Equal(AgentPath))
	copied, err := Build(parse(g, `{}`), settings())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(plain.AgentRevision).NotTo(Equal(copied.AgentRevision), "who changes the flag gets other pods")
}
